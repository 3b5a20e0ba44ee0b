/* One option: its value from a tree or a text into the field. */
#include "io/option_parts.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is being read: for messages and for memory. */
typedef struct Reading {
    const OptionSpec *spec;
    const char *place, *key;
    Arena *arena;
} Reading;

static bool is_list(OptionType type)
{
    return type == OPT_INTS || type == OPT_TEXTS || type == OPT_NAMES || type == OPT_OBJECTS;
}

static void *field_of(void *base, const OptionSpec *spec)
{
    return (char *)base + spec->offset;
}

static const char *found_text(const Reading *reading, const json_t *value)
{
    if (json_is_string(value))
        return text_format(reading->arena, "\"%.100s\"", json_string_value(value));
    if (json_is_real(value)) {
        TextBuffer text;
        text_buffer_init(&text, reading->arena);
        yaml_append_real(&text, json_real_value(value));
        return text.text;
    }
    char *json = json_dumps(value, JSON_ENCODE_ANY);
    const char *found = text_format(reading->arena, "%.100s", json ? json : "?");
    free(json);
    return found;
}

static Status fail_value(const Reading *reading, const json_t *value, const char *what)
{
    TextBuffer expected;
    text_buffer_init(&expected, reading->arena);
    option_append_expected(&expected, reading->spec);
    return FAIL(ERR_USAGE, "%s: %s: %s (found %s, expected %s)", reading->place, reading->key, what,
                found_text(reading, value), expected.text);
}

static Status fail_type(const Reading *reading, const json_t *value)
{
    return fail_value(reading, value, "a value of the wrong kind");
}

static bool in_range(const OptionLimit *limit, double value)
{
    if (!limit->ranged) return true;
    return (limit->above_min ? value > limit->min : value >= limit->min) &&
           (limit->below_max ? value < limit->max : value <= limit->max);
}

static Status read_int(const Reading *reading, const json_t *value, int64_t *out)
{
    if (!json_is_integer(value)) return fail_type(reading, value);
    int64_t number = json_integer_value(value);
    if (!in_range(&reading->spec->limit, (double)number))
        return fail_value(reading, value, "out of range");
    *out = number;
    return OK;
}

static Status read_real(const Reading *reading, const json_t *value, double *out)
{
    if (!json_is_number(value)) return fail_type(reading, value);
    double number = json_number_value(value);
    if (!in_range(&reading->spec->limit, number)) return fail_value(reading, value, "out of range");
    *out = number;
    return OK;
}

static Status read_text(const Reading *reading, const json_t *value, const char **out)
{
    if (json_is_integer(value) && reading->spec->numbers) {
        *out = text_format(reading->arena, "%lld", (long long)json_integer_value(value));
        return OK;
    }
    if (json_is_number(value) || json_is_boolean(value))
        return fail_value(reading, value, "not a text: put it in quotes to make it one");
    if (!json_is_string(value)) return fail_type(reading, value);
    if (!*json_string_value(value)) return fail_value(reading, value, "an empty text");
    *out = text_copy(reading->arena, json_string_value(value));
    return OK;
}

static Status read_choice(const Reading *reading, const json_t *value, const OptionChoice **out)
{
    const OptionSpec *spec = reading->spec;
    const char *names[64];
    int n = 0;
    const char *word = json_is_string(value) ? json_string_value(value) : NULL;
    if (!word) return fail_type(reading, value);
    for (const OptionChoice *c = spec->limit.choices; c->name; c++) {
        if (!strcmp(c->name, word)) {
            *out = c;
            return OK;
        }
        if (n < 62) names[n++] = c->name;
    }
    if (spec->unset) names[n++] = spec->unset;
    names[n] = NULL;
    const char *nearest = text_nearest(word, names);
    const char *what =
        nearest ? text_format(reading->arena, "not known, did you mean %s?", nearest) : "not known";
    return fail_value(reading, value, what);
}

static Status read_duration(const Reading *reading, const json_t *value, double *out)
{
    if (json_is_string(value)) {
        if (!option_duration(json_string_value(value), out)) return fail_type(reading, value);
    } else {
        TRY(read_real(reading, value, out));
    }
    if (!(*out >= 0) || !in_range(&reading->spec->limit, *out))
        return fail_value(reading, value, "out of range");
    return OK;
}

static Status read_size(const Reading *reading, const json_t *value, int64_t *out)
{
    if (json_is_string(value)) {
        if (!option_size(json_string_value(value), out)) return fail_type(reading, value);
    } else {
        TRY(read_int(reading, value, out));
    }
    if (*out < 0 || !in_range(&reading->spec->limit, (double)*out))
        return fail_value(reading, value, "out of range");
    return OK;
}

