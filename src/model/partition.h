#pragma once
/** Which layers a stage holds. */
#include "model/config.h"

/** A run of layers, with the embedding before it and the final norm and head behind it where it has them. */
typedef struct LayerRange {
    int64_t first, n;
    bool has_embedding, has_head;
} LayerRange;

/**
 * Deal the layers to n_stages stages in order.
 *
 * split [n_stages] gives the counts; NULL: the most expensive stage is as cheap as can be, costs being FLOPs per token at
 * rows of `row_tokens` tokens (attention grows with them), the head counted.
 * Errors: ERR_USAGE naming parallel.layer_split or pp_size, with the numbers (sum wrong, an entry below 1, more stages than layers).
 */
Status partition_layers(LayerRange *out, int n_stages, const int64_t *split,
                        const ModelConfig *config, int64_t row_tokens, Arena *arena) MUST_USE;

/** Forward FLOPs per token of one layer, and of the head. */
double layer_flops(const ModelConfig *config, int64_t layer, int64_t row_tokens);
double head_flops(const ModelConfig *config);
/** Parameters of matrices that a token meets: all but embedding lookups, vectors and unchosen experts. */
double active_matrix_params(const ModelConfig *config);
