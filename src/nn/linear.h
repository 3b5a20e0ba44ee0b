#pragma once
/**
 * y = x w^T (+ b), w stored [out, in] as HuggingFace does.
 *
 *   dx = beta dx + dy w;   dw += dy^T x   (in W);   db += sum_t dy   (in I)
 *
 * Shapes: x_ti [T, I], y_to [T, O], w_oi [O, I], b_o [O].
 */
#include "nn/run.h"

typedef struct Linear {
    Param *w_oi;
    Param *b_o; /* NULL: none */
} Linear;

/** What one microbatch leaves behind for its weight gradient; both borrowed, both must live until W. */
typedef struct LinearSaved {
    Tensor x_ti;  /* set by forward */
    Tensor dy_to; /* set by backward_input */
} LinearSaved;

/** Declares "NAME.weight" and, with bias, "NAME.bias". */
void linear_declare(Linear *m, ParamSet *set, const char *name, int64_t in, int64_t out, bool bias);
void linear_forward(const Linear *m, LinearSaved *s, Run *run, Tensor y_to, Tensor x_ti);
void linear_backward_input(const Linear *m, LinearSaved *s, Run *run, Tensor dx_ti, Tensor dy_to,
                           double beta);
void linear_backward_weight(const Linear *m, const LinearSaved *s, Run *run);
