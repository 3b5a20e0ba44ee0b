#include "kernels/cpu/cpu_attention.h"
#include "kernels/cpu/cpu_vector.h"

/*
 * A unit is one query head of a segment. Block by block the probabilities are computed again from the scores' log-sum-exp;
 * dk and dv gather over the query blocks, dq over the key blocks, each in ascending order. Where query heads share a key head,
 * each has dk and dv of its own, added afterwards.
 */
typedef struct Buffers {
    float p[QUERY_BLOCK * KEY_BLOCK], ds[QUERY_BLOCK * KEY_BLOCK];
} Buffers;

/** The matrices of one unit: data at the segment's first row and the head's first column. */
typedef struct HeadView {
    int64_t nq, nk, dim, q_cols, k_cols, dk_cols;
    DType dtype; /* of q, k, v, d_o */
    const void *q, *k, *v, *d_o;
    const float *lse, *dot; /* dot: [nq] row sums of do * o */
    float *dq, *dk, *dv;
    float scale;
} HeadView;

static const void *row_of(const HeadView *head, const void *x, int64_t row, int64_t cols)
{
    return cpu_element(x, head->dtype, row * cols);
}

/** p and ds of `rows` queries from q0 on against `n` keys from k0 on. */
static void block_scores(const HeadView *head, int64_t q0, int64_t rows, int64_t k0, int64_t n,
                         Buffers *buffers)
{
    Product scores = {.m = rows,
                      .n = n,
                      .k = head->dim,
                      .a = row_of(head, head->q, q0, head->q_cols),
                      .b = row_of(head, head->k, k0, head->k_cols),
                      .c = buffers->p,
                      .lda = head->q_cols,
                      .ldb = head->k_cols,
                      .ldc = n,
                      .dtype_a = head->dtype,
                      .dtype_b = head->dtype,
                      .trans_b = true,
                      .alpha = head->scale};
    cpu_product(&scores);
    Product dp = scores;
    dp.a = row_of(head, head->d_o, q0, head->q_cols);
    dp.b = row_of(head, head->v, k0, head->k_cols);
    dp.c = buffers->ds;
    dp.alpha = 1;
    cpu_product(&dp);
    for (int64_t i = 0; i < rows; i++) {
        float *p = buffers->p + i * n, *ds = buffers->ds + i * n;
        int64_t seen = q0 + i + head->nk - head->nq + 1 - k0;
        seen = seen < 0 ? 0 : cpu_smaller(seen, n);
        vec lse = vec_set(head->lse[q0 + i]), dot = vec_set(head->dot[q0 + i]);
        for (int64_t j = 0; j < seen; j += LANES) {
            vec pj = vec_exp(vec_load_to(p + j, seen - j) - lse);
            vec_store_to(p + j, pj, seen - j);
            vec dsj = vec_set(head->scale) * pj * (vec_load_to(ds + j, seen - j) - dot);
            vec_store_to(ds + j, dsj, seen - j);
        }
        if (seen < n) {
            memset(p + seen, 0, (size_t)(n - seen) * sizeof *p);
            memset(ds + seen, 0, (size_t)(n - seen) * sizeof *ds);
        }
    }
}

static void head_backward(const HeadView *head, Buffers *buffers)
{
    int64_t dim = head->dim, past = head->nk - head->nq;
    for (int64_t k0 = 0; k0 < head->nk; k0 += KEY_BLOCK) {
        int64_t keys = cpu_smaller(head->nk - k0, KEY_BLOCK);
        /* the first query block with a query that sees key k0 */
        int64_t q_first = k0 > past ? (k0 - past) / QUERY_BLOCK * QUERY_BLOCK : 0;
        for (int64_t q0 = q_first; q0 < head->nq; q0 += QUERY_BLOCK) {
            int64_t rows = cpu_smaller(head->nq - q0, QUERY_BLOCK);
            int64_t n = cpu_smaller(q0 + rows + past - k0, keys);
            block_scores(head, q0, rows, k0, n, buffers);
            Product dv = {.m = n,
                          .n = dim,
                          .k = rows,
                          .a = buffers->p,
                          .b = row_of(head, head->d_o, q0, head->q_cols),
                          .c = head->dv + k0 * head->dk_cols,
                          .lda = n,
                          .ldb = head->q_cols,
                          .ldc = head->dk_cols,
                          .dtype_b = head->dtype,
                          .trans_a = true,
                          .alpha = 1,
                          .beta = 1};
            cpu_product(&dv);
            Product dk = dv;
            dk.a = buffers->ds;
            dk.b = row_of(head, head->q, q0, head->q_cols);
            dk.c = head->dk + k0 * head->dk_cols;
            cpu_product(&dk);
            Product dq = {.m = rows,
                          .n = dim,
                          .k = n,
                          .a = buffers->ds,
                          .b = row_of(head, head->k, k0, head->k_cols),
                          .c = head->dq + q0 * head->q_cols,
                          .lda = n,
                          .ldb = head->k_cols,
                          .ldc = head->q_cols,
                          .dtype_b = head->dtype,
                          .alpha = 1,
                          .beta = k0 > 0 ? 1 : 0};
            cpu_product(&dq);
        }
    }
}

/* [nq] row sums of o * do. */
ALWAYS_INLINE void row_dots(DType dtype, const HeadView *head, const void *o, float *dot)
{
    for (int64_t i = 0; i < head->nq; i++) {
        vec sum = {0};
        for (int64_t c = 0; c < head->dim; c += LANES) {
            int64_t at = i * head->q_cols + c, left = head->dim - c;
            sum = vec_madd(vec_read(dtype, o, at, left), vec_read(dtype, head->d_o, at, left), sum);
        }
        dot[i] = vec_sum(sum);
    }
}

