#include "data/token_store.h"

#include <stdlib.h>
#include <string.h>

void token_store_init(TokenStore *store)
{
    *store = (TokenStore){0};
}

void token_store_free(TokenStore *store)
{
    void *const arrays[] = {store->start, store->cu_start, store->fixed, store->cu,
                            store->id,    store->trained,  store->label};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) free(arrays[i]);
    token_store_init(store);
}

/** Make room for n elements of `size` bytes in the array behind `at`. */
static Status resize(void *at, int64_t n, size_t size)
{
    void *old;
    memcpy(&old, at, sizeof old);
    void *grown = (uint64_t)n > SIZE_MAX / size ? NULL : realloc(old, (size_t)n * size);
    if (!grown) return FAIL(ERR_MEMORY, "out of memory (%lld tokens of data)", (long long)n);
    memcpy(at, &grown, sizeof grown);
    return OK;
}

static int64_t grown(int64_t capacity, int64_t needed)
{
    int64_t larger = capacity + capacity / 2 + 64;
    return larger > needed ? larger : needed;
}

/** Room for what is to be added; the counts do not change. */
static Status reserve(TokenStore *store, int64_t items, int64_t tokens, int64_t bounds)
{
    int64_t needed = store->n_items + items;
    if (needed > store->item_capacity || !store->start) {
        int64_t capacity = grown(store->item_capacity, needed);
        TRY(resize(&store->start, capacity + 1, sizeof *store->start));
        TRY(resize(&store->cu_start, capacity + 1, sizeof *store->cu_start));
        TRY(resize(&store->fixed, capacity, sizeof *store->fixed));
        store->start[store->n_items] = store->n_tokens;
        store->cu_start[store->n_items] = store->n_bounds;
        store->item_capacity = capacity;
    }
    needed = store->n_tokens + tokens;
    if (needed > store->token_capacity) {
        int64_t capacity = grown(store->token_capacity, needed);
        TRY(resize(&store->id, capacity, sizeof *store->id));
        TRY(resize(&store->trained, capacity, sizeof *store->trained));
        if (store->label) TRY(resize(&store->label, capacity, sizeof *store->label));
        store->token_capacity = capacity;
    }
    needed = store->n_bounds + bounds;
    if (needed > store->bound_capacity) {
        int64_t capacity = grown(store->bound_capacity, needed);
        TRY(resize(&store->cu, capacity, sizeof *store->cu));
        store->bound_capacity = capacity;
    }
    return OK;
}

/** From now on every token has a label of its own. */
static Status spell_labels(TokenStore *store)
{
    if (store->label) return OK;
    TRY(resize(&store->label, store->token_capacity, sizeof *store->label));
    for (int64_t t = 0; t < store->n_tokens; t++)
        store->label[t] = store->trained[t] ? store->id[t] : -100;
    return OK;
}

/** Copy a row's tokens behind the last one; room is there. */
static Status copy_tokens(TokenStore *store, const Row *row)
{
    if (row->label_t) TRY(spell_labels(store));
    size_t n = (size_t)row->n_tokens;
    memcpy(store->id + store->n_tokens, row->id_t, n * sizeof *store->id);
    memcpy(store->trained + store->n_tokens, row->trained_t, n);
    if (store->label)
        for (int64_t t = 0; t < row->n_tokens; t++)
            store->label[store->n_tokens + t] = row_label(row, t);
    store->n_tokens += row->n_tokens;
    return OK;
}

Status token_store_add(TokenStore *store, const Row *row, bool fixed)
{
    TRY(reserve(store, 1, row->n_tokens, row->n_segments + 1));
    TRY(copy_tokens(store, row));
    memcpy(store->cu + store->n_bounds, row->cu_seqlens,
           ((size_t)row->n_segments + 1) * sizeof *store->cu);
    store->fixed[store->n_items] = fixed;
    store->n_bounds += row->n_segments + 1;
    store->n_items++;
    store->start[store->n_items] = store->n_tokens;
    store->cu_start[store->n_items] = store->n_bounds;
    return OK;
}

Status token_store_extend(TokenStore *store, const Row *row)
{
    TRY(reserve(store, 0, row->n_tokens, 1));
    TRY(copy_tokens(store, row));
    store->cu[store->n_bounds] = store->cu[store->n_bounds - 1] + (int32_t)row->n_tokens;
    store->n_bounds++;
    store->start[store->n_items] = store->n_tokens;
    store->cu_start[store->n_items] = store->n_bounds;
    return OK;
}

Status token_store_append(TokenStore *store, const TokenStore *from)
{
    TRY(reserve(store, from->n_items, from->n_tokens, from->n_bounds));
    for (int64_t i = 0; i < from->n_items; i++) {
        Row row = token_store_row(from, i);
        TRY(token_store_add(store, &row, from->fixed[i]));
    }
    return OK;
}

Row token_store_row(const TokenStore *store, int64_t i)
{
    int64_t first = store->start[i];
    return (Row){.n_tokens = store->start[i + 1] - first,
                 .id_t = store->id + first,
                 .trained_t = store->trained + first,
                 .label_t = store->label ? store->label + first : NULL,
                 .n_segments = (int)(store->cu_start[i + 1] - store->cu_start[i] - 1),
                 .cu_seqlens = store->cu + store->cu_start[i]};
}
