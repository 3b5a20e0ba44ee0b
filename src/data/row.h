#pragma once
/**
 * A row: the token ids of one or more samples one after the other, as one microbatch will hold them.
 * Rows of ids are the lowest entry of data: no tokenizer, no packing. This file reads the lines of
 * `format: ids` and of probe's batch file:
 *
 *   {"input_ids": [...], "labels": [...], "cu_seqlens": [0, ..., T]}
 *
 * labels are as HuggingFace has them: same length, not shifted, -100 = not trained; without labels every
 * token is trained; without cu_seqlens the row is one sample; other keys are ignored.
 */
#include "base/arena.h"
#include <jansson.h>

typedef struct Row {
    int64_t n_tokens;    /* T >= 1 */
    const int32_t *id_t; /* [T] each in [0, vocab_size) */
    const uint8_t
        *trained_t; /* [T] 0/1: whether the label of t counts, first in its segment or not */
    const int32_t *label_t;    /* [T] not shifted, -100: none. NULL: id where trained, else -100 */
    int n_segments;            /* samples, >= 1 */
    const int32_t *cu_seqlens; /* [n_segments + 1]: 0 ... T, strictly increasing */
} Row;

/** Label of position t as HuggingFace has it (not shifted), -100: not trained. */
static inline int32_t row_label(const Row *row, int64_t t)
{
    if (row->label_t) return row->label_t[t];
    return row->trained_t[t] ? row->id_t[t] : -100;
}

/**
 * Read one line of ids; place is its FILE:LINE, for messages.
 *
 * Owner:  arena holds what the row points to.
 * Errors: ERR_FORMAT "FILE:LINE: ..." when the line is not an object; input_ids is missing, empty or
 *         not integers; an id is outside [0, vocab_size); labels have another length or lie outside
 *         (-100 aside); cu_seqlens is not 0 ... T strictly increasing.
 */
Status row_parse(Row *out, const json_t *line, const char *place, int64_t vocab_size,
                 Arena *arena) MUST_USE;

/**
 * Read a whole file of such lines (probe's --batch). Blank lines are skipped.
 *
 * Owner:  arena holds the rows.
 * Errors: as row_parse; ERR_FORMAT when there is no row at all; ERR_IO.
 */
Status row_read_file(Row **out, int64_t *n_rows, const char *path, int64_t vocab_size,
                     Arena *arena) MUST_USE;
