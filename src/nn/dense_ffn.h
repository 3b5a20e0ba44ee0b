#pragma once
/**
 * Dense SwiGLU:   h = x w_gate_up^T;   a = silu(h_gate) * h_up;   y = a w_down^T
 *
 * w_gate_up [2F, D] holds the rows of HuggingFace's gate_proj, then those of up_proj: one product
 * instead of two. Takes nothing but scratch: the caller sets the tensors of DenseFfnSaved.
 * Source: HF transformers, modeling_qwen3_moe.py, Qwen3MoeMLP.forward
 */
#include "nn/linear.h"

typedef struct DenseFfn {
    Linear gate_up, down;
} DenseFfn;

typedef struct DenseFfnSaved {
    LinearSaved gate_up, down;
    Tensor h_t2f;  /* [T, 2F]; memory from the caller before forward, until I */
    Tensor a_tf;   /* [T, F]; memory from the caller before forward, until W */
    Tensor dh_t2f; /* [T, 2F]; memory from the caller before backward_input, until W */
} DenseFfnSaved;

/** Names "model.layers.LAYER.mlp.gate_up_proj.weight" and "….down_proj.weight". */
void dense_ffn_declare(DenseFfn *m, ParamSet *set, int layer, int64_t hidden, int64_t ffn);
void dense_ffn_forward(const DenseFfn *m, DenseFfnSaved *s, Run *run, Tensor y_td, Tensor x_td);
void dense_ffn_backward_input(const DenseFfn *m, DenseFfnSaved *s, Run *run, Tensor dx_td,
                              Tensor dy_td, double beta);
void dense_ffn_backward_weight(const DenseFfn *m, const DenseFfnSaved *s, Run *run);
