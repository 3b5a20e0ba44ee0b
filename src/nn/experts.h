#pragma once
/**
 * E SwiGLU networks, each on its own rows (rows sorted by expert, see dispatch.h). E are those of this rank: with the
 * model's experts shared out (ParamSet.ep_size) a run of them, from `first` on.
 *
 *   h = x w_gate_up[e]^T;   a = silu(h_gate) * h_up;   y = a w_down[e]^T
 *
 * w_gate_up [E, 2F, D] (rows of an expert: gate, then up), w_down [E, D, F]. The routing weight of a row
 * is applied outside; its gradient is taken here, since dweight = sum_f da a is at hand.
 * Source: HF transformers, modeling_qwen3_moe.py, Qwen3MoeMLP.forward
 */
#include "nn/dispatch.h"

typedef struct Experts {
    Param *gate_up_eod, *down_edf;
    int64_t first, n_experts, hidden, ffn; /* the first one's number in the model, E, D, F */
} Experts;

typedef struct ExpertsSaved {
    Tensor h_r2f;  /* [R, 2F]; memory from the caller before forward, until I */
    Tensor a_rf;   /* [R, F]; memory from the caller before forward, until W */
    Tensor dh_r2f; /* [R, 2F]; memory from the caller before backward_input, until W */
} ExpertsSaved;

/** n_experts: of the model. Names "model.layers.LAYER.mlp.experts.gate_up_proj" and "….down_proj". */
void experts_declare(Experts *m, ParamSet *set, int layer, int64_t n_experts, int64_t hidden,
                     int64_t ffn);
void experts_forward(const Experts *m, ExpertsSaved *s, Run *run, const Dispatch *d, Tensor y_rd,
                     Tensor x_rd);
/**
 * weight_r, dweight_r [R] in dtype_acc: the rows' routing weights, and their gradients (overwritten).
 * dy_rd: the gradient of weight times output. dx_rd is overwritten.
 */
void experts_backward_input(const Experts *m, ExpertsSaved *s, Run *run, const Dispatch *d,
                            Tensor dx_rd, Tensor dweight_r, Tensor dy_rd, Tensor weight_r);
/** x_rd: the rows forward had; dy_rd: the gradient of the output itself (routing weight multiplied in). */
void experts_backward_weight(const Experts *m, const ExpertsSaved *s, Run *run, const Dispatch *d,
                             Tensor x_rd, Tensor dy_rd);
/** False when both matrices are frozen: backward_weight has nothing to do. */
bool experts_trainable(const Experts *m);
