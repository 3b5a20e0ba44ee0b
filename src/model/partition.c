#include "model/partition.h"

#include <math.h>

static double attention_params(const ModelConfig *c)
{
    return (double)c->hidden * (double)c->head_dim * (double)(2 * c->n_heads + 2 * c->n_kv_heads);
}

static double ffn_params(const ModelConfig *c, int64_t layer)
{
    if (!model_config_is_moe(c, layer)) return 3.0 * (double)c->hidden * (double)c->ffn_dense;
    return (double)c->hidden *
           (3.0 * (double)c->ffn_expert * (double)c->experts_per_token + (double)c->n_experts);
}

double layer_flops(const ModelConfig *c, int64_t layer, int64_t row_tokens)
{
    return 2 * (attention_params(c) + ffn_params(c, layer)) +
           2.0 * (double)row_tokens * (double)(c->n_heads * c->head_dim);
}

double head_flops(const ModelConfig *c)
{
    return 2.0 * (double)c->hidden * (double)c->vocab;
}

double active_matrix_params(const ModelConfig *c)
{
    double n = (double)c->hidden * (double)c->vocab;
    for (int64_t l = 0; l < c->n_layers; l++) n += attention_params(c) + ffn_params(c, l);
    return n;
}

static Status check_split(const int64_t *split, int n_stages, const ModelConfig *c)
{
    int64_t sum = 0;
    for (int s = 0; s < n_stages; s++) {
        if (split[s] < 1)
            return FAIL(ERR_USAGE, "parallel.layer_split: entry %d is %lld (expected at least 1)",
                        s + 1, (long long)split[s]);
        sum += split[s];
    }
    if (sum != c->n_layers)
        return FAIL(ERR_USAGE,
                    "parallel.layer_split: layers sum to %lld (expected num_hidden_layers %lld)",
                    (long long)sum, (long long)c->n_layers);
    return OK;
}

/* Smallest possible maximum over stages, by dynamic programming over (stages, layers); ties give earlier stages more. */
static void balance(int64_t *split, int n_stages, const ModelConfig *c, int64_t row_tokens,
                    Arena *arena)
{
    int64_t n = c->n_layers, width = n + 1;
    double *before = ARENA_NEW(arena, double, width); /* cost of layers 0 … i-1 */
    double *best = ARENA_NEW(arena, double, (int64_t)(n_stages + 1) * width);
    int64_t *cut = ARENA_NEW(arena, int64_t, (int64_t)(n_stages + 1) * width);
    for (int64_t l = 0; l < n; l++) before[l + 1] = before[l] + layer_flops(c, l, row_tokens);
    for (int64_t i = 0; i < (n_stages + 1) * width; i++) best[i] = INFINITY;
    best[0] = 0;
    for (int s = 1; s <= n_stages; s++)
        for (int64_t i = s; i <= n; i++)
            for (int64_t from = s - 1; from < i; from++) {
                double cost = before[i] - before[from] + (s == n_stages ? head_flops(c) : 0);
                double worst = fmax(best[(s - 1) * width + from], cost);
                if (worst <= best[s * width + i]) {
                    best[s * width + i] = worst;
                    cut[s * width + i] = from;
                }
            }
    int64_t end = n;
    for (int s = n_stages; s >= 1; s--) {
        int64_t from = cut[s * width + end];
        split[s - 1] = end - from;
        end = from;
    }
}

Status partition_layers(LayerRange *out, int n_stages, const int64_t *split,
                        const ModelConfig *config, int64_t row_tokens, Arena *arena)
{
    if (n_stages > config->n_layers)
        return FAIL(
            ERR_USAGE,
            "parallel.pp_size: %d stages for %lld layers (expected at most one stage per layer)",
            n_stages, (long long)config->n_layers);
    ArenaMark mark = arena_mark(arena);
    int64_t *counts = ARENA_NEW(arena, int64_t, n_stages);
    if (split) {
        TRY(check_split(split, n_stages, config));
        for (int s = 0; s < n_stages; s++) counts[s] = split[s];
    } else {
        balance(counts, n_stages, config, row_tokens, arena);
    }
    int64_t first = 0;
    for (int s = 0; s < n_stages; s++) {
        out[s] = (LayerRange){first, counts[s], s == 0, s == n_stages - 1};
        first += counts[s];
    }
    arena_rewind(arena, mark);
    return OK;
}
