#pragma once
/** What `inspect` found out about a folder or file, and the two ways to print it. */
#include "base/text.h"
#include "io/safetensors_index.h"

typedef struct InspectTensor {
    const ShardTensor *tensor; /* lent by the index */
    const char *file;          /* name without folder */
    char *hash;                /* XXH3-128 of the bytes, hex; NULL: not asked */
    int64_t n_bad;             /* elements that are not finite; -1: not looked at */
} InspectTensor;

typedef struct Messages {
    const char **at;
    int n, capacity;
} Messages;

typedef struct Inspection {
    const char *path, *kind; /* "model", "checkpoint" or "safetensors" */
    Arena *arena;
    ShardIndex *index;     /* NULL: could not be opened */
    InspectTensor *tensor; /* [n], sorted by name */
    int n;
    const char *model_type; /* NULL: unknown */
    int64_t total, active;  /* parameters, a tied pair once; -1: unknown */
    bool verified;          /* the data was read */
    int64_t step;           /* of a checkpoint; -1: none */
    Messages errors;        /* the thing is broken */
    Messages warnings;      /* it can be used, but look */
} Inspection;

/** Append the tables for people: repeated layers and experts are one line. */
void inspect_print(TextBuffer *out, const Inspection *found);
/**
 * Append one JSON object: path, kind, valid, errors, warnings, model_type, step, parameters {total, active},
 * bytes, files, tensors [{name, dtype, shape, bytes, file, hash, nonfinite}]; null where unknown.
 */
void inspect_print_json(TextBuffer *out, const Inspection *found);
