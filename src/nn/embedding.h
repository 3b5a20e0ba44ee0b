#pragma once
/**
 * y_t = w[id_t] with the ids of run->mb;   dw[id_t] += dy_t (in W, ascending t).
 *
 * Shapes: w_vd [V, D], y_td [T, D]. Ids were checked when the microbatch was made.
 */
#include "nn/run.h"

typedef struct Embedding {
    Param *w_vd;
} Embedding;

/** Name "model.embed_tokens.weight". */
void embedding_declare(Embedding *m, ParamSet *set, int64_t vocab, int64_t hidden);
void embedding_forward(const Embedding *m, Run *run, Tensor y_td);
/** dy_td: what the layer above gave as dx; the caller keeps it until W. */
void embedding_backward_weight(const Embedding *m, Run *run, Tensor dy_td);
