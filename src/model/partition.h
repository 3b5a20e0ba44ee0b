#pragma once
/** Which layers a stage holds. */
#include "model/stage_cost.h"

typedef struct PartitionRequest {
    int n_stages;
    const int *rank_of_stage; /* [n_stages]; NULL: each has a rank of its own */
    const int64_t *split;     /* [n_stages] layers of each; NULL: balanced by cost */
    CostModel cost;
} PartitionRequest;

/**
 * Deal the layers to stages in order, at least one to each.
 *
 * Balanced: the busiest rank has as little to do as can be, and then the costliest stage. Exactly so where each stage has a
 * rank of its own; else found by moving layers from stage to stage as long as that helps.
 *
 * Shapes: out [n_stages]
 * Errors: ERR_USAGE naming parallel.layer_split or pp_size, with the numbers (sum wrong, an entry below 1, more stages than layers).
 */
Status partition_layers(LayerRange *out, const PartitionRequest *request, Arena *arena) MUST_USE;
