#include "nn/attention.h"
#include "base/text.h"

#include <assert.h>

void attention_declare(Attention *m, ParamSet *set, int layer, int64_t hidden,
                       const AttentionConfig *config)
{
    *m = (Attention){.config = *config, .layer = layer};
    const int64_t q_size = config->n_heads * config->head_dim;
    const int64_t kv_size = config->n_kv_heads * config->head_dim;
    assert(config->n_heads % config->n_kv_heads == 0 && config->head_dim % 2 == 0);
    // clang-format off
    const struct { Linear *linear; const char *name; int64_t in, out; } projections[] = {
        {&m->q_proj, "q_proj", hidden, q_size},
        {&m->k_proj, "k_proj", hidden, kv_size},
        {&m->v_proj, "v_proj", hidden, kv_size},
        {&m->o_proj, "o_proj", q_size, hidden},
    };
    const struct { RmsNorm *norm; const char *name; } norms[] = {
        {&m->q_norm, "q_norm"},
        {&m->k_norm, "k_norm"},
    };
    // clang-format on
    for (size_t i = 0; i < sizeof projections / sizeof *projections; i++)
        linear_declare(
            projections[i].linear, set,
            text_format(set->arena, "model.layers.%d.self_attn.%s", layer, projections[i].name),
            projections[i].in, projections[i].out, config->bias);
    for (size_t i = 0; config->qk_norm && i < sizeof norms / sizeof *norms; i++)
        rmsnorm_declare(
            norms[i].norm, set,
            text_format(set->arena, "model.layers.%d.self_attn.%s", layer, norms[i].name),
            config->head_dim, config->norm_eps);
}

/** [T, H*C] as [T*H, C]: a norm's row is one head. */
static Tensor by_head(Tensor x_thc, int64_t head_dim)
{
    return tensor_reshape2(x_thc, tensor_size(x_thc) / head_dim, head_dim);
}

/** x -> head vectors after norm and rope. raw: null without norm. */
static void project_heads(const Attention *m, const Linear *projection, LinearSaved *projection_s,
                          const RmsNorm *norm, RmsNormSaved *norm_s, Run *run, Tensor heads,
                          Tensor raw, Tensor x_td)
{
    const AttentionConfig *c = &m->config;
    linear_forward(projection, projection_s, run, c->qk_norm ? raw : heads, x_td);
    if (c->qk_norm)
        rmsnorm_forward(norm, norm_s, run, by_head(heads, c->head_dim), by_head(raw, c->head_dim));
    rope_apply(c->rope, run, heads, heads.dim[1] / c->head_dim, false);
}

/** d_heads (overwritten) -> d_raw, the gradient of what the projection gave; without norm the two are one tensor. */
static void project_heads_backward(const Attention *m, const RmsNorm *norm,
                                   const RmsNormSaved *norm_s, Run *run, Tensor d_raw,
                                   Tensor d_heads)
{
    const AttentionConfig *c = &m->config;
    rope_apply(c->rope, run, d_heads, d_heads.dim[1] / c->head_dim, true);
    if (c->qk_norm)
        rmsnorm_backward_input(norm, norm_s, run, by_head(d_raw, c->head_dim),
                               by_head(d_heads, c->head_dim), 0);
}

/** Where this call's keys and values go in the cache, and all that are in it afterwards. */
static void place_in_cache(const Attention *m, AttentionSaved *s, const KvCache *kv,
                           int64_t n_tokens, Tensor *all_k_tk, Tensor *all_v_tk)
{
    int i = m->layer - kv->first_layer;
    assert(i >= 0 && i < kv->n_layers);
    if (kv->length + n_tokens > kv->capacity)
        die("key/value cache of %lld tokens: %lld and %lld more do not fit",
            (long long)kv->capacity, (long long)kv->length, (long long)n_tokens);
    s->k_tk = tensor_rows(kv->k_tk[i], kv->length, n_tokens);
    s->v_tk = tensor_rows(kv->v_tk[i], kv->length, n_tokens);
    *all_k_tk = tensor_rows(kv->k_tk[i], 0, kv->length + n_tokens);
    *all_v_tk = tensor_rows(kv->v_tk[i], 0, kv->length + n_tokens);
}

