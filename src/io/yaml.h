#pragma once
/**
 * Configuration text. One YAML document becomes a tree of jansson values; where each key stood is kept
 * for error messages. The part of YAML that means the same to everybody is read, the rest is refused
 * with its line: anchors, aliases, tags, merge keys, keys that are not text, duplicate keys, several
 * documents, .inf and .nan, integers beyond 64 bits. Plain scalars follow the YAML 1.2 core schema:
 * null ~ true false, 12 0x1f 0o17, 1.5 1e-4 .5; everything else, and all that is quoted, is text.
 * (libyaml itself has a function yaml_free; our names avoid its prefix where they would meet.)
 */
#include "base/text.h"
#include <jansson.h>

typedef struct YamlPlace {
    const char *path; /* "train.steps", "data.train[2].path" */
    int line, column; /* from 1 */
} YamlPlace;

typedef struct YamlDoc {
    const char *name; /* of the file, or what stands for it; in the arena */
    json_t *root;     /* owned; json null for an empty document */
    YamlPlace *places;
    int n_places, capacity;
} YamlDoc;

/** Errors: ERR_IO; ERR_FORMAT "FILE:LINE:COLUMN: …". The tree must be given to yaml_doc_free, the rest is in the arena. */
Status yaml_doc_read(YamlDoc *out, const char *path, Arena *arena) MUST_USE;
/** The same from memory; name stands for the file in messages. */
Status yaml_doc_parse(YamlDoc *out, const char *name, const char *text, size_t bytes,
                      Arena *arena) MUST_USE;
void yaml_doc_free(YamlDoc *yaml);

/** "FILE:LINE:COLUMN" of a key or item; just the file's name when the path is not in it. */
const char *yaml_doc_place(const YamlDoc *yaml, const char *path, Arena *arena);

/** What a plain (unquoted) scalar means: a new reference; NULL: a number that is refused, *why says why. */
json_t *yaml_plain(const char *text, size_t bytes, const char **why);

/** Append text as a scalar that reads back as this very text, quoted where needed, in any context. */
void yaml_append_text(TextBuffer *out, const char *text);
/** Append a number that reads back as this very real number: the shortest digits, never like an integer. */
void yaml_append_real(TextBuffer *out, double value);
