#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

enum { BLOCK = 4096 }; /* elements a thread takes at a time */

ALWAYS_INLINE void rope_token(DType dtype, const RopeArgs *args, int64_t t)
{
    int64_t heads = args->x_thc.dim[1], half = args->x_thc.dim[2] / 2;
    const float *cosine = (const float *)args->cos_pc.data + args->position_t[t] * half;
    const float *sine = (const float *)args->sin_pc.data + args->position_t[t] * half;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t c = 0; c < half; c += LANES) {
            int64_t left = half - c, first = (t * heads + h) * 2 * half + c, second = first + half;
            void *x = args->x_thc.data;
            vec x1 = vec_read(dtype, x, first, left), x2 = vec_read(dtype, x, second, left);
            vec cc = vec_load_to(cosine + c, left), ss = vec_load_to(sine + c, left);
            if (args->inverse) ss = -ss;
            vec_write(dtype, x, first, x1 * cc - x2 * ss, left);
            vec_write(dtype, x, second, x2 * cc + x1 * ss, left);
        }
}

void cpu_rope(const Backend *be, const RopeArgs *args)
{
    if (!cpu_dtype(args->x_thc.dtype) || args->cos_pc.dtype != DTYPE_F32) {
        ref_rope(be, args);
        return;
    }
    int threads = cpu_threads(be, 2 * (double)tensor_size(args->x_thc));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < args->x_thc.dim[0]; t++)
        BY_DTYPE(args->x_thc.dtype, rope_token, args, t);
}

static vec vec_sigmoid(vec x)
{
    return vec_set(1) / (vec_set(1) + vec_exp(-x));
}

ALWAYS_INLINE void swiglu_row(DType dtype, const SwiGluArgs *args, int64_t n)
{
    int64_t cols = args->a_nf.dim[1];
    const void *h = args->h_n2f.data;
    for (int64_t f = 0; f < cols; f += LANES) {
        int64_t left = cols - f, at = 2 * n * cols + f;
        vec gate = vec_read(dtype, h, at, left), up = vec_read(dtype, h, at + cols, left);
        vec_write(dtype, args->a_nf.data, n * cols + f, gate * vec_sigmoid(gate) * up, left);
    }
}

void cpu_swiglu(const Backend *be, const SwiGluArgs *args)
{
    if (!cpu_dtype(args->a_nf.dtype)) {
        ref_swiglu(be, args);
        return;
    }
    int64_t rows = args->a_nf.dim[0], cols = args->a_nf.dim[1];
    int threads = cpu_threads(be, 8 * (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) BY_DTYPE(args->a_nf.dtype, swiglu_row, args, n);
}

ALWAYS_INLINE void swiglu_backward_row(DType dtype, const SwiGluBackwardArgs *args, bool weighted,
                                       int64_t n)
{
    int64_t cols = args->da_nf.dim[1];
    const void *h = args->h_n2f.data, *a = weighted ? args->a_nf.data : args->da_nf.data;
    void *dh = args->dh_n2f.data;
    vec weight = vec_set(weighted ? ((const float *)args->weight_n.data)[n] : 1), sum = {0};
    for (int64_t f = 0; f < cols; f += LANES) {
        int64_t left = cols - f, at = n * cols + f, gate_at = 2 * n * cols + f;
        vec g = vec_read(dtype, h, gate_at, left), up = vec_read(dtype, h, gate_at + cols, left);
        vec s = vec_sigmoid(g), d = vec_read(dtype, args->da_nf.data, at, left);
        sum = vec_madd(d, vec_read(dtype, a, at, left), sum);
        d *= weight;
        vec slope = s * vec_madd(g, vec_set(1) - s, vec_set(1)); /* of silu */
        vec_write(dtype, dh, gate_at, d * up * slope, left);
        vec_write(dtype, dh, gate_at + cols, d * (g * s), left);
    }
    if (weighted) ((float *)args->dweight_n.data)[n] = vec_sum(sum);
}

void cpu_swiglu_backward(const Backend *be, const SwiGluBackwardArgs *args)
{
    bool weighted = !tensor_is_null(args->weight_n);
    if (!cpu_dtype(args->da_nf.dtype) || (weighted && args->weight_n.dtype != DTYPE_F32)) {
        ref_swiglu_backward(be, args);
        return;
    }
    int64_t rows = args->da_nf.dim[0], cols = args->da_nf.dim[1];
    int threads = cpu_threads(be, 12 * (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++)
        BY_DTYPE(args->da_nf.dtype, swiglu_backward_row, args, weighted, n);
}

ALWAYS_INLINE void add_block(DType dtype, void *y, const void *a, const void *b, int64_t first,
                             int64_t end)
{
    for (int64_t i = first; i < end; i += LANES)
        vec_write(dtype, y, i, vec_read(dtype, a, i, end - i) + vec_read(dtype, b, i, end - i),
                  end - i);
}

void cpu_add(const Backend *be, Tensor y, Tensor a, Tensor b)
{
    if (!cpu_dtype(y.dtype) || a.dtype != y.dtype || b.dtype != y.dtype) {
        ref_add(be, y, a, b);
        return;
    }
    int64_t n = tensor_size(y);
    int threads = cpu_threads(be, (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < n; first += BLOCK)
        BY_DTYPE(y.dtype, add_block, y.data, a.data, b.data, first, cpu_smaller(n, first + BLOCK));
}

ALWAYS_INLINE void add_bias_row(DType dtype, void *x, const void *b, int64_t row, int64_t cols)
{
    for (int64_t d = 0; d < cols; d += LANES) {
        int64_t at = row * cols + d, left = cols - d;
        vec_write(dtype, x, at, vec_read(dtype, x, at, left) + vec_read(dtype, b, d, left), left);
    }
}

void cpu_add_bias(const Backend *be, Tensor x_nd, Tensor b_d)
{
    if (!cpu_dtype(x_nd.dtype) || b_d.dtype != x_nd.dtype) {
        ref_add_bias(be, x_nd, b_d);
        return;
    }
    int64_t cols = tensor_size(b_d), rows = x_nd.dim[0];
    int threads = cpu_threads(be, (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
        BY_DTYPE(x_nd.dtype, add_bias_row, x_nd.data, b_d.data, r, cols);
}

ALWAYS_INLINE void convert_block(DType from, Tensor y, Tensor x, int64_t first, int64_t end)
{
    DType to = from == DTYPE_BF16 ? DTYPE_F32 : DTYPE_BF16;
    for (int64_t i = first; i < end; i += LANES)
        vec_write(to, y.data, i, vec_read(from, x.data, i, end - i), end - i);
}

void cpu_convert(const Backend *be, Tensor y, Tensor x)
{
    if (y.dtype == x.dtype) {
        memcpy(y.data, x.data, tensor_bytes(x));
        return;
    }
    if (!cpu_dtype(y.dtype) || !cpu_dtype(x.dtype)) {
        ref_convert(be, y, x);
        return;
    }
    int64_t n = tensor_size(y);
    int threads = cpu_threads(be, (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < n; first += BLOCK)
        BY_DTYPE(x.dtype, convert_block, y, x, first, cpu_smaller(n, first + BLOCK));
}
