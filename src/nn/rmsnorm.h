#pragma once
/**
 * y = w * (x / sqrt(mean(x²) + eps)), over the last dim.
 *
 * Shapes:   x_nd, y_nd [N, D] (N tokens, or tokens times heads), w_d [D].
 * Numerics: statistics in dtype_acc; the normalised x is rounded, then times w (numerics.md 6).
 * Source:   HF transformers, modeling_qwen3_moe.py, Qwen3MoeRMSNorm.forward
 */
#include "nn/run.h"

typedef struct RmsNorm {
    Param *w_d;
    double eps;
} RmsNorm;

typedef struct RmsNormSaved {
    Tensor x_nd;   /* set by forward, borrowed, until I */
    Tensor rstd_n; /* [N] in dtype_acc; memory from the caller, filled by forward, until I */
} RmsNormSaved;

/** Declares "NAME.weight". */
void rmsnorm_declare(RmsNorm *m, ParamSet *set, const char *name, int64_t dim, double eps);
void rmsnorm_forward(const RmsNorm *m, RmsNormSaved *s, Run *run, Tensor y_nd, Tensor x_nd);
/** dx = beta dx + …; adds into the gradient of w. Nothing is left for W. */
void rmsnorm_backward_input(const RmsNorm *m, const RmsNormSaved *s, Run *run, Tensor dx_nd,
                            Tensor dy_nd, double beta);
