#include "nn/dispatch.h"

#include <assert.h>
#include <string.h>

void dispatch_sort(Dispatch *d, Run *run, Tensor id_nk, int64_t first, int64_t n_experts)
{
    const int32_t *id = id_nk.data;
    const int64_t top_k = id_nk.dim[1], n_pairs = tensor_size(id_nk);
    ArenaMark mark = arena_mark(run->scratch);
    int32_t *next_e = arena_take(run->scratch, (size_t)n_experts * sizeof *next_e);
    assert(n_pairs <= INT32_MAX);
    memset(d->offset_e, 0, (size_t)(n_experts + 1) * sizeof *d->offset_e);
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        int64_t e = id[pair] - first;
        if (e >= 0 && e < n_experts) d->offset_e[e + 1]++;
    }
    for (int64_t e = 0; e < n_experts; e++) d->offset_e[e + 1] += d->offset_e[e];
    d->n_rows = d->offset_e[n_experts];
    memcpy(next_e, d->offset_e, (size_t)n_experts * sizeof *next_e);
    for (int64_t pair = 0; pair < n_pairs; pair++) {
        int64_t e = id[pair] - first;
        d->row_nk[pair] = -1;
        if (e < 0 || e >= n_experts) continue;
        int32_t row = next_e[e]++;
        d->row_nk[pair] = row;
        d->pair_r[row] = (int32_t)pair;
        d->token_r[row] = (int32_t)(pair / top_k);
    }
    arena_rewind(run->scratch, mark);
}
