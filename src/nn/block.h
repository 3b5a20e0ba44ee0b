#pragma once
/**
 * One decoder layer:   x2 = x + attention(norm1(x));   y = x2 + ffn(norm2(x2))
 * with attention = GQA with optional q/k norm, bias and rope, and ffn = dense SwiGLU or routed experts.
 *
 * This file lays out the activations of a layer by lifetime (core/stage.h, Slots); the parts take nothing
 * but scratch. run->scratch is always another arena than f_to_i, f_to_w and i_to_w: it is rewound before
 * each function returns, and what is kept must not lie above its mark.
 * Source: HF transformers, modeling_qwen3_moe.py, Qwen3MoeDecoderLayer.forward.
 */
#include "nn/attention.h"
#include "nn/dense_ffn.h"
#include "nn/moe.h"
#include "nn/rmsnorm.h"

typedef struct BlockConfig {
    int layer;      /* global index: names, breadcrumbs */
    int64_t hidden; /* D */
    double norm_eps;
    AttentionConfig attention;
    bool is_moe;
    int64_t ffn_dense; /* F of a dense layer */
    MoeConfig moe;     /* E, K, F, normalise */
} BlockConfig;

typedef struct Block {
    BlockConfig config;
    RmsNorm norm1, norm2;
    Attention attention;
    DenseFfn dense; /* one of the two */
    Moe moe;
} Block;

/** What one microbatch leaves behind; the struct lives from F to W, its tensors as said. */
typedef struct BlockSaved {
    Tensor x_td, x2_td; /* f_to_i (x borrowed from the layer below or the stage) */
    RmsNormSaved norm1, norm2;
    AttentionSaved attention;
    DenseFfnSaved dense;
    MoeSaved moe;
} BlockSaved;

void block_declare(Block *b, ParamSet *set, const BlockConfig *config);

/**
 * x -> y. What backward needs is taken from f_to_i and f_to_w (both may be one arena, as when nothing is kept or
 * a recomputed layer is run again inside I). stats NULL: not wanted (dense layers, recomputation).
 */
void block_forward(const Block *b, BlockSaved *saved, Run *run, Arena *f_to_i, Arena *f_to_w,
                   RouterStats *stats, Tensor y_td, Tensor x_td);
/**
 * dx (overwritten) from dy. dy is borrowed until W; dx is not, but as the dy of the layer below it usually lies in
 * i_to_w memory too.
 */
void block_backward_input(const Block *b, BlockSaved *saved, Run *run, Arena *i_to_w, Tensor dx_td,
                          Tensor dy_td);
void block_backward_weight(const Block *b, const BlockSaved *saved, Run *run);
