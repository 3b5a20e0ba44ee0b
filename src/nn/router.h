#pragma once
/**
 * Pick K experts for each token.
 *
 *   logit_te = x_td w_ed^T;  p = softmax(logit);  id_tk = the K largest in descending order;
 *   weight_tk = p[id] (divided by its sum if normalise)
 *
 * Backward adds to the gradient of the weights those of the balancing loss and of the z-loss, with the
 * scales of run->mb (numerics.md 3 and 4); none flows through the selection. The balancing loss is the layer's
 * own, or one of all layers together (form hf), whose gradient then comes in run->dprob_e.
 *
 * Numerics: logits, softmax and weights in dtype_acc; ties go to the lower index.
 * Source:   HF transformers, modeling_qwen3_moe.py, Qwen3MoeSparseMoeBlock.forward
 */
#include "nn/linear.h"

/** Balancing and z-loss of a MoE layer and microbatch, and where its tokens went. */
typedef struct RouterStats {
    int64_t *count_e; /* [E] tokens sent to each expert; the caller's memory, overwritten */
    double
        balancing_raw; /* (E/(T K)) sum_e c_e r_e / T: numerics.md 3 with alpha 1, not divided by rows */
    double z_raw;      /* sum over tokens of logsumexp(logits)² */
    double *routed_2e; /* [2, E] count_e and sum_t p_te are added; NULL: not wanted */
} RouterStats;

typedef struct Router {
    Linear gate;
    int64_t n_experts, top_k; /* E, K */
    bool normalise;
} Router;

typedef struct RouterSaved {
    LinearSaved gate;
    /* Memory from the caller before forward; until I. */
    Tensor p_te, lse_t, weight_tk; /* [T, E], [T], [T, K] in dtype_acc */
    Tensor id_tk;                  /* [T, K] I32 */
    int64_t *count_e;              /* [E] tokens sent to each expert */
    /* Memory from the caller before backward_input; until W. */
    Tensor dlogit_te; /* [T, E] in dtype_acc */
} RouterSaved;

/** Name "model.layers.LAYER.mlp.gate.weight". */
void router_declare(Router *m, ParamSet *set, int layer, int64_t hidden, int64_t n_experts,
                    int64_t top_k, bool normalise);
/** Fills the tensors of s; x_td is borrowed until W. stats NULL: not wanted. */
void router_forward(const Router *m, RouterSaved *s, Run *run, RouterStats *stats, Tensor x_td);
/** dx = beta dx + … from dweight_tk [T, K] (dtype_acc). */
void router_backward_input(const Router *m, RouterSaved *s, Run *run, Tensor dx_td,
                           Tensor dweight_tk, double beta);
void router_backward_weight(const Router *m, const RouterSaved *s, Run *run);

/**
 * Balancing loss of a row, all layers together, with alpha 1 (numerics.md 3, form hf):
 *   E sum_e f_e P_e  with f, P = routed_2e / n_rows, which is MoE layers x T
 */
double router_balancing(Tensor routed_2e, int64_t n_rows);
/** Its gradient times scale: d (overwritten) is 0 for the counts and dL/dp_te for the sums of probabilities. */
void router_balancing_backward(Tensor drouted_2e, Tensor routed_2e, int64_t n_rows, double scale);
