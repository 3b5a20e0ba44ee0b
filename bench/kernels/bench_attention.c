/**
 * Attention forward and backward. Operations: those of causal pairs alone (4 C per pair and head forward, 10 C
 * backward), so that what is computed in vain counts against us.
 */
#include "bench.h"

#include "cases/kernel_cases.h"
#include "kernels/backend.h"

typedef struct Context {
    Backend be;
    AttentionArgs forward;
    AttentionBackwardArgs backward;
} Context;

static void run_forward(void *context)
{
    Context *c = context;
    c->be.attention(&c->be, &c->forward);
}

static void run_backward(void *context)
{
    Context *c = context;
    c->be.attention_backward(&c->be, &c->backward);
}

static Tensor random_rows(Arena *arena, DType dtype, int64_t rows, int64_t cols)
{
    Tensor t = arena_tensor2(arena, dtype, rows, cols);
    bench_fill(t);
    return t;
}

static void bench_case(const AttentionCase *shape, DType dtype, double peak, Arena *arena)
{
    ArenaMark mark = arena_mark(arena);
    int32_t *cu_q = ARENA_NEW(arena, int32_t, shape->n_segments + 1);
    int32_t *cu_k = ARENA_NEW(arena, int32_t, shape->n_segments + 1);
    double pairs = 0;
    for (int i = 0; i < shape->n_segments; i++) {
        cu_q[i + 1] = cu_q[i] + shape->nq;
        cu_k[i + 1] = cu_k[i] + shape->nk;
        pairs += shape->nq * (shape->nk - (shape->nq - 1) / 2.0);
    }
    int64_t nq = cu_q[shape->n_segments], nk = cu_k[shape->n_segments], dim = shape->head_dim;
    int64_t q_cols = shape->n_heads * dim, k_cols = shape->n_kv_heads * dim;
    Context c = {.forward = {.o_tq = random_rows(arena, dtype, nq, q_cols),
                             .lse_ht = random_rows(arena, DTYPE_F32, shape->n_heads, nq),
                             .q_tq = random_rows(arena, dtype, nq, q_cols),
                             .k_tk = random_rows(arena, dtype, nk, k_cols),
                             .v_tk = random_rows(arena, dtype, nk, k_cols),
                             .n_heads = shape->n_heads,
                             .n_kv_heads = shape->n_kv_heads,
                             .head_dim = dim,
                             .cu_q = cu_q,
                             .cu_k = cu_k,
                             .n_segments = shape->n_segments,
                             .scale = 1 / sqrt((double)dim),
                             .scratch = arena}};
    AttentionArgs *f = &c.forward;
    c.backward = (AttentionBackwardArgs){random_rows(arena, dtype, nq, q_cols),
                                         random_rows(arena, dtype, nk, k_cols),
                                         random_rows(arena, dtype, nk, k_cols),
                                         random_rows(arena, dtype, nq, q_cols),
                                         f->o_tq,
                                         f->lse_ht,
                                         f->q_tq,
                                         f->k_tk,
                                         f->v_tk,
                                         f->n_heads,
                                         f->n_kv_heads,
                                         dim,
                                         cu_q,
                                         cu_k,
                                         f->n_segments,
                                         f->scale,
                                         arena};
    char text[128];
    snprintf(text, sizeof text,
             "segments=%d queries=%d keys=%d heads=%lld kv_heads=%lld head_dim=%lld dtype=%s",
             shape->n_segments, shape->nq, shape->nk, (long long)shape->n_heads,
             (long long)shape->n_kv_heads, (long long)dim, dtype_name(dtype));
    for (int threads = 1; threads <= 2; threads++) {
        backend_cpu_init(&c.be, kernel_path_best(), threads);
        BenchTime time[2] = {0};
        double operations = pairs * (double)(shape->n_heads * dim);
        bench_time(run_forward, NULL, &c, time);
        bench_print((BenchRow){"attention", text, "cpu", threads, 4 * operations, 0, NULL}, peak,
                    time);
        bench_time(run_backward, NULL, &c, time);
        bench_print(
            (BenchRow){"attention_backward", text, "cpu", threads, 10 * operations, 0, NULL}, peak,
            time);
    }
    arena_rewind(arena, mark);
}

int main(void)
{
    Arena arena;
    arena_init(&arena, "bench");
    double peak = bench_peak();
    for (size_t i = 0; i < N_CASES(attention_cases); i++)
        if (attention_cases[i].bench_only) {
            bench_case(&attention_cases[i], DTYPE_F32, peak, &arena);
            bench_case(&attention_cases[i], DTYPE_BF16, peak, &arena);
        }
    arena_free(&arena);
    return 0;
}