void attention_forward(const Attention *m, AttentionSaved *s, Run *run, Tensor y_td, Tensor x_td)
{
    const AttentionConfig *c = &m->config;
    const int64_t n_tokens = x_td.dim[0];
    Tensor all_k_tk = s->k_tk, all_v_tk = s->v_tk;
    int32_t cu_all[2] = {0, 0};
    if (run->kv) {
        assert(run->mb->n_segments == 1);
        place_in_cache(m, s, run->kv, n_tokens, &all_k_tk, &all_v_tk);
        cu_all[1] = (int32_t)all_k_tk.dim[0];
    }
    project_heads(m, &m->q_proj, &s->q_proj, &m->q_norm, &s->q_norm, run, s->q_tq, s->q_raw_tq,
                  x_td);
    project_heads(m, &m->k_proj, &s->k_proj, &m->k_norm, &s->k_norm, run, s->k_tk, s->k_raw_tk,
                  x_td);
    linear_forward(&m->v_proj, &s->v_proj, run, s->v_tk, x_td);
    run->be->attention(run->be, &(AttentionArgs){.o_tq = s->o_tq,
                                                 .lse_ht = s->lse_ht,
                                                 .q_tq = s->q_tq,
                                                 .k_tk = all_k_tk,
                                                 .v_tk = all_v_tk,
                                                 .n_heads = c->n_heads,
                                                 .n_kv_heads = c->n_kv_heads,
                                                 .head_dim = c->head_dim,
                                                 .cu_q = run->mb->cu_seqlens,
                                                 .cu_k = run->kv ? cu_all : run->mb->cu_seqlens,
                                                 .n_segments = run->mb->n_segments,
                                                 .scale = c->scale,
                                                 .scratch = run->scratch});
    linear_forward(&m->o_proj, &s->o_proj, run, y_td, s->o_tq);
}

void attention_backward_input(const Attention *m, AttentionSaved *s, Run *run, Tensor dx_td,
                              Tensor dy_td, double beta)
{
    assert(!run->kv);
    const AttentionConfig *c = &m->config;
    const int64_t n_tokens = dy_td.dim[0];
    ArenaMark mark = arena_mark(run->scratch);
    Tensor do_tq = arena_tensor2(run->scratch, run->dtype, n_tokens, c->n_heads * c->head_dim);
    Tensor dq_tq = s->dq_tq, dk_tk = s->dk_tk;
    if (c->qk_norm) {
        dq_tq = arena_tensor2(run->scratch, run->dtype, n_tokens, c->n_heads * c->head_dim);
        dk_tk = arena_tensor2(run->scratch, run->dtype, n_tokens, c->n_kv_heads * c->head_dim);
    }
    linear_backward_input(&m->o_proj, &s->o_proj, run, do_tq, dy_td, 0);
    run->be->attention_backward(run->be, &(AttentionBackwardArgs){.dq_tq = dq_tq,
                                                                  .dk_tk = dk_tk,
                                                                  .dv_tk = s->dv_tk,
                                                                  .do_tq = do_tq,
                                                                  .o_tq = s->o_tq,
                                                                  .lse_ht = s->lse_ht,
                                                                  .q_tq = s->q_tq,
                                                                  .k_tk = s->k_tk,
                                                                  .v_tk = s->v_tk,
                                                                  .n_heads = c->n_heads,
                                                                  .n_kv_heads = c->n_kv_heads,
                                                                  .head_dim = c->head_dim,
                                                                  .cu_q = run->mb->cu_seqlens,
                                                                  .cu_k = run->mb->cu_seqlens,
                                                                  .n_segments = run->mb->n_segments,
                                                                  .scale = c->scale,
                                                                  .scratch = run->scratch});
    project_heads_backward(m, &m->q_norm, &s->q_norm, run, s->dq_tq, dq_tq);
    project_heads_backward(m, &m->k_norm, &s->k_norm, run, s->dk_tk, dk_tk);
    linear_backward_input(&m->q_proj, &s->q_proj, run, dx_td, s->dq_tq, beta);
    linear_backward_input(&m->k_proj, &s->k_proj, run, dx_td, s->dk_tk, 1);
    linear_backward_input(&m->v_proj, &s->v_proj, run, dx_td, s->dv_tk, 1);
    arena_rewind(run->scratch, mark);
}

void attention_backward_weight(const Attention *m, const AttentionSaved *s, Run *run)
{
    linear_backward_weight(&m->q_proj, &s->q_proj, run);
    linear_backward_weight(&m->k_proj, &s->k_proj, run);
    linear_backward_weight(&m->v_proj, &s->v_proj, run);
    linear_backward_weight(&m->o_proj, &s->o_proj, run);
}
