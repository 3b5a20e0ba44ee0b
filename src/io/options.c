#include "io/options.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAMES = 256, HELP_COLUMN = 34 };

static void *section_base(void *base, const OptionSection *section)
{
    return (char *)base + section->offset;
}

static const OptionSection *find_section(const OptionSection *sections, const char *name, size_t n)
{
    for (; sections->name; sections++)
        if (strlen(sections->name) == n && !strncmp(sections->name, name, n)) return sections;
    return NULL;
}

static const OptionSpec *find_spec(const OptionSpec *specs, const char *name)
{
    for (; specs->name; specs++)
        if (!strcmp(specs->name, name)) return specs;
    return NULL;
}

/* ---- unknown names ------------------------------------------------------------------------------ */

typedef struct Names {
    const char *at[MAX_NAMES + 1];
    int n;
} Names;

static void add_name(Names *names, const char *name)
{
    if (names->n < MAX_NAMES) names->at[names->n++] = name;
}

/* The key a user may have meant: the same name in another section, a near one in this section, any near one. */
static const char *nearest_key(const OptionSection *sections, const OptionSection *section,
                               const char *key, const char *full, Arena *arena)
{
    Names here = {.n = 0}, everywhere = {.n = 0};
    for (const OptionSection *s = sections; s->name; s++) {
        if (find_spec(s->specs, key)) return text_format(arena, "%s.%s", s->name, key);
        for (const OptionSpec *spec = s->specs; spec->name; spec++) {
            if (s == section) add_name(&here, spec->name);
            add_name(&everywhere, text_format(arena, "%s.%s", s->name, spec->name));
        }
    }
    const char *near = text_nearest(key, here.at);
    if (near) return text_format(arena, "%s.%s", section->name, near);
    return text_nearest(full, everywhere.at);
}

static Status unknown_key(const OptionSection *sections, const OptionSection *section,
                          const char *place, const char *key, const char *full, Arena *arena)
{
    const char *near = nearest_key(sections, section, key, full, arena);
    if (near) return FAIL(ERR_USAGE, "%s: unknown key %.100s, did you mean %s?", place, full, near);
    Names names = {.n = 0};
    for (const OptionSpec *spec = section->specs; spec->name; spec++) add_name(&names, spec->name);
    TextBuffer known;
    text_buffer_init(&known, arena);
    for (int i = 0; i < names.n; i++)
        text_append_format(&known, "%s%s", i ? ", " : "", names.at[i]);
    return FAIL(ERR_USAGE, "%s: unknown key %.100s (keys of %s: %s)", place, full, section->name,
                known.text);
}

static Status unknown_section(const OptionSection *sections, const char *place, const char *name,
                              Arena *arena)
{
    if (strchr(name, '.'))
        return FAIL(ERR_USAGE, "%s: unknown section %.100s (a key stands below its section)", place,
                    name);
    Names names = {.n = 0};
    TextBuffer known;
    text_buffer_init(&known, arena);
    for (const OptionSection *s = sections; s->name; s++) {
        const OptionSpec *spec = find_spec(s->specs, name);
        if (spec)
            return FAIL(ERR_USAGE, "%s: unknown section %.100s, did you mean %s.%s?", place, name,
                        s->name, name);
        text_append_format(&known, "%s%s", names.n ? ", " : "", s->name);
        add_name(&names, s->name);
    }
    const char *near = text_nearest(name, names.at);
    if (near)
        return FAIL(ERR_USAGE, "%s: unknown section %.100s, did you mean %s?", place, name, near);
    return FAIL(ERR_USAGE, "%s: unknown section %.100s (sections: %s)", place, name, known.text);
}

/* ---- reading ------------------------------------------------------------------------------------ */

Status options_defaults(void *base, const OptionSection *sections, Arena *arena)
{
    for (; sections->name; sections++)
        TRY(option_defaults(section_base(base, sections), sections->specs, arena));
    return OK;
}

static Status read_section(void *base, const OptionSection *sections, const OptionSection *section,
                           const json_t *tree, const YamlDoc *yaml, Arena *arena)
{
    if (json_is_null(tree)) return OK; /* a heading whose keys are all commented out */
    if (!json_is_object(tree))
        return FAIL(ERR_USAGE, "%s: %s: expected keys below it, one a line",
                    yaml_doc_place(yaml, section->name, arena), section->name);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)tree, key, value)
    {
        const char *full = text_format(arena, "%s.%s", section->name, key);
        const char *place = yaml_doc_place(yaml, full, arena);
        const OptionSpec *spec = find_spec(section->specs, key);
        if (!spec) return unknown_key(sections, section, place, key, full, arena);
        TRY(option_read(section_base(base, section), spec, place, full, value, arena));
    }
    return OK;
}

