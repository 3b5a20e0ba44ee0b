#pragma once
/** What the fuzzers of JSON documents share. */
#include "fuzz_target.h"
#include "io/json.h"

#include <string.h>

#define PLACE "fuzz.json"

/** Every refusal says where. */
static inline void must_name_place(Status status)
{
    must(status == OK || strstr(status_message(), PLACE) != NULL);
}

/** Hand the document to `use` if the bytes are one. Returns 0. */
static inline int fuzz_document(const uint8_t *data, size_t n, void (*use)(const json_t *, Arena *))
{
    Arena arena;
    JsonDoc doc;
    arena_init(&arena, "fuzz");
    if (json_doc_parse(&doc, PLACE, n ? (const char *)data : "", n) == OK) {
        use(doc.root, &arena);
        json_doc_free(&doc);
    }
    arena_free(&arena);
    return 0;
}
