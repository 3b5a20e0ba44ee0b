#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/cpu_vector.h"

/*
 * A unit is one head and QUERY_BLOCK queries of a segment. It meets the keys in blocks; the softmax is corrected as larger
 * scores turn up, the outputs so far being scaled down ("online softmax").
 * Source: Dao et al., "FlashAttention" (2022).
 */
typedef struct Buffers {
    float score[QUERY_BLOCK * KEY_BLOCK];
    float most[QUERY_BLOCK], sum[QUERY_BLOCK];
    float *o; /* [QUERY_BLOCK, C] */
} Buffers;

/** Scores of the first `seen` keys become e^(score - most), later ones 0; returns what the sums so far shrink by. */
static float soften(float *score, int64_t seen, int64_t n, float *most, float *sum)
{
    vec largest = vec_set(*most);
    for (int64_t j = 0; j < seen; j += LANES)
        largest = vec_max(largest, vec_load_or(score + j, seen - j, -INFINITY));
    float new_most = vec_largest(largest);
    vec shift = vec_set(new_most), total = {0};
    for (int64_t j = 0; j < seen; j += LANES) {
        vec p = vec_exp(vec_load_or(score + j, seen - j, -INFINITY) - shift);
        total += p;
        vec_store_to(score + j, p, seen - j);
    }
    if (seen < n) memset(score + seen, 0, (size_t)(n - seen) * sizeof *score);
    float shrink = *sum == 0 ? 0 : vec_exp(vec_set(*most - new_most))[0];
    *sum = *sum * shrink + vec_sum(total);
    *most = new_most;
    return shrink;
}

static void attention_unit(const AttentionArgs *args, int s, int64_t h, int64_t first_row,
                           Buffers *buffers)
{
    int64_t dim = args->head_dim, q_cols = args->n_heads * dim, k_cols = args->n_kv_heads * dim;
    int64_t nq = args->cu_q[s + 1] - args->cu_q[s], nk = args->cu_k[s + 1] - args->cu_k[s];
    int64_t rows = cpu_smaller(nq - first_row, QUERY_BLOCK), row = args->cu_q[s] + first_row;
    int64_t kv_at = args->cu_k[s] * k_cols + h / (args->n_heads / args->n_kv_heads) * dim;
    int64_t seen_first = first_row + nk - nq + 1, seen_last = seen_first + rows - 1;
    DType dtype = args->q_tq.dtype;
    float *o = buffers->o;
    for (int64_t i = 0; i < rows; i++) buffers->most[i] = -INFINITY, buffers->sum[i] = 0;
    for (int64_t k0 = 0; k0 < seen_last; k0 += KEY_BLOCK) {
        int64_t n = cpu_smaller(seen_last - k0, KEY_BLOCK);
        Product scores = {.m = rows,
                          .n = n,
                          .k = dim,
                          .a = tensor_at(args->q_tq, row * q_cols + h * dim),
                          .b = tensor_at(args->k_tk, kv_at + k0 * k_cols),
                          .c = buffers->score,
                          .dtype_a = dtype,
                          .dtype_b = dtype,
                          .lda = q_cols,
                          .ldb = k_cols,
                          .ldc = n,
                          .trans_b = true,
                          .alpha = (float)args->scale};
        cpu_product(&scores);
        for (int64_t i = 0; i < rows; i++) {
            int64_t seen = cpu_smaller(n, seen_first + i - k0);
            float *score = buffers->score + i * n;
            if (seen <= 0) {
                memset(score, 0, (size_t)n * sizeof *score);
                continue;
            }
            float shrink = soften(score, seen, n, &buffers->most[i], &buffers->sum[i]);
            if (k0 > 0)
                for (int64_t c = 0; c < dim; c++) o[i * dim + c] *= shrink;
        }
        Product weighted = {.m = rows,
                            .n = dim,
                            .k = n,
                            .a = buffers->score,
                            .b = tensor_at(args->v_tk, kv_at + k0 * k_cols),
                            .dtype_b = dtype,
                            .c = o,
                            .lda = n,
                            .ldb = k_cols,
                            .ldc = dim,
                            .alpha = 1,
                            .beta = k0 > 0 ? 1 : 0};
        cpu_product(&weighted);
    }
    float *lse = (float *)args->lse_ht.data + h * args->cu_q[args->n_segments] + row;
    for (int64_t i = 0; i < rows; i++) {
        vec inverse = vec_set(1 / buffers->sum[i]);
        int64_t at = (row + i) * q_cols + h * dim;
        for (int64_t c = 0; c < dim; c += LANES)
            vec_write(dtype, args->o_tq.data, at + c,
                      inverse * vec_load_to(o + i * dim + c, dim - c), dim - c);
        lse[i] = (float)((double)buffers->most[i] + log((double)buffers->sum[i]));
    }
}

void cpu_attention(const Backend *be, const AttentionArgs *args)
{
    if (!cpu_dtype(args->q_tq.dtype)) {
        ref_attention(be, args);
        return;
    }
    ArenaMark mark = arena_mark(args->scratch);
    int64_t *first =
        attention_units(args->scratch, args->cu_q, args->n_segments, args->n_heads, QUERY_BLOCK);
    double pairs = 0;
    for (int s = 0; s < args->n_segments; s++)
        pairs += (double)(args->cu_q[s + 1] - args->cu_q[s]) * (args->cu_k[s + 1] - args->cu_k[s]);
    int threads = cpu_threads(be, pairs * (double)(args->n_heads * (args->head_dim + 10)));
    Buffers *buffers = arena_take(args->scratch, size_mul((size_t)threads, sizeof *buffers));
    for (int i = 0; i < threads; i++)
        buffers[i].o = ARENA_NEW(args->scratch, float, QUERY_BLOCK * args->head_dim);
    int64_t n_units = first[args->n_segments];
    /* units of short segments cost little: several at a time */
    int chunk = n_units >= 64 * threads ? 8 : 1;
#pragma omp parallel for schedule(dynamic, chunk) num_threads(threads) if (threads > 1)
    for (int64_t u = 0; u < n_units; u++) {
        int s = attention_segment(first, args->n_segments, u);
        int64_t within = u - first[s];
        attention_unit(args, s, within % args->n_heads, within / args->n_heads * QUERY_BLOCK,
                       buffers + cpu_thread());
    }
    arena_rewind(args->scratch, mark);
}
