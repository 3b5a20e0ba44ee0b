#include "model/stage_cost.h"

#include <math.h>

/* Flops that a core does while memory gives it a byte. */
static double flops_per_byte(DType dtype)
{
    return dtype == DTYPE_BF16 ? 40 : 10;
}

int64_t n_recomputed_layers(const ModelConfig *config, double ratio)
{
    int64_t n = (int64_t)((double)config->n_layers * ratio);
    return n < config->n_layers ? n : config->n_layers - 1;
}

static double attention_params(const ModelConfig *c)
{
    return (double)c->hidden * (double)c->head_dim * (double)(2 * c->n_heads + 2 * c->n_kv_heads);
}

/* Of matrices that one token meets. */
static double ffn_params(const ModelConfig *c, int64_t layer)
{
    if (!model_config_is_moe(c, layer)) return 3.0 * (double)c->hidden * (double)c->ffn_dense;
    return (double)c->hidden *
           (3.0 * (double)c->ffn_expert * (double)c->experts_per_token + (double)c->n_experts);
}

double active_matrix_params(const ModelConfig *c)
{
    double n = (double)c->hidden * (double)c->vocab;
    for (int64_t l = 0; l < c->n_layers; l++) n += attention_params(c) + ffn_params(c, l);
    return n;
}

/* Of matrices that some token of the row meets. */
static double ffn_params_read(const ModelConfig *c, int64_t layer, double tokens)
{
    if (!model_config_is_moe(c, layer)) return ffn_params(c, layer);
    double n_experts = (double)c->n_experts, share = (double)c->experts_per_token / n_experts;
    double met = n_experts * (1 - pow(1 - share, tokens));
    return (double)c->hidden * (3.0 * (double)c->ffn_expert * met + n_experts);
}

/* Numbers of activations per token that products and the loops around them read and write in F. */
static double values_moved(const ModelConfig *c, int64_t layer)
{
    double hidden = (double)c->hidden, q = (double)(c->n_heads * c->head_dim),
           kv = (double)(c->n_kv_heads * c->head_dim);
    double attention = 2 * hidden + 2 * q + 2 * kv, around = 6 * hidden;
    bool moe = model_config_is_moe(c, layer);
    double rows = moe ? (double)c->experts_per_token : 1,
           ffn = (double)(moe ? c->ffn_expert : c->ffn_dense);
    return attention + around + rows * (2 * hidden + 6 * ffn + (moe ? 2 * hidden : 0));
}

static StageCost layer_cost(const CostModel *m, int64_t layer)
{
    const ModelConfig *c = m->config;
    double tokens = (double)m->row_tokens, size = (double)dtype_bytes(m->dtype),
           per_byte = flops_per_byte(m->dtype);
    double matrices = 2 * tokens * (attention_params(c) + ffn_params(c, layer));
    double attention = 2 * tokens * tokens * (double)(c->n_heads * c->head_dim);
    double weights = attention_params(c) + ffn_params_read(c, layer, tokens);
    double moved = tokens * values_moved(c, layer);
    StageCost cost = {
        .f = matrices + attention + per_byte * size * (weights + moved),
        .i = matrices + 2.5 * attention + per_byte * size * (weights + 2 * moved),
        .w = matrices + per_byte * (size * moved + 8 * weights),
    };
    if (layer < n_recomputed_layers(c, m->recompute_ratio)) cost.i += cost.f;
    return cost;
}

static StageCost embedding_cost(const CostModel *m)
{
    double values = (double)m->row_tokens * (double)m->config->hidden,
           size = (double)dtype_bytes(m->dtype), per_byte = flops_per_byte(m->dtype);
    return (StageCost){.f = per_byte * values * 2 * size, .w = per_byte * values * (size + 8)};
}

/* Three products; two readings of the matrix and the sum of its gradient; logits written, twice read and once rewritten. */
static StageCost head_cost(const CostModel *m)
{
    double tokens = (double)m->row_tokens, hidden = (double)m->config->hidden,
           vocab = (double)m->config->vocab, size = (double)dtype_bytes(m->dtype),
           per_byte = flops_per_byte(m->dtype);
    double bytes =
        vocab * hidden * (2 * size + 8) + tokens * vocab * 16 + tokens * hidden * 3 * size;
    return (StageCost){.f = 6 * tokens * vocab * hidden + per_byte * bytes,
                       .i = per_byte * tokens * hidden * 3 * size};
}

static void add(StageCost *sum, StageCost cost)
{
    sum->f += cost.f;
    sum->i += cost.i;
    sum->w += cost.w;
}

StageCost range_cost(const CostModel *model, LayerRange range)
{
    StageCost sum = {0};
    if (range.has_embedding) add(&sum, embedding_cost(model));
    for (int64_t i = 0; i < range.n; i++) add(&sum, layer_cost(model, range.first + i));
    if (range.has_head) add(&sum, head_cost(model));
    return sum;
}
