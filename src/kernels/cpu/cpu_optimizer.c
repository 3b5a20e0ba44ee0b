#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

enum { BLOCK = 4096 }; /* elements; of sum_squares part of its definition */

static double block_squares(const float *x, int64_t n)
{
    enum { SUMS = 8 };
    double sum[SUMS] = {0};
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int j = 0; j < SUMS; j++) sum[j] += (double)x[i + j] * (double)x[i + j];
    for (int j = 0; i < n; i++, j++) sum[j] += (double)x[i] * (double)x[i];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

double cpu_sum_squares(const Backend *be, Tensor x, Arena *scratch)
{
    if (x.dtype != DTYPE_F32) return ref_sum_squares(be, x, scratch);
    int64_t n = tensor_size(x), blocks = cpu_blocks(n, BLOCK);
    ArenaMark mark = arena_mark(scratch);
    double *part = ARENA_NEW(scratch, double, blocks), total = 0;
    int threads = cpu_threads(be, (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++)
        part[block] = block_squares((const float *)x.data + block * BLOCK,
                                    cpu_smaller(n - block * BLOCK, BLOCK));
    for (int64_t block = 0; block < blocks; block++) total += part[block];
    arena_rewind(scratch, mark);
    return total;
}

void cpu_adamw(const Backend *be, const AdamWArgs *args)
{
    if (args->w.dtype != DTYPE_F32 || args->g.dtype != DTYPE_F32 || args->m.dtype != DTYPE_F32) {
        ref_adamw(be, args);
        return;
    }
    double t = (double)args->t;
    vec minus_step = vec_set((float)(-args->lr / (1 - pow(args->beta1, t))));
    vec inverse_root = vec_set((float)(1 / sqrt(1 - pow(args->beta2, t))));
    vec beta1 = vec_set((float)args->beta1), beta2 = vec_set((float)args->beta2);
    vec rest1 = vec_set((float)(1 - args->beta1)), rest2 = vec_set((float)(1 - args->beta2));
    vec keep = vec_set((float)(1 - args->lr * args->weight_decay)), eps = vec_set((float)args->eps);
    vec grad_scale = vec_set((float)args->grad_scale);
    float *ws = args->w.data, *ms = args->m.data, *vs = args->v.data;
    const float *gs = args->g.data;
    int64_t n = tensor_size(args->w);
    int threads = cpu_threads(be, 6 * (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t end = cpu_smaller(n, first + BLOCK);
        for (int64_t i = first; i < end; i += LANES) {
            int64_t left = end - i;
            vec g = vec_load_to(gs + i, left) * grad_scale;
            vec m = vec_madd(beta1, vec_load_to(ms + i, left), rest1 * g);
            vec v = vec_madd(beta2, vec_load_to(vs + i, left), rest2 * g * g);
            vec change = minus_step * m / vec_madd(vec_sqrt(v), inverse_root, eps);
            vec_store_to(ws + i, vec_madd(vec_load_to(ws + i, left), keep, change), left);
            vec_store_to(ms + i, m, left);
            vec_store_to(vs + i, v, left);
        }
    }
}

void cpu_sgd(const Backend *be, const SgdArgs *args)
{
    if (args->w.dtype != DTYPE_F32 || args->g.dtype != DTYPE_F32) {
        ref_sgd(be, args);
        return;
    }
    vec decay = vec_set((float)args->weight_decay), grad_scale = vec_set((float)args->grad_scale);
    vec minus_lr = vec_set((float)-args->lr);
    float *ws = args->w.data;
    const float *gs = args->g.data;
    int64_t n = tensor_size(args->w);
    int threads = cpu_threads(be, 2 * (double)n);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t end = cpu_smaller(n, first + BLOCK);
        for (int64_t i = first; i < end; i += LANES) {
            vec w = vec_load_to(ws + i, end - i), g = vec_load_to(gs + i, end - i) * grad_scale;
            vec_store_to(ws + i, vec_madd(minus_lr, vec_madd(decay, w, g), w), end - i);
        }
    }
}
