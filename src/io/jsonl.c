#include "io/jsonl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE_EXTRA = 24 }; /* ":", 20 digits, NUL */

static void set_place(JsonlReader *reader)
{
    snprintf(reader->place + reader->path_bytes, PLACE_EXTRA, ":%" PRId64, reader->line);
}

Status jsonl_open_memory(JsonlReader *reader, const char *path, const char *text, size_t n)
{
    size_t path_bytes = strlen(path);
    char *place = malloc(path_bytes + PLACE_EXTRA);
    if (!place) return FAIL(ERR_MEMORY, "%s: out of memory", path);
    memcpy(place, path, path_bytes + 1);
    size_t at = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    *reader = (JsonlReader){.place = place,
                            .path_bytes = path_bytes,
                            .map = {.data = (const unsigned char *)text, .bytes = n},
                            .at = at};
    return OK;
}

Status jsonl_open(JsonlReader *reader, const char *path)
{
    MappedFile map;
    TRY(file_map(&map, path));
    Status st = jsonl_open_memory(reader, path, (const char *)map.data, map.bytes);
    if (st != OK) {
        file_unmap(&map);
        return st;
    }
    reader->mapped = true;
    return OK;
}

void jsonl_close(JsonlReader *reader)
{
    json_decref(reader->value);
    if (reader->mapped) file_unmap(&reader->map);
    free(reader->place);
    *reader = (JsonlReader){0};
}

static bool is_blank(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    return true;
}

/* Moves to the next line that is not blank; false at the end. */
static bool next_line(JsonlReader *reader)
{
    while (reader->at < reader->map.bytes) {
        const char *start = (const char *)reader->map.data + reader->at;
        size_t left = reader->map.bytes - reader->at;
        const char *newline = memchr(start, '\n', left);
        size_t n = newline ? (size_t)(newline - start) : left;
        reader->at += newline ? n + 1 : n;
        reader->line++;
        if (n > 0 && start[n - 1] == '\r') n--;
        if (is_blank(start, n)) continue;
        reader->text = start;
        reader->text_bytes = n;
        return true;
    }
    return false;
}

Status jsonl_next(JsonlReader *reader, json_t **out)
{
    json_decref(reader->value);
    reader->value = NULL;
    if (!next_line(reader)) {
        reader->text = NULL;
        reader->text_bytes = 0;
        *out = NULL;
        return OK;
    }
    set_place(reader);
    json_error_t error;
    reader->value = json_loadb(reader->text, reader->text_bytes,
                               JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!reader->value)
        return FAIL(ERR_FORMAT, "%s: column %d: %s", reader->place, error.column, error.text);
    *out = reader->value;
    return OK;
}
