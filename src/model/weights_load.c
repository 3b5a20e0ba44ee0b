#include "base/rng.h"
#include "io/convert.h"
#include "model/weights.h"

#include <string.h>

static Status check_shape(const HfTensor *t, const ShardTensor *found, Arena *scratch)
{
    const SafetensorsEntry *e = found->entry;
    bool same = e->n_dims == t->n_dims;
    for (int i = 0; i < t->n_dims && same; i++) same = e->dim[i] == t->dim[i];
    if (same) return OK;
    return FAIL(ERR_FORMAT, "%s: tensor %s: shape %s, expected %s from config.json",
                found->file->path, t->name, shape_text(scratch, e->n_dims, e->dim),
                shape_text(scratch, t->n_dims, t->dim));
}

/* A folder of tied embeddings may store the head too, but it must be the embedding. */
static Status check_alias(const HfTensor *t, const ShardTensor *found, const ShardIndex *index)
{
    const ShardTensor *embedding = shard_index_find(index, t->param);
    if (embedding && embedding->entry->bytes == found->entry->bytes &&
        memcmp(safetensors_bytes(embedding->file, embedding->entry),
               safetensors_bytes(found->file, found->entry), found->entry->bytes) == 0)
        return OK;
    return FAIL(ERR_FORMAT, "%s: tensor %s: differs from %s although tie_word_embeddings is true",
                found->file->path, t->name, t->param);
}

/* Elements of a folder's tensor, rounded to the destination's type; in pieces where that needs two steps. */
static Status read_slice(Tensor to, ParamSlice slice, const ShardTensor *found, Arena *scratch)
{
    enum { PIECE = 1 << 16 };
    DType from = found->entry->dtype;
    if (to.dtype == DTYPE_F32 || to.dtype == DTYPE_F64 || to.dtype == from)
        return shard_tensor_read(found, slice.skip, slice.n, to.dtype, tensor_at(to, slice.at));
    ArenaMark mark = arena_mark(scratch);
    float *piece = ARENA_NEW(scratch, float, PIECE);
    for (int64_t i = 0; i < slice.n; i += PIECE) {
        int64_t n = slice.n - i < PIECE ? slice.n - i : PIECE;
        TRY(shard_tensor_read(found, slice.skip + i, n, DTYPE_F32, piece));
        convert_array(tensor_at(to, slice.at + i), to.dtype, piece, DTYPE_F32, n);
    }
    arena_rewind(scratch, mark);
    return OK;
}

static Status fill_slice(const Param *p, const HfTensor *t, const ShardTensor *found,
                         Arena *scratch)
{
    ParamSlice slice = param_slice(p, t->offset, t->count);
    if (slice.n == 0) return OK;
    TRY(read_slice(p->value, slice, found, scratch));
    slice = param_slice_in(p, p->kept, t->offset, t->count);
    if (tensor_is_null(p->master) || p->master.dtype == p->value.dtype || slice.n == 0) return OK;
    return read_slice(p->master, slice, found, scratch);
}

Status hf_load(const HfLayout *layout, const ShardIndex *index, ParamSet *set, Arena *scratch,
               Log *log)
{
    int n_unlisted = 0;
    const char *first_unlisted = "";
    for (int i = 0; i < layout->n; i++) {
        HfTensor *t = &layout->at[i];
        const ShardTensor *found = shard_index_find(index, t->name);
        if (!found) return FAIL(ERR_FORMAT, "%s: tensor %s: missing", index->path, t->name);
        if (found->unlisted && n_unlisted++ == 0) first_unlisted = t->name;
        if (!t->param) {
            t->source = found;
            t->n_dims = found->entry->n_dims;
            t->count = found->entry->n_elements;
            if (t->n_dims > 4)
                return FAIL(ERR_UNSUPPORTED, "%s: tensor %s: %d dims, expected at most 4",
                            found->file->path, t->name, t->n_dims);
            for (int d = 0; d < t->n_dims; d++) t->dim[d] = found->entry->dim[d];
            continue;
        }
        ArenaMark mark = arena_mark(scratch);
        TRY(check_shape(t, found, scratch));
        arena_rewind(scratch, mark);
    }
    if (n_unlisted)
        log_warning(log,
                    "%s: %d tensors are in a shard but not in the index; they are used, and listed "
                    "on export (first: %s)",
                    index->path, n_unlisted, first_unlisted);
    for (int i = 0; i < layout->n; i++) {
        const HfTensor *t = &layout->at[i];
        if (!t->param) continue;
        const ShardTensor *found = shard_index_find(index, t->name);
        if (t->alias) {
            TRY(check_alias(t, found, index));
            continue;
        }
        bool embedding = strcmp(t->param, "model.embed_tokens.weight") == 0;
        for (int j = 0; j < set->n; j++) {
            Param *p = set->at[j];
            if (p->tied_copy ? embedding : strcmp(p->name, t->param) == 0)
                TRY(fill_slice(p, t, found, scratch));
        }
    }
    return OK;
}

