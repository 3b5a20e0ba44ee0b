#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

void ref_rope(const Backend *be, const RopeArgs *args)
{
    (void)be;
    int64_t heads = args->x_thc.dim[1], dim = args->x_thc.dim[2], half = dim / 2;
    for (int64_t t = 0; t < args->x_thc.dim[0]; t++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t c = 0; c < half; c++) {
                int64_t table = args->position_t[t] * half + c;
                double cosine = ref_load(args->cos_pc, table);
                double sine = ref_load(args->sin_pc, table) * (args->inverse ? -1 : 1);
                int64_t i1 = (t * heads + h) * dim + c, i2 = i1 + half;
                double x1 = ref_load(args->x_thc, i1), x2 = ref_load(args->x_thc, i2);
                ref_store(args->x_thc, i1, x1 * cosine - x2 * sine);
                ref_store(args->x_thc, i2, x2 * cosine + x1 * sine);
            }
}

static double dot(Tensor a, int64_t a0, Tensor b, int64_t b0, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++) sum += ref_load(a, a0 + c) * ref_load(b, b0 + c);
    return sum;
}

void ref_attention(const Backend *be, const AttentionArgs *args)
{
    (void)be;
    int64_t n_heads = args->n_heads, n_kv = args->n_kv_heads, dim = args->head_dim;
    int64_t n_queries = args->cu_q[args->n_segments];
    for (int s = 0; s < args->n_segments; s++) {
        int64_t q0 = args->cu_q[s], nq = args->cu_q[s + 1] - q0;
        int64_t k0 = args->cu_k[s], nk = args->cu_k[s + 1] - k0;
        ArenaMark mark = arena_mark(args->scratch);
        double *p = ARENA_NEW(args->scratch, double, nk);
        for (int64_t h = 0; h < n_heads; h++)
            for (int64_t i = 0; i < nq; i++) {
                int64_t kv_column = h / (n_heads / n_kv) * dim, seen = i + nk - nq + 1;
                int64_t q_at = (q0 + i) * n_heads * dim + h * dim;
                double most = -INFINITY, sum = 0;
                for (int64_t j = 0; j < seen; j++) {
                    int64_t k_at = (k0 + j) * n_kv * dim + kv_column;
                    p[j] = args->scale * dot(args->q_tq, q_at, args->k_tk, k_at, dim);
                    if (p[j] > most) most = p[j];
                }
                for (int64_t j = 0; j < seen; j++) sum += p[j] = exp(p[j] - most);
                for (int64_t c = 0; c < dim; c++) {
                    double o = 0;
                    for (int64_t j = 0; j < seen; j++)
                        o += p[j] * ref_load(args->v_tk, (k0 + j) * n_kv * dim + kv_column + c);
                    ref_store(args->o_tq, q_at + c, o / sum);
                }
                ref_store(args->lse_ht, h * n_queries + q0 + i, most + log(sum));
            }
        arena_rewind(args->scratch, mark);
    }
}

/* One key/value head of one segment: all its query heads add into dk, dv [nk, C]. */
static void backward_kv_head(const AttentionBackwardArgs *args, int s, int64_t g, double *dk,
                             double *dv, double *dq)
{
    int64_t n_heads = args->n_heads, n_kv = args->n_kv_heads, dim = args->head_dim;
    int64_t n_queries = args->cu_q[args->n_segments], group = n_heads / n_kv;
    int64_t q0 = args->cu_q[s], nq = args->cu_q[s + 1] - q0;
    int64_t k0 = args->cu_k[s], nk = args->cu_k[s + 1] - k0;
    for (int64_t h = g * group; h < (g + 1) * group; h++)
        for (int64_t i = 0; i < nq; i++) {
            int64_t q_at = (q0 + i) * n_heads * dim + h * dim;
            double lse = ref_load(args->lse_ht, h * n_queries + q0 + i);
            double rowsum = dot(args->do_tq, q_at, args->o_tq, q_at, dim);
            memset(dq, 0, (size_t)dim * sizeof *dq);
            for (int64_t j = 0; j <= i + nk - nq; j++) {
                int64_t k_at = (k0 + j) * n_kv * dim + g * dim;
                double p = exp(args->scale * dot(args->q_tq, q_at, args->k_tk, k_at, dim) - lse);
                double dp = dot(args->do_tq, q_at, args->v_tk, k_at, dim);
                double ds = args->scale * p * (dp - rowsum);
                for (int64_t c = 0; c < dim; c++) {
                    dq[c] += ds * ref_load(args->k_tk, k_at + c);
                    dk[j * dim + c] += ds * ref_load(args->q_tq, q_at + c);
                    dv[j * dim + c] += p * ref_load(args->do_tq, q_at + c);
                }
            }
            for (int64_t c = 0; c < dim; c++) ref_store(args->dq_tq, q_at + c, dq[c]);
        }
}

void ref_attention_backward(const Backend *be, const AttentionBackwardArgs *args)
{
    (void)be;
    int64_t n_kv = args->n_kv_heads, dim = args->head_dim;
    for (int s = 0; s < args->n_segments; s++)
        for (int64_t g = 0; g < n_kv; g++) {
            int64_t k0 = args->cu_k[s], nk = args->cu_k[s + 1] - k0;
            ArenaMark mark = arena_mark(args->scratch);
            double *dk = ARENA_NEW(args->scratch, double, nk *dim);
            double *dv = ARENA_NEW(args->scratch, double, nk *dim);
            double *dq = ARENA_NEW(args->scratch, double, dim);
            backward_kv_head(args, s, g, dk, dv, dq);
            for (int64_t j = 0; j < nk; j++)
                for (int64_t c = 0; c < dim; c++) {
                    int64_t at = (k0 + j) * n_kv * dim + g * dim + c;
                    ref_store(args->dk_tk, at, dk[j * dim + c]);
                    ref_store(args->dv_tk, at, dv[j * dim + c]);
                }
            arena_rewind(args->scratch, mark);
        }
}
