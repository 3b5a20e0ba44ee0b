/* Options as text: what a row allows, and values. */
#include "io/option_parts.h"

#include <assert.h>
#include <math.h>
#include <string.h>

size_t option_item_bytes(const OptionSpec *spec)
{
    switch (spec->type) {
    case OPT_INTS: return sizeof(int64_t);
    case OPT_OBJECTS: return spec->limit.item_size;
    default: return sizeof(const char *);
    }
}

bool option_is_built(const OptionSpec *spec, const char *text)
{
    for (const char *words = spec->built;; words++) {
        size_t n = strcspn(words, " ");
        if (n == strlen(text) && !strncmp(words, text, n)) return true;
        words += n;
        if (!*words) return false;
    }
}

/* ---- what is expected ---------------------------------------------------------------------------- */

static bool same_bound(double a, double b)
{
    return a >= b && a <= b;
}

static void append_range(TextBuffer *out, const OptionLimit *limit, const char *noun)
{
    text_append_format(out, "%s", noun);
    if (!limit->ranged) return;
    bool open = isinf(limit->max) || limit->max >= 0x1p62;
    if (open) {
        text_append_format(out, " %s %.15g", limit->above_min ? "above" : "of at least",
                           limit->min);
    } else if (same_bound(limit->min, limit->max)) {
        text_append_format(out, ": %.15g", limit->min);
    } else {
        text_append_format(out, " %s %.15g %s %.15g", limit->above_min ? "above" : "from",
                           limit->min, limit->below_max ? "to below" : "to", limit->max);
    }
}

static void append_choices(TextBuffer *out, const OptionChoice *choices)
{
    for (const OptionChoice *c = choices; c->name; c++)
        text_append_format(out, "%s%s", c == choices ? "" : " | ", c->name);
}

static void append_items(TextBuffer *out, const OptionSpec *items)
{
    text_append_format(out, "a list of {");
    for (const OptionSpec *item = items; item->name; item++)
        text_append_format(out, "%s%s:", item == items ? "" : ", ", item->name);
    text_append_format(out, "}");
}

void option_append_expected(TextBuffer *out, const OptionSpec *spec)
{
    const OptionLimit *limit = &spec->limit;
    switch (spec->type) {
    case OPT_BOOL: text_append_format(out, "true | false"); break;
    case OPT_INT: append_range(out, limit, "a whole number"); break;
    case OPT_REAL: append_range(out, limit, "a number"); break;
    case OPT_TEXT: text_append_format(out, "a text"); break;
    case OPT_NAME:
    case OPT_ENUM: append_choices(out, limit->choices); break;
    case OPT_DURATION: text_append_format(out, "seconds, or a duration such as 10m"); break;
    case OPT_SIZE: text_append_format(out, "bytes, or a size such as 5GB"); break;
    case OPT_INTS: append_range(out, limit, "a list of whole numbers, each"); break;
    case OPT_PAIR: append_range(out, limit, "a list of two numbers, each"); break;
    case OPT_TEXTS: text_append_format(out, "a list of texts"); break;
    case OPT_NAMES:
        text_append_format(out, "a list of ");
        append_choices(out, limit->choices);
        break;
    case OPT_OBJECTS: append_items(out, limit->items); break;
    }
    if (spec->unset)
        text_append_format(out, spec->limit.choices ? " | %s" : ", or %s", spec->unset);
}

void option_append_default(TextBuffer *out, const OptionSpec *spec)
{
    const char *text = spec->fallback ? spec->fallback : "null";
    size_t n = strlen(text);
    if (spec->built && spec->type != OPT_NAMES && !option_is_built(spec, text)) {
        text = spec->built;
        n = strcspn(text, " ");
    }
    text_append(out, text, n);
}

/* ---- values -------------------------------------------------------------------------------------- */

