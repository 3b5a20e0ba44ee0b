/* One option: its value from a tree or a text into the field, and back. */
#include "io/options.h"

#include <assert.h>
#include <math.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is being read: for messages and for memory. */
typedef struct Reading {
    const OptionSpec *spec;
    const char *place, *key;
    Arena *arena;
} Reading;

/* All lists have this form; their fields are read and written by memcpy, since at has another type there. */
typedef struct AnyList {
    void *at;
    int n;
} AnyList;

static bool is_list(OptionType type)
{
    return type == OPT_INTS || type == OPT_TEXTS || type == OPT_NAMES || type == OPT_OBJECTS;
}

static void *field_of(void *base, const OptionSpec *spec)
{
    return (char *)base + spec->offset;
}

/* ---- units -------------------------------------------------------------------------------------- */

typedef struct Unit {
    const char *name;
    double factor;
} Unit;

// clang-format off
static const Unit time_units[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}, {NULL, 0}};
static const Unit size_units[] = {
    {"B", 1}, {"K", 1e3}, {"KB", 1e3}, {"M", 1e6}, {"MB", 1e6}, {"G", 1e9}, {"GB", 1e9}, {"T", 1e12}, {"TB", 1e12},
    {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.}, {NULL, 0}};
// clang-format on

/* One "12.5GB" at *text; moves it on. No unit: factor 1 at the end of the text only. */
static bool number_with_unit(const char **text, const Unit *units, double *value)
{
    const char *digits = *text;
    size_t n = strspn(digits, "0123456789.");
    if (!n) return false;
    char *end;
    double number = strtod(digits, &end);
    if (end != digits + n) return false;
    size_t letters = strspn(end, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
    double factor = *end ? 0 : 1;
    for (; units->name && factor == 0; units++)
        if (strlen(units->name) == letters && !strncmp(units->name, end, letters))
            factor = units->factor;
    *value = number * factor;
    *text = end + letters;
    return factor > 0;
}

bool option_duration(const char *text, double *seconds)
{
    double sum = 0, part;
    do {
        if (!number_with_unit(&text, time_units, &part)) return false;
        sum += part;
    } while (*text);
    *seconds = sum;
    return isfinite(sum);
}

bool option_size(const char *text, int64_t *bytes)
{
    double value;
    if (!number_with_unit(&text, size_units, &value) || *text) return false;
    if (!(value < 0x1p63)) return false;
    *bytes = (int64_t)value;
    return true;
}

/* ---- messages ----------------------------------------------------------------------------------- */

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

/* ---- reading ------------------------------------------------------------------------------------ */

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

static size_t item_bytes(const OptionSpec *spec)
{
    switch (spec->type) {
    case OPT_INTS: return sizeof(int64_t);
    case OPT_OBJECTS: return spec->limit.item_size;
    default: return sizeof(const char *);
    }
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
    size_t bytes = item_bytes(spec);
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

static bool is_built(const OptionSpec *spec, const char *text)
{
    for (const char *words = spec->built;; words++) {
        size_t n = strcspn(words, " ");
        if (n == strlen(text) && !strncmp(words, text, n)) return true;
        words += n;
        if (!*words) return false;
    }
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
        while (bad < list.n && is_built(spec, list.at[bad])) bad++;
        if (bad == list.n) return OK;
        yaml_append_text(&text, list.at[bad]);
    } else {
        /* The field's own offset is taken off: the field is printed alone, without its struct. */
        OptionSpec here = *spec;
        here.offset = 0;
        option_append(&text, &here, field);
        if (is_built(spec, text.text)) return OK;
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

Status option_defaults(void *base, const OptionSpec *specs, Arena *arena)
{
    for (const OptionSpec *spec = specs; spec->name; spec++) {
        if (!spec->fallback) {
            set_unset(spec, field_of(base, spec));
            continue;
        }
        YamlDoc yaml;
        TRY(yaml_doc_parse(&yaml, "default", spec->fallback, strlen(spec->fallback), arena));
        Reading reading = {spec, "default", spec->name, arena};
        void *field = field_of(base, spec);
        Status st = read_known(&reading, yaml.root, field);
        if (st == OK && check_built(&reading, field) != OK) {
            size_t n = strcspn(spec->built, " ");
            yaml_doc_free(&yaml);
            st = yaml_doc_parse(&yaml, "default", spec->built, n, arena);
            if (st == OK) st = read_known(&reading, yaml.root, field);
        }
        yaml_doc_free(&yaml);
        TRY(st);
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

void option_append_default(TextBuffer *out, const OptionSpec *spec)
{
    const char *text = spec->fallback ? spec->fallback : "null";
    size_t n = strlen(text);
    if (spec->built && spec->type != OPT_NAMES && !is_built(spec, text)) {
        text = spec->built;
        n = strcspn(text, " ");
    }
    text_append(out, text, n);
}

/* ---- writing ------------------------------------------------------------------------------------ */

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
        const char *item = (const char *)list.at + (size_t)i * item_bytes(spec);
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
