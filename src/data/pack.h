#pragma once
/**
 * Tokenised samples -> rows of at most max_length tokens, one segment per sample (or piece of one).
 *
 *   none  one sample a row, in the order given.
 *   soft  the samples in the order given (dataset.c shuffles it by the seed) fill rows greedily: a sample that
 *         does not fit in what is left of the current row starts the next one; none is cut.
 *   hard  the samples in the order given fill every row but the last to max_length; a sample that does not
 *         fit is cut there and goes on, as a segment of its own, in the next row.
 *
 * Before that none and soft cut a sample longer than max_length to max_length (the rest is dropped and the
 * sample counted). Fixed items (ids rows) pass whole, unpacked, in the order given, after all packed rows.
 */
#include "data/token_store.h"

typedef enum PackKind { PACK_SOFT, PACK_HARD, PACK_NONE, PACK_COUNT } PackKind;
extern const char *const pack_names[]; /* as in the configuration; ends with NULL */

/**
 * rows = the packed items order[0 ... n_order) of samples (an item may come more than once).
 *
 * Owner:  rows is initialised by this call; the caller frees it (also after an error: it is then empty).
 * Errors: ERR_MEMORY.
 */
Status pack_rows(TokenStore *rows, int64_t *n_cut, const TokenStore *samples, const int64_t *order,
                 int64_t n_order, PackKind kind, int64_t max_length) MUST_USE;
