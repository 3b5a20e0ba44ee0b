#include "data/batch.h"

#include <assert.h>
#include <math.h>

/** Labels of segment i that count: the first has nothing before it to be predicted from. */
static int64_t count_trained(const Row *row, int i)
{
    int64_t n = 0;
    for (int32_t t = row->cu_seqlens[i] + 1; t < row->cu_seqlens[i + 1]; t++)
        n += row_label(row, t) != LABEL_NONE;
    return n;
}

/** w of each of n labels of one sample, and their sum (in closed form: exact for token and sample). */
static double weight_each(LossReduction reduction, int64_t n)
{
    switch (reduction) {
    case REDUCTION_SAMPLE: return 1.0 / (double)n;
    case REDUCTION_SQUARE: return 1.0 / sqrt((double)n);
    default: return 1.0;
    }
}

static double weight_sum(LossReduction reduction, int64_t n)
{
    switch (reduction) {
    case REDUCTION_SAMPLE: return n > 0 ? 1.0 : 0.0;
    case REDUCTION_SQUARE: return sqrt((double)n);
    default: return (double)n;
    }
}

void batch_totals(BatchTotals *out, const Row *row, int64_t n_rows, LossReduction reduction)
{
    BatchTotals sum = {.n_rows = n_rows};
    for (int64_t j = 0; j < n_rows; j++) {
        sum.n_tokens += row[j].n_tokens;
        for (int i = 0; i < row[j].n_segments; i++) {
            int64_t n = row[j].cu_seqlens[i + 1] - row[j].cu_seqlens[i];
            int64_t n_trained = count_trained(&row[j], i);
            sum.n_pairs += n * (n + 1) / 2;
            sum.n_trained += n_trained;
            sum.weight += weight_sum(reduction, n_trained);
        }
    }
    *out = sum;
}

void batch_build(MicroBatch *out, int index, const Row *row, const BatchConfig *config,
                 const BatchTotals *totals, Arena *step_arena)
{
    size_t n = (size_t)row->n_tokens;
    int32_t *position = arena_take(step_arena, size_mul(n, sizeof *position));
    int32_t *target = arena_take(step_arena, size_mul(n, sizeof *target));
    double *weight = arena_take(step_arena, size_mul(n, sizeof *weight));
    bool learns = totals->weight > 0;
    int64_t n_trained = 0;
    for (int i = 0; i < row->n_segments; i++) {
        int32_t first = row->cu_seqlens[i], end = row->cu_seqlens[i + 1];
        int64_t n_i = count_trained(row, i);
        double w = n_i > 0 && learns ? weight_each(config->reduction, n_i) / totals->weight : 0.0;
        for (int32_t t = first; t < end; t++) {
            position[t] = t - first;
            target[t] = t + 1 < end ? row_label(row, t + 1) : LABEL_NONE;
            weight[t] = target[t] == LABEL_NONE ? 0.0 : w;
        }
        n_trained += n_i;
    }
    *out = (MicroBatch){
        .index = index,
        .n_tokens = row->n_tokens,
        .n_segments = row->n_segments,
        .cu_seqlens = row->cu_seqlens,
        .id_t = row->id_t,
        .position_t = position,
        .target_t = target,
        .weight_t = weight,
        .n_trained = n_trained,
        .scope_tokens = row->n_tokens,
        .balancing_scale = learns ? config->balancing_alpha / (double)totals->n_rows : 0.0,
        .z_scale = learns ? config->z_alpha / (double)totals->n_tokens : 0.0,
    };
}

MicroBatch *batch_build_rank(BatchTotals *totals, const Row *row, int64_t n_rows, int dp_rank,
                             int dp_size, const BatchConfig *config, Arena *step_arena)
{
    assert(n_rows % dp_size == 0 && dp_rank >= 0 && dp_rank < dp_size);
    batch_totals(totals, row, n_rows, config->reduction);
    int n_own = (int)(n_rows / dp_size);
    MicroBatch *own = ARENA_NEW(step_arena, MicroBatch, n_own);
    for (int m = 0; m < n_own; m++)
        batch_build(&own[m], m, &row[(int64_t)m * dp_size + dp_rank], config, totals, step_arena);
    return own;
}

void batch_count_together(MicroBatch *own, const Row *row, int64_t n_rows, int dp_size,
                          const BatchConfig *config)
{
    int64_t n_own = n_rows / dp_size;
    for (int64_t m = 0; m < n_own; m++) {
        own[m].scope_tokens = 0;
        for (int r = 0; r < dp_size; r++) own[m].scope_tokens += row[m * dp_size + r].n_tokens;
        if (own[m].balancing_scale != 0)
            own[m].balancing_scale = config->balancing_alpha / (double)n_own;
    }
}