/* Gradients while they are sums: dq [Tq, H*C]; dk, dv [Tk, dk_cols], each query head its own columns. */
typedef struct Sums {
    float *dq, *dk, *dv;
    int64_t dk_cols;
} Sums;

/** Zero dk and dv of the head, sum up do * o, and go. */
static void backward_unit(const AttentionBackwardArgs *args, int s, int64_t h, const Sums *sums,
                          float *dot, Buffers *buffers)
{
    int64_t dim = args->head_dim, q_cols = args->n_heads * dim, k_cols = args->n_kv_heads * dim;
    int64_t q_row = args->cu_q[s], k_row = args->cu_k[s];
    int64_t q_at = q_row * q_cols + h * dim;
    int64_t k_at = k_row * k_cols + h / (args->n_heads / args->n_kv_heads) * dim;
    int64_t dk_at = k_row * sums->dk_cols + h * dim;
    HeadView head = {.nq = args->cu_q[s + 1] - q_row,
                     .nk = args->cu_k[s + 1] - k_row,
                     .dim = dim,
                     .q_cols = q_cols,
                     .k_cols = k_cols,
                     .dk_cols = sums->dk_cols,
                     .dtype = args->q_tq.dtype,
                     .q = tensor_at(args->q_tq, q_at),
                     .k = tensor_at(args->k_tk, k_at),
                     .v = tensor_at(args->v_tk, k_at),
                     .d_o = tensor_at(args->do_tq, q_at),
                     .lse = (const float *)args->lse_ht.data + h * args->cu_q[args->n_segments] +
                            q_row,
                     .dot = dot,
                     .dq = sums->dq + q_at,
                     .dk = sums->dk + dk_at,
                     .dv = sums->dv + dk_at,
                     .scale = (float)args->scale};
    for (int64_t j = 0; j < head.nk; j++) {
        memset(head.dk + j * head.dk_cols, 0, (size_t)dim * sizeof *head.dk);
        memset(head.dv + j * head.dk_cols, 0, (size_t)dim * sizeof *head.dv);
    }
    BY_DTYPE(head.dtype, row_dots, &head, tensor_at(args->o_tq, q_at), dot);
    head_backward(&head, buffers);
}

/** y [rows, G*C] = sums over each group of query heads, in ascending order, of x [rows, H*C]. */
static void add_groups(const Backend *be, Tensor y, const float *x, int64_t group, int64_t dim)
{
    int64_t n = tensor_size(y) / dim;
    int threads = cpu_threads(be, (double)(n * group * dim));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < dim; c += LANES) {
            vec sum = {0};
            for (int64_t h = 0; h < group; h++)
                sum += vec_load_to(x + (i * group + h) * dim + c, dim - c);
            vec_write(y.dtype, y.data, i * dim + c, sum, dim - c);
        }
}

void cpu_attention_backward(const Backend *be, const AttentionBackwardArgs *args)
{
    if (!cpu_dtype(args->q_tq.dtype)) {
        ref_attention_backward(be, args);
        return;
    }
    int64_t dim = args->head_dim, n_heads = args->n_heads, group = n_heads / args->n_kv_heads;
    int64_t n_queries = args->cu_q[args->n_segments], n_keys = args->cu_k[args->n_segments];
    int64_t most_queries = 0;
    double pairs = 0;
    for (int s = 0; s < args->n_segments; s++) {
        int64_t nq = args->cu_q[s + 1] - args->cu_q[s];
        pairs += (double)nq * (args->cu_k[s + 1] - args->cu_k[s]);
        if (nq > most_queries) most_queries = nq;
    }
    int threads = cpu_threads(be, pairs * (double)(n_heads * (3 * dim + 20)));
    ArenaMark mark = arena_mark(args->scratch);
    Buffers *buffers = arena_take(args->scratch, size_mul((size_t)threads, sizeof *buffers));
    float *dot = ARENA_NEW(args->scratch, float, threads *most_queries);
    Sums sums = {args->dq_tq.data, args->dk_tk.data, args->dv_tk.data, n_heads * dim};
    bool rounds = args->q_tq.dtype == DTYPE_BF16;
    if (rounds) sums.dq = arena_tensor2(args->scratch, DTYPE_F32, n_queries, n_heads * dim).data;
    if (rounds || group > 1) {
        sums.dk = arena_tensor2(args->scratch, DTYPE_F32, n_keys, sums.dk_cols).data;
        sums.dv = arena_tensor2(args->scratch, DTYPE_F32, n_keys, sums.dk_cols).data;
    }
    int64_t n_units = args->n_segments * n_heads;
    int chunk = n_units >= 64 * threads ? 8 : 1;
#pragma omp parallel for schedule(dynamic, chunk) num_threads(threads) if (threads > 1)
    for (int64_t u = 0; u < n_units; u++)
        backward_unit(args, (int)(u / n_heads), u % n_heads, &sums,
                      dot + cpu_thread() * most_queries, buffers + cpu_thread());
    if (rounds) add_groups(be, args->dq_tq, sums.dq, 1, dim);
    if (rounds || group > 1) {
        add_groups(be, args->dk_tk, sums.dk, group, dim);
        add_groups(be, args->dv_tk, sums.dv, group, dim);
    }
    arena_rewind(args->scratch, mark);
}
