#pragma once
/**
 * Grouped-query causal attention within the segments of a row.
 *
 *   q, k, v = x wq^T, x wk^T, x wv^T;   q, k = rope(norm(q)), rope(norm(k)) (norm per head, optional)
 *   o = softmax(scale q k^T) v;         y = o wo^T
 *
 * Takes nothing but scratch: the caller (block.c) sets the tensors of AttentionSaved that say so.
 * With run->kv forward puts keys and values into the cache behind kv->length and attends over all of it;
 * such a forward has no backward.
 * Source: HF transformers, modeling_qwen3_moe.py, Qwen3MoeAttention.forward
 */
#include "nn/linear.h"
#include "nn/rmsnorm.h"
#include "nn/rope.h"

typedef struct AttentionConfig {
    int64_t n_heads, n_kv_heads, head_dim; /* H, G, C; G divides H, C even */
    bool bias;                             /* on all four projections (HF attention_bias) */
    bool qk_norm;
    double norm_eps;        /* of q/k norm */
    double scale;           /* usually 1/sqrt(C) */
    const RopeTables *rope; /* lent; shared by all blocks */
} AttentionConfig;

typedef struct Attention {
    AttentionConfig config;
    int layer; /* global index: its place in a KvCache */
    Linear q_proj, k_proj, v_proj, o_proj;
    RmsNorm q_norm, k_norm; /* only with qk_norm */
} Attention;

typedef struct AttentionSaved {
    LinearSaved q_proj, k_proj, v_proj, o_proj;
    RmsNormSaved q_norm, k_norm;
    /* Memory from the caller before forward; until I, o_tq until W. */
    Tensor q_raw_tq, k_raw_tk; /* [T, H*C], [T, G*C] before the norm; null without qk_norm */
    Tensor q_tq, k_tk, v_tk;   /* after norm and rope; k_tk, v_tk null with a cache */
    Tensor lse_ht;             /* [H, T] in dtype_acc */
    Tensor o_tq;               /* [T, H*C] */
    /* Memory from the caller before backward_input; until W. */
    Tensor dq_tq, dk_tk, dv_tk; /* gradients of what the projections gave */
} AttentionSaved;

/** Names "model.layers.LAYER.self_attn.q_proj.weight", … */
void attention_declare(Attention *m, ParamSet *set, int layer, int64_t hidden,
                       const AttentionConfig *config);
void attention_forward(const Attention *m, AttentionSaved *s, Run *run, Tensor y_td, Tensor x_td);
void attention_backward_input(const Attention *m, AttentionSaved *s, Run *run, Tensor dx_td,
                              Tensor dy_td, double beta);
void attention_backward_weight(const Attention *m, const AttentionSaved *s, Run *run);
