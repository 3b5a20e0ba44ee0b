#include "nn/dispatch.h"

#include <assert.h>
#include <string.h>

void dispatch_sort(Dispatch *d, Run *run, Tensor id_tk, int64_t n_experts)
{
    const int32_t *id = id_tk.data;
    const int64_t top_k = id_tk.dim[1];
    ArenaMark mark = arena_mark(run->scratch);
    int32_t *next_e = arena_take(run->scratch, (size_t)n_experts * sizeof *next_e);
    assert(tensor_size(id_tk) <= INT32_MAX);
    d->n_rows = tensor_size(id_tk);
    memset(d->offset_e, 0, (size_t)(n_experts + 1) * sizeof *d->offset_e);
    for (int64_t pair = 0; pair < d->n_rows; pair++) d->offset_e[id[pair] + 1]++;
    for (int64_t e = 0; e < n_experts; e++) d->offset_e[e + 1] += d->offset_e[e];
    memcpy(next_e, d->offset_e, (size_t)n_experts * sizeof *next_e);
    for (int64_t pair = 0; pair < d->n_rows; pair++) {
        int32_t row = next_e[id[pair]]++;
        d->row_tk[pair] = row;
        d->pair_r[row] = (int32_t)pair;
        d->token_r[row] = (int32_t)(pair / top_k);
    }
    arena_rewind(run->scratch, mark);
}