static Status read_value(const Reading *reading, const json_t *value, void *field);

/* An item of a list of objects: a mapping of its rows, or the text of the first row alone. */
static Status read_object(const Reading *reading, const json_t *value, void *item)
{
    const OptionSpec *rows = reading->spec->limit.items;
    TRY(option_defaults(item, rows, reading->arena));
    const char *names[64];
    int n = 0;
    for (const OptionSpec *row = rows; row->name; row++) names[n++] = row->name;
    names[n] = NULL;
    if (json_is_object(value)) {
        const char *key;
        json_t *unused;
        json_object_foreach((json_t *)value, key, unused)
        {
            int i = 0;
            while (i < n && strcmp(names[i], key)) i++;
            if (i < n) continue;
            const char *nearest = text_nearest(key, names);
            return FAIL(ERR_USAGE, "%s: %s: unknown key %.100s%s%s%s", reading->place, reading->key,
                        key, nearest ? ", did you mean " : "", nearest ? nearest : "",
                        nearest ? "?" : "");
        }
    }
    for (const OptionSpec *row = rows; row->name; row++) {
        const json_t *part = json_is_object(value) ? json_object_get(value, row->name)
                             : row == rows         ? value
                                                   : NULL;
        Reading inner = {row, reading->place,
                         text_format(reading->arena, "%s.%s", reading->key, row->name),
                         reading->arena};
        if (row == rows && !json_is_object(value) && !json_is_string(value))
            return fail_type(reading, value);
        if (part)
            TRY(read_value(&inner, part, field_of(item, row)));
        else if (row == rows)
            return FAIL(ERR_USAGE, "%s: %s: missing", reading->place, inner.key);
    }
    return OK;
}

static Status read_item(const Reading *reading, const json_t *value, void *item)
{
    const OptionChoice *choice;
    switch (reading->spec->type) {
    case OPT_INTS: return read_int(reading, value, item);
    case OPT_TEXTS: return read_text(reading, value, item);
    case OPT_NAMES:
        TRY(read_choice(reading, value, &choice));
        *(const char **)item = choice->name;
        return OK;
    default: return read_object(reading, value, item);
    }
}

static Status read_list(const Reading *reading, const json_t *value, void *field)
{
    const OptionSpec *spec = reading->spec;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (json_is_null(value) || (json_is_object(value) && spec->type != OPT_OBJECTS))
        return fail_type(reading, value);
    if (n == 0 && spec->unset) return fail_value(reading, value, "an empty list");
    if (n > INT_MAX) return fail_value(reading, value, "too long a list");
    size_t bytes = option_item_bytes(spec);
    AnyList list = {.n = (int)n};
    /* Never NULL, which means "no value". */
    list.at = arena_take_zeroed(reading->arena, size_mul(n ? n : 1, bytes));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, i) : value;
        Reading inner = *reading;
        if (json_is_array(value))
            inner.key = text_format(reading->arena, "%s[%zu]", reading->key, i);
        TRY(read_item(&inner, item, (char *)list.at + i * bytes));
    }
    memcpy(field, &list, sizeof list);
    return OK;
}

static Status read_pair(const Reading *reading, const json_t *value, double *out)
{
    if (!json_is_array(value) || json_array_size(value) != 2) return fail_type(reading, value);
    for (size_t i = 0; i < 2; i++) {
        if (!json_is_number(json_array_get(value, i))) return fail_type(reading, value);
        if (!in_range(&reading->spec->limit, json_number_value(json_array_get(value, i))))
            return fail_value(reading, value, "out of range");
        out[i] = json_number_value(json_array_get(value, i));
    }
    return OK;
}

static void set_int(void *field, size_t size, int64_t value)
{
    if (size == sizeof(int64_t))
        *(int64_t *)field = value;
    else
        *(int *)field = (int)value;
}

static void set_unset(const OptionSpec *spec, void *field)
{
    switch (spec->type) {
    case OPT_INT:
    case OPT_SIZE: set_int(field, spec->size, -1); break;
    case OPT_REAL:
    case OPT_DURATION: *(double *)field = NAN; break;
    default: memset(field, 0, spec->size); break;
    }
}