/* Written as f32 in the parameter's shape: another is no moment of it, even if it can be read. */
static Status check_moment(const HfTensor *t, const ShardTensor *found, const ShardIndex *index,
                           Arena *scratch)
{
    if (!found) return FAIL(ERR_FORMAT, "%s: tensor %s: missing", index->path, t->name);
    if (found->entry->dtype != DTYPE_F32)
        return FAIL(ERR_FORMAT, "%s: tensor %s: dtype %s, expected F32 of a moment",
                    found->file->path, t->name, found->entry->dtype_name);
    return check_shape(t, found, scratch);
}

Status hf_load_moments(const HfLayout *layout, const ShardIndex *index, ParamSet *set,
                       ParamTensor what, Arena *scratch)
{
    for (int i = 0; i < layout->n; i++) {
        const HfTensor *t = &layout->at[i];
        if (!t->param || t->alias) continue;
        bool embedding = strcmp(t->param, "model.embed_tokens.weight") == 0;
        for (int j = 0; j < set->n; j++) {
            Param *p = set->at[j];
            if (p->tied_copy ? !embedding : strcmp(p->name, t->param) != 0) continue;
            Tensor moment = param_tensor(p, what);
            if (tensor_is_null(moment)) continue;
            const ShardTensor *found = shard_index_find(index, t->name);
            TRY(check_moment(t, found, index, scratch));
            ParamSlice s = param_slice_in(p, p->kept, t->offset, t->count);
            if (s.n)
                TRY(shard_tensor_read(found, s.skip, s.n, moment.dtype, tensor_at(moment, s.at)));
        }
    }
    return OK;
}

static void store(Tensor t, int64_t element, double x)
{
    switch (t.dtype) {
    case DTYPE_F64: ((double *)t.data)[element] = x; break;
    case DTYPE_BF16: ((uint16_t *)t.data)[element] = f32_to_bf16((float)x); break;
    default: ((float *)t.data)[element] = (float)x;
    }
}

void hf_init(const ModelConfig *config, ParamSet *set, uint64_t seed, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    for (int i = 0; i < set->n; i++) {
        /* One parameter as a set of its own, so that the layout below has just its slices. */
        Param *p = set->at[i], own = param_whole(p), *one = &own;
        if (own.tied_copy) {
            own.tied_copy = false;
            own.name = "model.embed_tokens.weight";
        }
        ParamSet single = {.arena = scratch, .at = &one, .n = 1};
        HfLayout *layout;
        if (hf_layout_create(&layout, config, &single, NULL, DTYPE_F32, false, scratch) != OK)
            die("%s", status_message());
        for (int k = 0; k < layout->n; k++) {
            const HfTensor *t = &layout->at[k];
            uint64_t key = rng_key(seed, t->name);
            ParamSlice slice = param_slice(p, t->offset, t->count);
            for (int64_t e = 0; e < slice.n; e++) {
                double x = p->init == PARAM_INIT_NORMAL
                               ? config->init_range * rng_normal(key, (uint64_t)(slice.skip + e))
                           : p->init == PARAM_INIT_ONES ? 1
                                                        : 0;
                int64_t at = slice.at + e;
                store(p->value, at, x);
                if (!tensor_is_null(p->master) && at >= p->kept.begin && at < p->kept.end)
                    store(p->master, at - p->kept.begin, x);
            }
        }
        arena_rewind(scratch, mark);
    }
}
