#pragma once
/**
 * The head and its loss, chunk by chunk of tokens: logits are never held for the whole row.
 *
 *   logit_nv = h_nd w_vd^T (f32+);  loss = sum_t weight_t CE(logit_t, target_t)
 * Training computes a chunk's logits, loss, dh (overwritten) and dw (added) at once, in F, since all denominators are
 * known before; the head's own input gradient is therefore dh itself (HF transformers' loss differs only by the denominator).
 */
#include "nn/run.h"

typedef struct LmLoss {
    Param *w_vd;
    int64_t chunk; /* tokens; 0: the whole row as one */
} LmLoss;

/** name "lm_head.weight". */
void lm_loss_declare(LmLoss *m, ParamSet *set, int64_t vocab, int64_t hidden, int64_t chunk);
/** Returns the row's loss (f64 sum). dh_td overwritten. Uses mb->target_t, weight_t. */
double lm_loss_train(const LmLoss *m, Run *run, Tensor dh_td, Tensor h_td);
/** Loss alone. */
double lm_loss_eval(const LmLoss *m, Run *run, Tensor h_td);
/** Logits of all given rows: logit_nv [N, V] overwritten (f32+). */
void lm_loss_logits(const LmLoss *m, Run *run, Tensor logit_nv, Tensor h_nd);
