#include "core/param.h"
#include "base/text.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void paramset_init(ParamSet *set, Arena *arena, DType dtype, DType dtype_grad)
{
    *set = (ParamSet){.arena = arena, .dtype = dtype, .dtype_grad = dtype_grad, .ep_size = 1};
}

Param *paramset_declare(ParamSet *set, const char *name, ParamInit init, int n_dims,
                        const int64_t *dim)
{
    if (set->n == set->capacity) {
        int capacity = set->capacity ? 2 * set->capacity : 64;
        Param **at = ARENA_NEW(set->arena, Param *, capacity);
        if (set->n) memcpy(at, set->at, (size_t)set->n * sizeof *at);
        set->at = at;
        set->capacity = capacity;
    }
    assert(n_dims >= 1 && n_dims <= 4);
    Param *p = ARENA_NEW(set->arena, Param, 1);
    *p = (Param){.name = text_copy(set->arena, name),
                 .init = init,
                 .order = set->next_order++,
                 .trainable = true,
                 .is_matrix = n_dims > 1,
                 .whole_rows = dim[0],
                 .lr_scale = 1,
                 .weight_decay = NAN};
    p->value = (Tensor){NULL, set->dtype, n_dims, {1, 1, 1, 1}};
    for (int i = 0; i < n_dims; i++) p->value.dim[i] = dim[i];
    p->own = p->kept = (ParamRange){0, tensor_size(p->value)};
    set->at[set->n++] = p;
    return p;
}

Param *paramset_declare_experts(ParamSet *set, const char *name, const int64_t dim[3])
{
    const int64_t n = dim[0] / set->ep_size;
    assert(n * set->ep_size == dim[0]);
    Param *p =
        paramset_declare(set, name, PARAM_INIT_NORMAL, 3, (const int64_t[]){n, dim[1], dim[2]});
    p->is_expert = true;
    p->first_row = set->ep_rank * n;
    p->whole_rows = dim[0];
    return p;
}

ParamRange param_shard(const Param *p, int rank, int n_ranks)
{
    int64_t size = tensor_size(p->value), blocks = (size + PARAM_BLOCK - 1) / PARAM_BLOCK;
    /* Both of a tied pair make the same update: the copy is cut as the embedding, which is number 0. */
    int64_t place = (rank + (p->tied_copy ? 0 : p->order)) % n_ranks;
    int64_t begin = blocks * place / n_ranks * PARAM_BLOCK,
            end = blocks * (place + 1) / n_ranks * PARAM_BLOCK;
    return (ParamRange){begin < size ? begin : size, end < size ? end : size};
}

Tensor param_part(Tensor t, ParamRange range)
{
    return tensor1(tensor_at(t, range.begin), t.dtype, range.end - range.begin);
}

static Status layout_master(ParamSet *set, Param *p, bool with_grads)
{
    bool whole = p->kept.end - p->kept.begin == tensor_size(p->value);
    p->master = whole ? p->value : param_part(p->value, p->kept);
    if (set->dtype == set->dtype_grad) return OK;
    p->master.dtype = set->dtype_grad;
    p->master.data = NULL;
    if (!with_grads) return OK;
    return arena_alloc(set->arena, &p->master.data, (size_t)tensor_size(p->master),
                       dtype_bytes(set->dtype_grad));
}

Status paramset_layout(ParamSet *set, bool with_grads)
{
    int64_t total = 0;
    for (int i = 0; i < set->n; i++) {
        Param *p = set->at[i];
        size_t n = (size_t)tensor_size(p->value);
        TRY(arena_alloc(set->arena, &p->value.data, n, dtype_bytes(p->value.dtype)));
        TRY(layout_master(set, p, with_grads));
        if (with_grads && p->trainable) total += tensor_size(p->value);
    }
    set->grads = tensor1(NULL, set->dtype_grad, total);
    if (!with_grads) return OK;
    TRY(arena_alloc(set->arena, &set->grads.data, (size_t)total, dtype_bytes(set->dtype_grad)));
    int64_t offset = 0;
    for (int i = 0; i < set->n; i++) {
        Param *p = set->at[i];
        if (!p->trainable) continue;
        p->grad = p->value;
        p->grad.dtype = set->dtype_grad;
        p->grad.data = tensor_at(set->grads, offset);
        offset += tensor_size(p->value);
    }
    return OK;
}

Tensor param_tensor(const Param *p, ParamTensor what)
{
    switch (what) {
    case PARAM_MASTER: return p->master;
    case PARAM_GRAD: return p->grad;
    default: return p->moment[what - PARAM_MOMENT_0];
    }
}

Tensor param_own(const Param *p, ParamTensor what)
{
    int64_t first = what == PARAM_GRAD ? 0 : p->kept.begin;
    return param_part(param_tensor(p, what),
                      (ParamRange){p->own.begin - first, p->own.end - first});
}

Param param_whole(const Param *p)
{
    Param whole = *p;
    whole.value.dim[0] = p->whole_rows;
    whole.first_row = 0;
    whole.value.data = whole.master.data = whole.grad.data = NULL;
    whole.moment[0].data = whole.moment[1].data = NULL;
    return whole;
}

ParamSlice param_slice(const Param *p, int64_t offset, int64_t count)
{
    return param_slice_in(p, (ParamRange){0, tensor_size(p->value)}, offset, count);
}

ParamSlice param_slice_in(const Param *p, ParamRange range, int64_t offset, int64_t count)
{
    const int64_t row = tensor_size(p->value) / p->value.dim[0];
    const int64_t first = p->first_row * row + range.begin, last = p->first_row * row + range.end;
    int64_t begin = offset > first ? offset : first;
    int64_t end = offset + count < last ? offset + count : last;
    if (begin >= end) return (ParamSlice){0};
    return (ParamSlice){.skip = begin - offset, .n = end - begin, .at = begin - first};
}

Param *paramset_find(const ParamSet *set, const char *name)
{
    for (int i = 0; i < set->n; i++)
        if (strcmp(set->at[i]->name, name) == 0) return set->at[i];
    return NULL;
}

void paramset_zero_grads(ParamSet *set)
{
    if (set->grads.data) memset(set->grads.data, 0, tensor_bytes(set->grads));
}