static bool is_unset(const OptionSpec *spec, const void *field)
{
    if (!spec->unset) return false;
    AnyList list;
    switch (spec->type) {
    case OPT_INT:
    case OPT_SIZE:
        return (spec->size == sizeof(int64_t) ? *(const int64_t *)field : *(const int *)field) < 0;
    case OPT_REAL:
    case OPT_DURATION: return isnan(*(const double *)field);
    case OPT_TEXT:
    case OPT_NAME: return *(const char *const *)field == NULL;
    case OPT_INTS:
    case OPT_TEXTS:
    case OPT_NAMES:
    case OPT_OBJECTS: memcpy(&list, field, sizeof list); return list.at == NULL;
    default: return false;
    }
}

static void append_int(TextBuffer *out, int64_t value)
{
    text_append_format(out, "%lld", (long long)value);
}

static bool is_default(const OptionSpec *spec, const void *base, Arena *arena)
{
    TextBuffer text;
    text_buffer_init(&text, arena);
    option_append(&text, spec, base);
    return !strcmp(text.text, spec->fallback);
}

static void append_object(TextBuffer *out, const OptionSpec *rows, const void *item)
{
    bool plain = rows->type == OPT_TEXT;
    for (const OptionSpec *row = rows + 1; row->name && plain; row++)
        plain = is_default(row, item, out->arena);
    if (plain) {
        option_append(out, rows, item);
        return;
    }
    for (const OptionSpec *row = rows; row->name; row++) {
        text_append_format(out, "%s%s: ", row == rows ? "{" : ", ", row->name);
        option_append(out, row, item);
    }
    text_append(out, "}", 1);
}

static void append_list(TextBuffer *out, const OptionSpec *spec, const void *field)
{
    AnyList list;
    memcpy(&list, field, sizeof list);
    text_append(out, "[", 1);
    for (int i = 0; i < list.n; i++) {
        const char *item = (const char *)list.at + (size_t)i * option_item_bytes(spec);
        if (i) text_append(out, ", ", 2);
        switch (spec->type) {
        case OPT_INTS: append_int(out, *(const int64_t *)(const void *)item); break;
        case OPT_OBJECTS: append_object(out, spec->limit.items, item); break;
        default: yaml_append_text(out, *(const char *const *)(const void *)item);
        }
    }
    text_append(out, "]", 1);
}

static void append_number(TextBuffer *out, double value)
{
    /* A whole number of seconds reads better without a fraction. */
    if (value == floor(value) && fabs(value) < 1e15)
        append_int(out, (int64_t)value);
    else
        yaml_append_real(out, value);
}

void option_append(TextBuffer *out, const OptionSpec *spec, const void *base)
{
    const void *field = (const char *)base + spec->offset;
    if (is_unset(spec, field)) {
        text_append(out, spec->unset, strlen(spec->unset));
        return;
    }
    const OptionChoice *choice;
    switch (spec->type) {
    case OPT_BOOL: text_append_format(out, *(const bool *)field ? "true" : "false"); break;
    case OPT_INT:
    case OPT_SIZE:
        append_int(out,
                   spec->size == sizeof(int64_t) ? *(const int64_t *)field : *(const int *)field);
        break;
    case OPT_REAL: yaml_append_real(out, *(const double *)field); break;
    case OPT_TEXT:
    case OPT_NAME: yaml_append_text(out, *(const char *const *)field); break;
    case OPT_ENUM:
        choice = spec->limit.choices;
        while (choice->name && choice->value != *(const int *)field) choice++;
        assert(choice->name);
        yaml_append_text(out, choice->name);
        break;
    case OPT_DURATION: append_number(out, *(const double *)field); break;
    case OPT_PAIR:
        text_append(out, "[", 1);
        yaml_append_real(out, ((const double *)field)[0]);
        text_append(out, ", ", 2);
        yaml_append_real(out, ((const double *)field)[1]);
        text_append(out, "]", 1);
        break;
    default: append_list(out, spec, field);
    }
}
