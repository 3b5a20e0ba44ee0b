#include "kernels/ref/ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

void backend_ref_init(Backend *be, int n_threads)
{
    *be = (Backend){
        .name = "ref",
        .n_threads = n_threads,
        .gemm = ref_gemm,
        .grouped_gemm = ref_grouped_gemm,
        .rmsnorm = ref_rmsnorm,
        .rmsnorm_backward = ref_rmsnorm_backward,
        .rope = ref_rope,
        .attention = ref_attention,
        .attention_backward = ref_attention_backward,
        .router = ref_router,
        .router_backward = ref_router_backward,
        .swiglu = ref_swiglu,
        .swiglu_backward = ref_swiglu_backward,
        .gather_rows = ref_gather_rows,
        .combine_rows = ref_combine_rows,
        .scatter_add_rows = ref_scatter_add_rows,
        .cross_entropy = ref_cross_entropy,
        .add = ref_add,
        .add_bias = ref_add_bias,
        .bias_backward = ref_bias_backward,
        .convert = ref_convert,
        .sum_squares = ref_sum_squares,
        .adamw = ref_adamw,
        .sgd = ref_sgd,
    };
}

/* The 16-bit formats: sign, exponent, mantissa. Both keep subnormals, infinities and NaN. */
typedef struct SmallFloat {
    int mantissa_bits;
    int bias;
} SmallFloat;

static SmallFloat small_float(DType dtype)
{
    assert(dtype == DTYPE_BF16 || dtype == DTYPE_F16);
    return dtype == DTYPE_BF16 ? (SmallFloat){7, 127} : (SmallFloat){10, 15};
}

static double small_to_double(SmallFloat f, uint16_t bits)
{
    int exponent_all = 2 * f.bias + 1;
    int exponent = (bits >> f.mantissa_bits) & exponent_all;
    int mantissa = bits & ((1 << f.mantissa_bits) - 1);
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == exponent_all) return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
    return sign * ldexp(mantissa + (1 << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
}

static uint16_t small_from_double(SmallFloat f, double value)
{
    int exponent_all = 2 * f.bias + 1;
    int sign = signbit(value) ? 0x8000 : 0;
    int infinity = exponent_all << f.mantissa_bits;
    if (isnan(value)) return (uint16_t)(sign | infinity | 1 << (f.mantissa_bits - 1));
    double magnitude = fabs(value);
    if (isinf(magnitude)) return (uint16_t)(sign | infinity);
    int exponent = 1 - f.bias; /* of zero and subnormals */
    if (magnitude > 0 && ilogb(magnitude) > exponent) exponent = ilogb(magnitude);
    if (exponent > f.bias) return (uint16_t)(sign | infinity);
    /* Units of the last place; a carry into the next exponent (or infinity) comes out of the addition by itself. */
    int units = (int)nearbyint(ldexp(magnitude, f.mantissa_bits - exponent));
    return (uint16_t)(sign | (((exponent + f.bias - 1) << f.mantissa_bits) + units));
}

double ref_load_any(Tensor t, int64_t i)
{
    switch (t.dtype) {
    case DTYPE_F32: return (double)((const float *)t.data)[i];
    case DTYPE_F64: return ((const double *)t.data)[i];
    default: return small_to_double(small_float(t.dtype), ((const uint16_t *)t.data)[i]);
    }
}

void ref_store_any(Tensor t, int64_t i, double value)
{
    switch (t.dtype) {
    case DTYPE_F32: ((float *)t.data)[i] = (float)value; break;
    case DTYPE_F64: ((double *)t.data)[i] = value; break;
    default: ((uint16_t *)t.data)[i] = small_from_double(small_float(t.dtype), value);
    }
}
