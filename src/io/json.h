#pragma once
/**
 * JSON files, on jansson: strict UTF-8, no duplicate keys, integers within int64, at most 2048 levels.
 * Values (json_t) belong to their JsonDoc and are lent by the getters. Iterating an object goes in
 * the order of the file.
 *
 * Getters take an object, the place for messages (usually the file's path) and a key. Their errors are
 * ERR_FORMAT, "PLACE: key KEY: missing" or "PLACE: key KEY: expected an integer (found a string)".
 */
#include "base/text.h"
#include <jansson.h>

typedef struct JsonDoc {
    json_t *root; /* an object or a list */
} JsonDoc;

/** ERR_IO, or ERR_FORMAT "PATH:LINE:COLUMN: reason". */
Status json_doc_read(JsonDoc *doc, const char *path) MUST_USE;
/** The same for text that is in memory; place stands for the path in messages. */
Status json_doc_parse(JsonDoc *doc, const char *place, const char *text, size_t n) MUST_USE;
void json_doc_free(JsonDoc *doc); /* clears it; a zeroed one is fine */

/** "a string", "an integer", …; "nothing" for NULL. */
const char *json_kind_name(const json_t *value);
/** The value as an object, or ERR_FORMAT "PLACE: expected an object (found …)". */
Status json_expect_object(const json_t *value, const char *place) MUST_USE;

/* Required: the key must be there with a value of this kind. A real may be written as an integer. */
Status json_get_int(const json_t *object, const char *place, const char *key,
                    int64_t *out) MUST_USE;
Status json_get_real(const json_t *object, const char *place, const char *key,
                     double *out) MUST_USE;
Status json_get_bool(const json_t *object, const char *place, const char *key, bool *out) MUST_USE;
/** The string is lent and ends at its NUL; one that holds a NUL itself is refused. */
Status json_get_string(const json_t *object, const char *place, const char *key,
                       const char **out) MUST_USE;
Status json_get_object(const json_t *object, const char *place, const char *key,
                       json_t **out) MUST_USE;
Status json_get_array(const json_t *object, const char *place, const char *key,
                      json_t **out) MUST_USE;

/* Optional: the fallback when the key is absent or null; an error when it is of another kind. */
Status json_get_int_or(const json_t *object, const char *place, const char *key, int64_t fallback,
                       int64_t *out) MUST_USE;
Status json_get_real_or(const json_t *object, const char *place, const char *key, double fallback,
                        double *out) MUST_USE;
Status json_get_bool_or(const json_t *object, const char *place, const char *key, bool fallback,
                        bool *out) MUST_USE;
Status json_get_string_or(const json_t *object, const char *place, const char *key,
                          const char *fallback, const char **out) MUST_USE;
Status json_get_object_or_null(const json_t *object, const char *place, const char *key,
                               json_t **out) MUST_USE;
Status json_get_array_or_null(const json_t *object, const char *place, const char *key,
                              json_t **out) MUST_USE;

/** A required list of integers, copied to the arena. */
Status json_get_int_array(Arena *arena, const json_t *object, const char *place, const char *key,
                          int64_t **out, int64_t *n) MUST_USE;

/** Indented by two spaces, UTF-8 kept, reals with 17 digits, a newline at the end. */
Status json_to_text(Arena *arena, const json_t *root, char **text, size_t *n) MUST_USE;
/** json_to_text, written atomically. */
Status json_write_file(const char *path, const json_t *root) MUST_USE;

/** %.17g; null when not finite. */
void json_append_real(TextBuffer *buffer, double value);
/** In quotes; quotes, backslashes and control characters escaped, all other bytes as they are. */
void json_append_string(TextBuffer *buffer, const char *text);
void json_append_string_n(TextBuffer *buffer, const char *text, size_t n);
