#include "io/json.h"
#include "io/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program rather than fail: without memory jansson 2.14 writes beyond the text it is reading, and leaves out members
 * of an object that is being made. */
static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    if (!memory) die("out of memory: %zu bytes of JSON", bytes);
    return memory;
}

__attribute__((constructor)) static void set_allocator(void)
{
    json_set_alloc_funcs(allocate, free);
}

/* ---------------------------------------------------------------- documents */

Status json_doc_parse(JsonDoc *doc, const char *place, const char *text, size_t n)
{
    json_error_t error;
    json_t *root = json_loadb(text ? text : "", n, JSON_REJECT_DUPLICATES, &error);
    if (!root) return FAIL(ERR_FORMAT, "%s:%d:%d: %s", place, error.line, error.column, error.text);
    doc->root = root;
    return OK;
}

Status json_doc_read(JsonDoc *doc, const char *path)
{
    MappedFile file;
    TRY(file_map(&file, path));
    Status st = json_doc_parse(doc, path, (const char *)file.data, file.bytes);
    file_unmap(&file);
    return st;
}

void json_doc_free(JsonDoc *doc)
{
    json_decref(doc->root);
    doc->root = NULL;
}

/* ---------------------------------------------------------------- getters */

const char *json_kind_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "a list", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    return value ? names[json_typeof(value)] : "nothing";
}

Status json_expect_object(const json_t *value, const char *place)
{
    if (json_is_object(value)) return OK;
    return FAIL(ERR_FORMAT, "%s: expected an object (found %s)", place, json_kind_name(value));
}

/* What a getter wants: one bit for each of jansson's types. */
enum {
    WANT_INT = 1 << JSON_INTEGER,
    WANT_REAL = 1 << JSON_INTEGER | 1 << JSON_REAL,
    WANT_BOOL = 1 << JSON_TRUE | 1 << JSON_FALSE,
    WANT_STRING = 1 << JSON_STRING,
    WANT_OBJECT = 1 << JSON_OBJECT,
    WANT_ARRAY = 1 << JSON_ARRAY
};

static const char *want_name(int want)
{
    switch (want) {
    case WANT_INT: return "an integer";
    case WANT_REAL: return "a number";
    case WANT_BOOL: return "true or false";
    case WANT_STRING: return "a string";
    case WANT_OBJECT: return "an object";
    default: return "a list";
    }
}

/* *out: the value of a wanted type; NULL when absent or null and not required. */
static Status get(const json_t *object, const char *place, const char *key, int want, bool required,
                  json_t **out)
{
    TRY(json_expect_object(object, place));
    json_t *value = json_object_get(object, key);
    if (!value && required) return FAIL(ERR_FORMAT, "%s: key %s: missing", place, key);
    if (!required && json_is_null(value)) value = NULL;
    if (value && !(want >> json_typeof(value) & 1))
        return FAIL(ERR_FORMAT, "%s: key %s: expected %s (found %s)", place, key, want_name(want),
                    json_kind_name(value));
    if (value && want == WANT_STRING &&
        strlen(json_string_value(value)) != json_string_length(value))
        return FAIL(ERR_FORMAT, "%s: key %s: the string holds a NUL character", place, key);
    *out = value;
    return OK;
}

Status json_get_int(const json_t *object, const char *place, const char *key, int64_t *out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_INT, true, &value));
    *out = json_integer_value(value);
    return OK;
}

Status json_get_real(const json_t *object, const char *place, const char *key, double *out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_REAL, true, &value));
    *out = json_number_value(value);
    return OK;
}

Status json_get_bool(const json_t *object, const char *place, const char *key, bool *out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_BOOL, true, &value));
    *out = json_is_true(value);
    return OK;
}

Status json_get_string(const json_t *object, const char *place, const char *key, const char **out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_STRING, true, &value));
    *out = json_string_value(value);
    return OK;
}

Status json_get_object(const json_t *object, const char *place, const char *key, json_t **out)
{
    return get(object, place, key, WANT_OBJECT, true, out);
}

