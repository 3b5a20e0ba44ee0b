#include "data/pack.h"

const char *const pack_names[] = {
    [PACK_SOFT] = "soft", [PACK_HARD] = "hard", [PACK_NONE] = "none", NULL};

/** n tokens of a sample from `begin` on, as one segment; cu is the caller's, for its two bounds. */
static Row piece_of(const Row *sample, int64_t begin, int64_t n, int32_t cu[2])
{
    cu[0] = 0;
    cu[1] = (int32_t)n;
    return (Row){.n_tokens = n,
                 .id_t = sample->id_t + begin,
                 .trained_t = sample->trained_t + begin,
                 .label_t = sample->label_t ? sample->label_t + begin : NULL,
                 .n_segments = 1,
                 .cu_seqlens = cu};
}

/** One sample into the row that is being filled (*used tokens of it are) and those after it. */
static Status pack_sample(TokenStore *rows, int64_t *used, const Row *sample, PackKind kind,
                          int64_t max_length)
{
    int64_t n = sample->n_tokens, room = max_length - *used;
    if (kind != PACK_HARD && n > max_length) n = max_length;
    bool next_row = *used == 0 || kind == PACK_NONE || room == 0 || (kind == PACK_SOFT && n > room);
    for (int64_t begin = 0; begin < n; next_row = true) {
        if (next_row) *used = 0;
        int64_t left = max_length - *used, take = n - begin < left ? n - begin : left;
        int32_t cu[2];
        Row piece = piece_of(sample, begin, take, cu);
        TRY(next_row ? token_store_add(rows, &piece, false) : token_store_extend(rows, &piece));
        *used += take;
        begin += take;
    }
    return OK;
}

static Status pack_all(TokenStore *rows, int64_t *n_cut, const TokenStore *samples,
                       const int64_t *order, int64_t n_order, PackKind kind, int64_t max_length)
{
    int64_t used = 0, cut = 0;
    for (int64_t i = 0; i < n_order; i++) {
        if (samples->fixed[order[i]]) continue;
        Row sample = token_store_row(samples, order[i]);
        cut += kind != PACK_HARD && sample.n_tokens > max_length;
        TRY(pack_sample(rows, &used, &sample, kind, max_length));
    }
    for (int64_t i = 0; i < n_order; i++) {
        if (!samples->fixed[order[i]]) continue;
        Row row = token_store_row(samples, order[i]);
        TRY(token_store_add(rows, &row, true));
    }
    *n_cut = cut;
    return OK;
}

Status pack_rows(TokenStore *rows, int64_t *n_cut, const TokenStore *samples, const int64_t *order,
                 int64_t n_order, PackKind kind, int64_t max_length)
{
    token_store_init(rows);
    Status st = pack_all(rows, n_cut, samples, order, n_order, kind, max_length);
    if (st != OK) token_store_free(rows);
    return st;
}
