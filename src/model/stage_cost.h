#pragma once
/** What layers cost in time, from their shapes: for dealing them to ranks and for the bubble to expect. */
#include "core/tensor.h"
#include "model/config.h"

/** A run of layers, with the embedding before it and the final norm and head behind it where it has them. */
typedef struct LayerRange {
    int64_t first, n;
    bool has_embedding, has_head;
} LayerRange;

/** Layers below this are recomputed (numerics.md 9): floor(n_layers ratio), but never the last one. */
int64_t n_recomputed_layers(const ModelConfig *config, double ratio);

/** What the cost of a microbatch depends on. */
typedef struct CostModel {
    const ModelConfig *config;
    int64_t row_tokens; /* T of a typical row */
    DType dtype;        /* of activations and working weights */
    double recompute_ratio;
} CostModel;

/**
 * Time of one microbatch, in units of one flop:  flops + FLOPS_PER_BYTE bytes, where a core does some 10 f32 or 40 bf16
 * flops while memory gives it a byte.
 *
 *   flops   F: 2 T parameters of matrices that a token meets + attention; I: the same, attention 2.5 times, and F again when
 *           recomputed; W: the matrices alone. The head does all three in F (numerics.md 2)
 *   bytes   matrices once a pass (of experts those that T tokens meet, E (1 - (1 - K/E)^T) on average), in W their f32 gradient
 *           read and written instead; inputs and outputs of products and rows moved by norms, sums and dispatch, twice in I
 */
typedef struct StageCost {
    double f, i, w;
} StageCost;
/** Of a run of layers, which may be empty, and of its ends. */
StageCost range_cost(const CostModel *model, LayerRange range);
static inline double stage_cost_sum(StageCost cost)
{
    return cost.f + cost.i + cost.w;
}

/** Parameters of matrices that a token meets: all but embedding lookups, vectors and unchosen experts. */
double active_matrix_params(const ModelConfig *config);
