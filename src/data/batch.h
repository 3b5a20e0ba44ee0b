#pragma once
/**
 * Rows -> microbatches: targets shifted inside the segments, positions, and the weight of every target with
 * the denominator of the whole global batch in it (numerics.md 1-4).
 *
 *   a label of segment i counts if it is not -100 and not first in the segment; n_i = how many do
 *   w = 1 (token), 1/n_i (sample), 1/sqrt(n_i) (square);  D = sum of w over all rows of the step
 *   target_t = label of t+1 in the same segment, -100 at its end;  weight_t = w/D
 */
#include "core/microbatch.h"
#include "data/row.h"

typedef enum LossReduction { REDUCTION_TOKEN, REDUCTION_SAMPLE, REDUCTION_SQUARE } LossReduction;

typedef struct BatchConfig {
    LossReduction reduction;
    double balancing_alpha; /* 0: off */
    double z_alpha;         /* 0: off */
} BatchConfig;

/** Sums over the rows of one step, all data-parallel ranks; the same numbers on every rank. */
typedef struct BatchTotals {
    double weight;     /* D; 0: nothing to learn in this step */
    int64_t n_rows;    /* rows */
    int64_t n_tokens;  /* ids */
    int64_t n_trained; /* labels that count */
    int64_t n_pairs;   /* causal pairs: sum over segments of n(n+1)/2 */
} BatchTotals;

/** Add up the rows of a step, in their global order. Adds to nothing: out is overwritten. */
void batch_totals(BatchTotals *out, const Row *row, int64_t n_rows, LossReduction reduction);

/**
 * Make microbatch `index` of a step from its row.
 *
 * Numerics: D = 0 (no label counts in the whole step): all weights, balancing_scale and z_scale are 0. Otherwise
 *           balancing_scale = alpha / rows and z_scale = alpha_z / tokens of the step.
 * Owner:    arrays are taken from step_arena, ids and bounds are the row's own; nothing else is allocated.
 */
void batch_build(MicroBatch *out, int index, const Row *row, const BatchConfig *config,
                 const BatchTotals *totals, Arena *step_arena);

/**
 * For a balancing loss of scope global: the rows with the same index on all ranks are counted as one. row, n_rows, dp_size
 * and config as for batch_build_rank, whose result is changed.
 */
void batch_count_together(MicroBatch *own, const Row *row, int64_t n_rows, int dp_size,
                          const BatchConfig *config);

/**
 * The microbatches of one data-parallel rank: row j of the step goes to rank j mod dp_size as its microbatch
 * j div dp_size. n_rows must divide by dp_size. Returns an array of n_rows / dp_size in step_arena and, in
 * *totals, the step's sums.
 */
MicroBatch *batch_build_rank(BatchTotals *totals, const Row *row, int64_t n_rows, int dp_rank,
                             int dp_size, const BatchConfig *config, Arena *step_arena);
