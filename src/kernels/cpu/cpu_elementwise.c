#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

enum { BLOCK = 4096 }; /* elements a thread takes at a time */

void cpu_rope(const Backend *be, const RopeArgs *args)
{
    if (args->x_thc.dtype != DTYPE_F32 || args->cos_pc.dtype != DTYPE_F32) {
        ref_rope(be, args);
        return;
    }
    int64_t rows = args->x_thc.dim[0], heads = args->x_thc.dim[1], half = args->x_thc.dim[2] / 2;
    int threads = cpu_threads(be, 2 * (double)tensor_size(args->x_thc));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; t++) {
        const float *cosine = (const float *)args->cos_pc.data + args->position_t[t] * half;
        const float *sine = (const float *)args->sin_pc.data + args->position_t[t] * half;
        for (int64_t h = 0; h < heads; h++) {
            float *x = (float *)args->x_thc.data + (t * heads + h) * 2 * half;
            for (int64_t c = 0; c < half; c += LANES) {
                int64_t left = half - c;
                vec x1 = vec_load_to(x + c, left), x2 = vec_load_to(x + half + c, left);
                vec cc = vec_load_to(cosine + c, left), ss = vec_load_to(sine + c, left);
                if (args->inverse) ss = -ss;
                vec_store_to(x + c, x1 * cc - x2 * ss, left);
                vec_store_to(x + half + c, x2 * cc + x1 * ss, left);
            }
        }
    }
}

static vec vec_sigmoid(vec x)
{
    return vec_set(1) / (vec_set(1) + vec_exp(-x));
}

void cpu_swiglu(const Backend *be, const SwiGluArgs *args)
{
    if (args->a_nf.dtype != DTYPE_F32) {
        ref_swiglu(be, args);
        return;
    }
    int64_t rows = args->a_nf.dim[0], cols = args->a_nf.dim[1];
    int threads = cpu_threads(be, 8 * (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        const float *gate = (const float *)args->h_n2f.data + n * 2 * cols, *up = gate + cols;
        float *a = (float *)args->a_nf.data + n * cols;
        for (int64_t f = 0; f < cols; f += LANES) {
            vec g = vec_load_to(gate + f, cols - f);
            vec_store_to(a + f, g * vec_sigmoid(g) * vec_load_to(up + f, cols - f), cols - f);
        }
    }
}

void cpu_swiglu_backward(const Backend *be, const SwiGluBackwardArgs *args)
{
    bool weighted = !tensor_is_null(args->weight_n);
    if (args->da_nf.dtype != DTYPE_F32 || (weighted && args->weight_n.dtype != DTYPE_F32)) {
        ref_swiglu_backward(be, args);
        return;
    }
    int64_t rows = args->da_nf.dim[0], cols = args->da_nf.dim[1];
    int threads = cpu_threads(be, 12 * (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        const float *gate = (const float *)args->h_n2f.data + n * 2 * cols, *up = gate + cols;
        const float *da = (const float *)args->da_nf.data + n * cols;
        const float *a = weighted ? (const float *)args->a_nf.data + n * cols : da;
        float *dgate = (float *)args->dh_n2f.data + n * 2 * cols, *dup = dgate + cols;
        vec weight = vec_set(weighted ? ((const float *)args->weight_n.data)[n] : 1), sum = {0};
        for (int64_t f = 0; f < cols; f += LANES) {
            int64_t left = cols - f;
            vec g = vec_load_to(gate + f, left), s = vec_sigmoid(g), d = vec_load_to(da + f, left);
            sum = vec_madd(d, vec_load_to(a + f, left), sum);
            d *= weight;
            vec slope = s * vec_madd(g, vec_set(1) - s, vec_set(1)); /* of silu */
            vec_store_to(dgate + f, d * vec_load_to(up + f, left) * slope, left);
            vec_store_to(dup + f, d * (g * s), left);
        }
        if (weighted) ((float *)args->dweight_n.data)[n] = vec_sum(sum);
    }
}

void cpu_add(const Backend *be, Tensor y, Tensor a, Tensor b)
{
    if (y.dtype != DTYPE_F32 || a.dtype != DTYPE_F32 || b.dtype != DTYPE_F32) {
        ref_add(be, y, a, b);
        return;
    }
    int64_t n = tensor_size(y);
    int threads = cpu_threads(be, (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < n; first += BLOCK) {
        const float *from_a = a.data, *from_b = b.data;
        float *to = y.data;
        int64_t end = cpu_smaller(n, first + BLOCK);
        for (int64_t i = first; i < end; i += LANES)
            vec_store_to(to + i,
                         vec_load_to(from_a + i, end - i) + vec_load_to(from_b + i, end - i),
                         end - i);
    }
}

void cpu_add_bias(const Backend *be, Tensor x_nd, Tensor b_d)
{
    if (x_nd.dtype != DTYPE_F32 || b_d.dtype != DTYPE_F32) {
        ref_add_bias(be, x_nd, b_d);
        return;
    }
    int64_t cols = tensor_size(b_d), rows = x_nd.dim[0];
    int threads = cpu_threads(be, (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        float *x = (float *)x_nd.data + r * cols;
        const float *b = b_d.data;
        for (int64_t d = 0; d < cols; d += LANES)
            vec_store_to(x + d, vec_load_to(x + d, cols - d) + vec_load_to(b + d, cols - d),
                         cols - d);
    }
}

void cpu_convert(const Backend *be, Tensor y, Tensor x)
{
    if (y.dtype != x.dtype) {
        ref_convert(be, y, x);
        return;
    }
    memcpy(y.data, x.data, tensor_bytes(x));
}
