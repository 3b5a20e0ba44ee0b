#pragma once
/**
 * The reference kernels: what backend_ref_init puts into the table, and what the cpu backend falls back on for
 * dtypes it has no fast path for. Plain loops in the order of the formulas of kernels/backend.h. Every element is read
 * exactly into a double, all arithmetic is double, and a result is rounded once, to nearest even, when it is stored.
 * n_threads is ignored.
 */
#include "kernels/backend.h"

#include <string.h>

/* Element i of a tensor of any float dtype (f32, f64, bf16, f16). */
double ref_load_any(Tensor t, int64_t i);
void ref_store_any(Tensor t, int64_t i, double value);

static inline double ref_load(Tensor t, int64_t i)
{
    if (t.dtype == DTYPE_F32) return (double)((const float *)t.data)[i];
    if (t.dtype == DTYPE_F64) return ((const double *)t.data)[i];
    if (t.dtype == DTYPE_BF16) {
        uint32_t bits = (uint32_t)((const uint16_t *)t.data)[i]
                        << 16; /* the upper half of an f32 */
        float x;
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    }
    return ref_load_any(t, i);
}

static inline void ref_store(Tensor t, int64_t i, double value)
{
    if (t.dtype == DTYPE_F32)
        ((float *)t.data)[i] = (float)value;
    else if (t.dtype == DTYPE_F64)
        ((double *)t.data)[i] = value;
    else
        ref_store_any(t, i, value);
}

/** t[i] = beta t[i] + value; with beta 0 the old content is not read. */
static inline void ref_update(Tensor t, int64_t i, double beta, double value)
{
    ref_store(t, i, beta == 0 ? value : beta * ref_load(t, i) + value);
}

/* ref_linear.c */
void ref_gemm(const Backend *be, const GemmArgs *args);
void ref_grouped_gemm(const Backend *be, const GroupedGemmArgs *args);
void ref_add_bias(const Backend *be, Tensor x_nd, Tensor b_d);
void ref_bias_backward(const Backend *be, Tensor db_d, Tensor dy_nd, Arena *scratch);
/* ref_norm.c */
void ref_rmsnorm(const Backend *be, const RmsNormArgs *args);
void ref_rmsnorm_backward(const Backend *be, const RmsNormBackwardArgs *args);
/* ref_attention.c */
void ref_rope(const Backend *be, const RopeArgs *args);
void ref_attention(const Backend *be, const AttentionArgs *args);
void ref_attention_backward(const Backend *be, const AttentionBackwardArgs *args);
/* ref_router.c */
void ref_router(const Backend *be, const RouterArgs *args);
void ref_router_backward(const Backend *be, const RouterBackwardArgs *args);
/* ref_elementwise.c */
void ref_swiglu(const Backend *be, const SwiGluArgs *args);
void ref_swiglu_backward(const Backend *be, const SwiGluBackwardArgs *args);
void ref_add(const Backend *be, Tensor y, Tensor a, Tensor b);
void ref_convert(const Backend *be, Tensor y, Tensor x);
/* ref_rows.c */
void ref_gather_rows(const Backend *be, const GatherRowsArgs *args);
void ref_combine_rows(const Backend *be, const CombineRowsArgs *args);
void ref_scatter_add_rows(const Backend *be, const ScatterAddRowsArgs *args);
/* ref_loss.c */
void ref_cross_entropy(const Backend *be, const CrossEntropyArgs *args);
/* ref_optimizer.c */
double ref_sum_squares(const Backend *be, Tensor x, Arena *scratch);
void ref_adamw(const Backend *be, const AdamWArgs *args);
void ref_sgd(const Backend *be, const SgdArgs *args);
