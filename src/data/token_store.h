#pragma once
/**
 * Many token sequences in few flat arrays: the tokenised samples of a file, and later the packed rows. About
 * five bytes a token (nine when ids rows bring labels that are not their ids).
 */
#include "data/row.h"

typedef struct TokenStore {
    int64_t n_items;   /* samples or rows */
    int64_t n_tokens;  /* of all items */
    int64_t n_bounds;  /* of all items: segments + 1 each */
    int64_t *start;    /* [n_items + 1] first token of item i; start[n_items] = n_tokens */
    int64_t *cu_start; /* [n_items + 1] first bound of item i */
    uint8_t *fixed;    /* [n_items] 1: an ids row, a row of its own that is never cut or packed */
    int32_t *cu;       /* [n_bounds] cu_seqlens of the items, each from 0 */
    int32_t *id;       /* [n_tokens] */
    uint8_t *trained;  /* [n_tokens] 0/1 */
    int32_t *label;    /* [n_tokens] as Row.label_t; NULL: id where trained */
    int64_t item_capacity, token_capacity, bound_capacity;
} TokenStore;

void token_store_init(TokenStore *store); /* empty */
void token_store_free(TokenStore *store); /* empty again */

/** Append a copy of a row. ERR_MEMORY; the store is then unchanged. */
Status token_store_add(TokenStore *store, const Row *row, bool fixed) MUST_USE;
/**
 * Append a copy of a row of one segment to the last item (there is one), as a further segment of it. The item
 * stays below 2^31 tokens.
 */
Status token_store_extend(TokenStore *store, const Row *row) MUST_USE;
/** Append copies of all items of another store. */
Status token_store_append(TokenStore *store, const TokenStore *from) MUST_USE;
/** Lend item i. */
Row token_store_row(const TokenStore *store, int64_t i);
