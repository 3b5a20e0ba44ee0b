#pragma once
/**
 * Routed experts:   y_t = sum_k weight_tk expert[id_tk](x_t)
 *
 * router -> exchange (tokens to the ranks of their experts) -> dispatch (gather rows by expert) -> experts -> combine (in f32+,
 * slot by slot) -> exchange back (parts in rank order). Gathered inputs and expert outputs [R, D] are scratch: gathering again
 * in W is cheaper than keeping them; tokens received are kept, so nothing travels in W.
 * Takes nothing but scratch: the caller sets the tensors of MoeSaved that say so.
 * Source: HF transformers, modeling_qwen3_moe.py, Qwen3MoeSparseMoeBlock.forward
 */
#include "nn/exchange.h"
#include "nn/experts.h"
#include "nn/router.h"

typedef struct MoeConfig {
    int64_t n_experts, top_k; /* E, K <= E */
    int64_t ffn;              /* F of an expert */
    bool normalise;           /* HF norm_topk_prob */
} MoeConfig;

typedef struct Moe {
    Router router;
    Experts experts;
} Moe;

typedef struct MoeSaved {
    RouterSaved router; /* until I, dlogit from I to W */
    Exchange exchange;  /* n_ranks and memory from the caller before route, until I */
    /* Memory from the caller between route and forward, which needs the sizes in `exchange`. */
    Dispatch dispatch;    /* until W */
    ExpertsSaved experts; /* see there */
    Tensor weight_r;      /* [R] routing weights by row, dtype_acc; until W */
    Tensor x_nd;          /* exchange_place of x; until W */
    /* Memory from the caller before backward_input. */
    Tensor dy_nd; /* exchange_place of dy; until W */
} MoeSaved;

/** Declares the router, then the experts. */
void moe_declare(Moe *m, ParamSet *set, int layer, int64_t hidden, const MoeConfig *config);
/** Before forward: the choices, and how many tokens come here. x_td is borrowed until W. stats NULL: not wanted. */
void moe_route(const Moe *m, MoeSaved *s, Run *run, RouterStats *stats, Tensor x_td);
void moe_forward(const Moe *m, MoeSaved *s, Run *run, Tensor y_td, Tensor x_td);
void moe_backward_input(const Moe *m, MoeSaved *s, Run *run, Tensor dx_td, Tensor dy_td,
                        double beta);
void moe_backward_weight(const Moe *m, const MoeSaved *s, Run *run);