Status options_read(void *base, const OptionSection *sections, const YamlDoc *yaml, Arena *arena)
{
    if (json_is_null(yaml->root)) return OK;
    if (!json_is_object(yaml->root))
        return FAIL(ERR_USAGE, "%s: expected sections such as %s:", yaml->name, sections->name);
    const char *name;
    json_t *tree;
    json_object_foreach(yaml->root, name, tree)
    {
        const OptionSection *section = find_section(sections, name, strlen(name));
        bool dotted = strchr(name, '.') != NULL; /* the place is that of a key of the section */
        if (!section)
            return unknown_section(
                sections, dotted ? yaml->name : yaml_doc_place(yaml, name, arena), name, arena);
        TRY(read_section(base, sections, section, tree, yaml, arena));
    }
    return OK;
}

Status options_set(void *base, const OptionSection *sections, const char *assignment, Arena *arena)
{
    const char *equals = strchr(assignment, '=');
    if (!equals) return FAIL(ERR_USAGE, "--set %.200s: expected section.key=value", assignment);
    const char *full = text_copy_n(arena, assignment, (size_t)(equals - assignment));
    const char *dot = strchr(full, '.');
    if (!dot) {
        if (find_section(sections, full, strlen(full)))
            return FAIL(ERR_USAGE, "--set %.200s: %s is a section, expected section.key=value",
                        assignment, full);
        return unknown_section(sections, "--set", full, arena);
    }
    const OptionSection *section = find_section(sections, full, (size_t)(dot - full));
    if (!section)
        return unknown_section(sections, "--set", text_copy_n(arena, full, (size_t)(dot - full)),
                               arena);
    const OptionSpec *spec = find_spec(section->specs, dot + 1);
    if (!spec) return unknown_key(sections, section, "--set", dot + 1, full, arena);

    const char *text = equals + 1;
    if (!*text)
        return FAIL(ERR_USAGE, "--set %s: found nothing, expected a value (null: none)", full);
    YamlDoc yaml;
    TRY(yaml_doc_parse(&yaml, text_format(arena, "--set %s", full), text, strlen(text), arena));
    /* What looks like a number or a flag to YAML is a text where one is wanted: there is no file to put quotes in. */
    bool as_text =
        spec->type == OPT_TEXT && (json_is_number(yaml.root) || json_is_boolean(yaml.root));
    json_t *value = as_text ? json_string(text) : json_incref(yaml.root);
    Status st = option_read(section_base(base, section), spec, "--set", full, value, arena);
    json_decref(value);
    yaml_doc_free(&yaml);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------ */

void options_dump(TextBuffer *out, const OptionSection *sections, const void *base)
{
    for (const OptionSection *section = sections; section->name; section++) {
        text_append_format(out, "%s:\n", section->name);
        for (const OptionSpec *spec = section->specs; spec->name; spec++) {
            text_append_format(out, "  %s: ", spec->name);
            option_append(out, spec, (const char *)base + section->offset);
            text_append(out, "\n", 1);
        }
    }
}

void options_compare(const OptionSection *sections, const void *a, const void *b, Arena *arena,
                     void (*differs)(void *context, const char *key, const char *in_a,
                                     const char *in_b, const OptionSpec *spec),
                     void *context)
{
    for (const OptionSection *section = sections; section->name; section++) {
        for (const OptionSpec *spec = section->specs; spec->name; spec++) {
            TextBuffer in_a, in_b;
            text_buffer_init(&in_a, arena);
            text_buffer_init(&in_b, arena);
            option_append(&in_a, spec, (const char *)a + section->offset);
            option_append(&in_b, spec, (const char *)b + section->offset);
            if (strcmp(in_a.text, in_b.text))
                differs(context, text_format(arena, "%s.%s", section->name, spec->name), in_a.text,
                        in_b.text, spec);
        }
    }
}

void options_help(TextBuffer *out, const OptionSection *sections)
{
    for (const OptionSection *section = sections; section->name; section++) {
        text_append_format(out, "%s%s: %s\n", section == sections ? "" : "\n", section->name,
                           section->help);
        for (const OptionSpec *spec = section->specs; spec->name; spec++) {
            size_t start = out->length;
            text_append_format(out, "  %s: ", spec->name);
            option_append_default(out, spec);
            int pad = HELP_COLUMN - (int)(out->length - start);
            text_append_format(out, "%*s# %s\n%*s# ", pad > 1 ? pad : 1, "", spec->help,
                               HELP_COLUMN, "");
            option_append_expected(out, spec);
            if (spec->built) text_append_format(out, "; available: %s", spec->built);
            text_append(out, "\n", 1);
        }
    }
}