static bool is_unset_word(const OptionSpec *spec, const json_t *value)
{
    if (!spec->unset) return false;
    if (!strcmp(spec->unset, "null")) return json_is_null(value);
    return json_is_string(value) && !strcmp(json_string_value(value), spec->unset);
}
/* Known, in range, but not there: the value's own text must be among the built ones. */
static Status check_built(const Reading *reading, const void *field)
{
    const OptionSpec *spec = reading->spec;
    if (!spec->built) return OK;
    TextBuffer text;
    text_buffer_init(&text, reading->arena);
    if (spec->type == OPT_NAMES) {
        TextList list;
        memcpy(&list, field, sizeof list);
        int bad = 0;
        while (bad < list.n && option_is_built(spec, list.at[bad])) bad++;
        if (bad == list.n) return OK;
        yaml_append_text(&text, list.at[bad]);
    } else {
        /* The field's own offset is taken off: the field is printed alone, without its struct. */
        OptionSpec here = *spec;
        here.offset = 0;
        option_append(&text, &here, field);
        if (option_is_built(spec, text.text)) return OK;
    }
    return FAIL(ERR_UNSUPPORTED, "%s: %s: %s is not available yet (available: %s)", reading->place,
                reading->key, text.text, spec->built);
}

static Status read_known(const Reading *reading, const json_t *value, void *field)
{
    const OptionSpec *spec = reading->spec;
    const OptionChoice *choice;
    int64_t number;
    if (is_unset_word(spec, value)) {
        set_unset(spec, field);
        return OK;
    }
    if (is_list(spec->type)) return read_list(reading, value, field);
    switch (spec->type) {
    case OPT_BOOL:
        if (!json_is_boolean(value)) return fail_type(reading, value);
        *(bool *)field = json_is_true(value);
        return OK;
    case OPT_INT:
        TRY(read_int(reading, value, &number));
        if (spec->size == sizeof(int) && (number > INT_MAX || number < INT_MIN))
            return fail_value(reading, value, "out of range");
        set_int(field, spec->size, number);
        return OK;
    case OPT_REAL: return read_real(reading, value, field);
    case OPT_TEXT: return read_text(reading, value, field);
    case OPT_NAME:
        TRY(read_choice(reading, value, &choice));
        *(const char **)field = choice->name;
        return OK;
    case OPT_ENUM:
        TRY(read_choice(reading, value, &choice));
        *(int *)field = choice->value;
        return OK;
    case OPT_DURATION: return read_duration(reading, value, field);
    case OPT_SIZE: return read_size(reading, value, field);
    default: return read_pair(reading, value, field);
    }
}

static Status read_value(const Reading *reading, const json_t *value, void *field)
{
    TRY(read_known(reading, value, field));
    return check_built(reading, field);
}

Status option_read(void *base, const OptionSpec *spec, const char *place, const char *key,
                   const json_t *value, Arena *arena)
{
    Reading reading = {spec, place, key, arena};
    return read_value(&reading, value, field_of(base, spec));
}

/* A default of a row: n letters of YAML. Single values, nearly all, need no parser. */
static Status read_default(const Reading *reading, const char *text, size_t n, void *field)
{
    const char *why;
    YamlDoc yaml = {0};
    if (*text == '[')
        TRY(yaml_doc_parse(&yaml, "default", text, n, reading->arena));
    else
        yaml.root = yaml_plain(text_copy_n(reading->arena, text, n), n, &why);
    Status st = read_known(reading, yaml.root, field);
    yaml_doc_free(&yaml);
    return st;
}

Status option_defaults(void *base, const OptionSpec *specs, Arena *arena)
{
    for (const OptionSpec *spec = specs; spec->name; spec++) {
        Reading reading = {spec, "default", spec->name, arena};
        void *field = field_of(base, spec);
        if (!spec->fallback) {
            set_unset(spec, field);
            continue;
        }
        TRY(read_default(&reading, spec->fallback, strlen(spec->fallback), field));
        if (check_built(&reading, field) != OK)
            TRY(read_default(&reading, spec->built, strcspn(spec->built, " "), field));
    }
    return OK;
}

static Status append_to_texts(void *field, const char *text, Arena *arena)
{
    AnyList list;
    memcpy(&list, field, sizeof list);
    const char **grown = ARENA_NEW(arena, const char *, list.n + 1);
    if (list.n) memcpy(grown, list.at, (size_t)list.n * sizeof *grown);
    grown[list.n++] = text;
    list.at = grown;
    memcpy(field, &list, sizeof list);
    return OK;
}

Status option_read_text(void *base, const OptionSpec *spec, const char *place, const char *text,
                        Arena *arena)
{
    void *field = field_of(base, spec);
    if (spec->type == OPT_TEXT) {
        *(const char **)field = text_copy(arena, text);
        return OK;
    }
    if (spec->type == OPT_TEXTS) return append_to_texts(field, text_copy(arena, text), arena);
    const char *at = text_format(arena, "%s: --%s", place, spec->name);
    YamlDoc yaml;
    TRY(yaml_doc_parse(&yaml, at, text, strlen(text), arena));
    Reading reading = {spec, place, text_format(arena, "--%s", spec->name), arena};
    Status st = read_value(&reading, yaml.root, field);
    yaml_doc_free(&yaml);
    return st;
}
