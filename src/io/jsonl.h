#pragma once
/**
 * JSON Lines, one value a line, over a mapped file: lines of any length, LF or CRLF, blank lines
 * skipped, a last line without newline, a UTF-8 byte order mark at the start skipped.
 *
 *   TRY(jsonl_open(&reader, path));
 *   while ((st = jsonl_next(&reader, &value)) == OK && value) …  value and reader.line …
 *   jsonl_close(&reader);
 */
#include "io/file.h"
#include "io/json.h"

typedef struct JsonlReader {
    char *place;       /* "FILE:LINE" of the current line, for messages */
    int64_t line;      /* its number, from 1, blank lines counted; 0 before the first */
    const char *text;  /* its bytes, without the line's end */
    size_t text_bytes; /* their number */
    json_t *value;     /* the value parsed from it, owned here until the next line; NULL: none */
    MappedFile map;
    bool mapped;       /* false: the bytes are the caller's */
    size_t at;         /* where the next line starts */
    size_t path_bytes; /* length of FILE in place */
} JsonlReader;

Status jsonl_open(JsonlReader *reader, const char *path) MUST_USE;
/** Lines of a text in memory, which must outlive the reader; path is for messages. */
Status jsonl_open_memory(JsonlReader *reader, const char *path, const char *text,
                         size_t n) MUST_USE;

/**
 * The next line's value: an object or a list, lent until the next call; NULL at the end.
 * Strings may hold NUL characters: use json_string_length.
 * ERR_FORMAT: "FILE:LINE: column C: reason"; the reader has then passed the line, and the next call
 * reads the one after it.
 */
Status jsonl_next(JsonlReader *reader, json_t **out) MUST_USE;
void jsonl_close(JsonlReader *reader); /* clears it */