Status json_get_array(const json_t *object, const char *place, const char *key, json_t **out)
{
    return get(object, place, key, WANT_ARRAY, true, out);
}

Status json_get_int_or(const json_t *object, const char *place, const char *key, int64_t fallback,
                       int64_t *out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_INT, false, &value));
    *out = value ? json_integer_value(value) : fallback;
    return OK;
}

Status json_get_real_or(const json_t *object, const char *place, const char *key, double fallback,
                        double *out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_REAL, false, &value));
    *out = value ? json_number_value(value) : fallback;
    return OK;
}

Status json_get_bool_or(const json_t *object, const char *place, const char *key, bool fallback,
                        bool *out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_BOOL, false, &value));
    *out = value ? json_is_true(value) : fallback;
    return OK;
}

Status json_get_string_or(const json_t *object, const char *place, const char *key,
                          const char *fallback, const char **out)
{
    json_t *value;
    TRY(get(object, place, key, WANT_STRING, false, &value));
    *out = value ? json_string_value(value) : fallback;
    return OK;
}

Status json_get_object_or_null(const json_t *object, const char *place, const char *key,
                               json_t **out)
{
    return get(object, place, key, WANT_OBJECT, false, out);
}

Status json_get_array_or_null(const json_t *object, const char *place, const char *key,
                              json_t **out)
{
    return get(object, place, key, WANT_ARRAY, false, out);
}

Status json_get_int_array(Arena *arena, const json_t *object, const char *place, const char *key,
                          int64_t **out, int64_t *n)
{
    json_t *list;
    TRY(get(object, place, key, WANT_ARRAY, true, &list));
    size_t count = json_array_size(list);
    int64_t *values = NULL;
    TRY(arena_alloc(arena, &values, count, sizeof *values));
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item))
            return FAIL(ERR_FORMAT, "%s: key %s[%zu]: expected an integer (found %s)", place, key,
                        i, json_kind_name(item));
        values[i] = json_integer_value(item);
    }
    *out = values;
    *n = (int64_t)count;
    return OK;
}

/* ---------------------------------------------------------------- writing */

static int append_dump(const char *bytes, size_t n, void *buffer)
{
    text_append(buffer, bytes, n);
    return 0;
}

Status json_to_text(Arena *arena, const json_t *root, char **text, size_t *n)
{
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(17) | JSON_ENCODE_ANY;
    if (json_dump_callback(root, append_dump, &buffer, flags) != 0)
        return FAIL(ERR_FORMAT, "JSON text: a value cannot be written");
    text_append(&buffer, "\n", 1);
    *text = buffer.text;
    *n = buffer.length;
    return OK;
}

Status json_write_file(const char *path, const json_t *root)
{
    Arena arena;
    arena_init(&arena, "json");
    char *text;
    size_t n;
    Status st = json_to_text(&arena, root, &text, &n);
    if (st == OK) st = file_write_atomic(path, text, n);
    arena_free(&arena);
    return st;
}

void json_append_real(TextBuffer *buffer, double value)
{
    if (isfinite(value))
        text_append_format(buffer, "%.17g", value);
    else
        text_append(buffer, "null", 4);
}

void json_append_string(TextBuffer *buffer, const char *text)
{
    json_append_string_n(buffer, text, strlen(text));
}

void json_append_string_n(TextBuffer *buffer, const char *text, size_t n)
{
    static const char short_form[128] = {['"'] = '"',  ['\\'] = '\\', ['\b'] = 'b', ['\f'] = 'f',
                                         ['\n'] = 'n', ['\r'] = 'r',  ['\t'] = 't'};
    text_append(buffer, "\"", 1);
    size_t plain = 0; /* start of the run of bytes that need no escape */
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        bool known = c < 128 && short_form[c];
        if (!known && c >= 0x20) continue;
        text_append(buffer, text + plain, i - plain);
        plain = i + 1;
        if (known)
            text_append_format(buffer, "\\%c", short_form[c]);
        else
            text_append_format(buffer, "\\u%04x", c);
    }
    text_append(buffer, text + plain, n - plain);
    text_append(buffer, "\"", 1);
}
