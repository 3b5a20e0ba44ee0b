/* The same bytes as a JSON document (read with every getter, written and read again) and as JSON lines. */
#include "fuzz_target.h"
#include "io/jsonl.h"

#include <stdlib.h>
#include <string.h>

/* Whatever the kind, exactly the getters of that kind take it. */
static void get_all(const json_t *object, Arena *arena)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        int64_t integer, *list, n;
        double real;
        bool flag;
        const char *text;
        json_t *inner;
        if ((json_get_int(object, "fuzz", key, &integer) == OK) != json_is_integer(value)) abort();
        if ((json_get_real(object, "fuzz", key, &real) == OK) != json_is_number(value)) abort();
        if ((json_get_bool(object, "fuzz", key, &flag) == OK) != json_is_boolean(value)) abort();
        if ((json_get_string(object, "fuzz", key, &text) == OK) != json_is_string(value)) abort();
        if ((json_get_object(object, "fuzz", key, &inner) == OK) != json_is_object(value)) abort();
        if ((json_get_array(object, "fuzz", key, &inner) == OK) != json_is_array(value)) abort();
        if (json_get_int_array(arena, object, "fuzz", key, &list, &n) == OK &&
            n != (int64_t)json_array_size(value))
            abort();
        if ((json_get_int_or(object, "fuzz", key, 7, &integer) == OK) !=
            (json_is_integer(value) || json_is_null(value)))
            abort();
    }
}

static void document(const char *text, size_t n, Arena *arena)
{
    JsonDoc doc, again;
    if (json_doc_parse(&doc, "fuzz", text, n) != OK) return;
    if (json_is_object(doc.root)) get_all(doc.root, arena);
    char *copy;
    size_t copy_bytes;
    if (json_to_text(arena, doc.root, &copy, &copy_bytes) != OK) abort();
    if (json_doc_parse(&again, "fuzz", copy, copy_bytes) != OK) abort();
    if (!json_equal(doc.root, again.root)) abort();
    json_doc_free(&doc);
    json_doc_free(&again);
}

static void lines(const char *text, size_t n)
{
    JsonlReader reader;
    if (jsonl_open_memory(&reader, "fuzz", text, n) != OK) abort();
    int64_t line = 0;
    for (;;) {
        json_t *value;
        Status st = jsonl_next(&reader, &value);
        if (st == OK && !value) break;
        if (reader.line <= line) abort();
        line = reader.line;
    }
    jsonl_close(&reader);
}

/* Any bytes, quoted, are a string again when they are UTF-8. */
static void quoted(const char *text, size_t n, Arena *arena)
{
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    text_append(&buffer, "[", 1);
    json_append_string_n(&buffer, text, n);
    text_append(&buffer, "]", 1);
    json_t *whole = json_stringn(text, n);
    JsonlReader reader;
    json_t *value = NULL;
    if (jsonl_open_memory(&reader, "fuzz", buffer.text, buffer.length) != OK) abort();
    Status st = jsonl_next(&reader, &value);
    if ((whole != NULL) != (st == OK)) abort();
    if (whole && !json_equal(whole, json_array_get(value, 0))) abort();
    jsonl_close(&reader);
    json_decref(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = n ? (const char *)data : "";
    Arena arena;
    arena_init(&arena, "fuzz");
    document(text, n, &arena);
    lines(text, n);
    quoted(text, n, &arena);
    arena_free(&arena);
    return 0;
}
