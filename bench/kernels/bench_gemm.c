/**
 * Dense and grouped products in the three directions of a linear: f32 against cblas_sgemm, bf16 (weight gradients into f32)
 * against our own in f32.
 */
#include "bench.h"

#include "cases/kernel_cases.h"
#include "kernels/backend.h"

typedef struct Context {
    Backend be;
    GemmArgs gemm, gemm_bf16;
    GroupedGemmArgs grouped, grouped_bf16;
} Context;

static void run_gemm(void *context)
{
    Context *c = context;
    c->be.gemm(&c->be, &c->gemm);
}

static void run_gemm_bf16(void *context)
{
    Context *c = context;
    c->be.gemm(&c->be, &c->gemm_bf16);
}

/** A filled bf16 tensor of the same shape. */
static Tensor bf16_like(Arena *arena, Tensor t)
{
    t.dtype = DTYPE_BF16;
    t.data = arena_take(arena, tensor_bytes(t));
    bench_fill(t);
    return t;
}

static void sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda,
                  const float *b, int64_t ldb, float beta, float *c)
{
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans,
                (int)m, (int)n, (int)k, 1, a, (int)lda, b, (int)ldb, beta, c, (int)n);
}

static void run_blas(void *context)
{
    GemmArgs *g = &((Context *)context)->gemm;
    sgemm(g->trans_a, g->trans_b, g->c.dim[0], g->c.dim[1], g->a.dim[g->trans_a ? 0 : 1], g->a.data,
          g->a.dim[1], g->b.data, g->b.dim[1], (float)g->beta, g->c.data);
}

static void run_grouped(void *context)
{
    Context *c = context;
    c->be.grouped_gemm(&c->be, &c->grouped);
}

static void run_grouped_bf16(void *context)
{
    Context *c = context;
    c->be.grouped_gemm(&c->be, &c->grouped_bf16);
}

/** One product per expert, one after the other. */
static void run_grouped_blas(void *context)
{
    GroupedGemmArgs *g = &((Context *)context)->grouped;
    bool weight = g->kind == GROUPED_BACKWARD_WEIGHT, forward = g->kind == GROUPED_FORWARD;
    Tensor stack = weight ? g->c : g->b;
    int64_t out = stack.dim[1], in = stack.dim[2];
    for (int64_t e = 0; e < g->n_groups; e++) {
        int64_t first = g->offset_e[e], rows = g->offset_e[e + 1] - first;
        const float *a = (const float *)g->a.data + first * g->a.dim[1];
        if (weight)
            sgemm(true, false, out, in, rows, a, out, (const float *)g->b.data + first * in, in, 1,
                  (float *)g->c.data + e * out * in);
        else
            sgemm(false, forward, rows, forward ? out : in, forward ? in : out, a, g->a.dim[1],
                  (const float *)g->b.data + e * out * in, in, 0,
                  (float *)g->c.data + first * g->c.dim[1]);
    }
}

static const struct {
    const char *name;
    bool trans_a, trans_b;
} directions[] = {
    {"forward", false, true}, {"input_grad", false, false}, {"weight_grad", true, false}};

static void bench_dense(Context *c, GemmCase shape, double peak, Arena *arena)
{
    for (size_t d = 0; d < N_CASES(directions); d++)
        for (int threads = 1; threads <= 2; threads++) {
            ArenaMark mark = arena_mark(arena);
            bool ta = directions[d].trans_a, tb = directions[d].trans_b;
            int64_t m = shape.m, n = shape.n, k = shape.k;
            c->gemm = (GemmArgs){.a = arena_tensor2(arena, DTYPE_F32, ta ? k : m, ta ? m : k),
                                 .b = arena_tensor2(arena, DTYPE_F32, tb ? n : k, tb ? k : n),
                                 .c = arena_tensor2(arena, DTYPE_F32, m, n),
                                 .trans_a = ta,
                                 .trans_b = tb};
            bench_fill(c->gemm.a), bench_fill(c->gemm.b);
            backend_cpu_init(&c->be, kernel_path_best(), threads);
            bench_blas_threads(threads);
            BenchTime time[2] = {0};
            bench_time(run_gemm, run_blas, c, time);
            char what[32], text[64];
            snprintf(what, sizeof what, "gemm_%s", directions[d].name);
            snprintf(text, sizeof text, "m=%lld n=%lld k=%lld", (long long)m, (long long)n,
                     (long long)k);
            double operations = 2.0 * (double)m * (double)(n * k);
            bench_print((BenchRow){what, text, "cpu", threads, operations, 0, "openblas"}, peak,
                        time);
            c->gemm_bf16 = c->gemm;
            c->gemm_bf16.a = bf16_like(arena, c->gemm.a);
            c->gemm_bf16.b = bf16_like(arena, c->gemm.b);
            if (!ta) c->gemm_bf16.c = bf16_like(arena, c->gemm.c);
            bench_time(run_gemm_bf16, run_gemm, c, time);
            snprintf(what, sizeof what, "gemm_%s_bf16", directions[d].name);
            bench_print((BenchRow){what, text, "cpu", threads, operations, 0, "cpu in f32"}, peak,
                        time);
            arena_rewind(arena, mark);
        }
}

static void bench_experts(Context *c, const GroupedCase *shape, double peak, Arena *arena)
{
    int32_t offset[18] = {0};
    int64_t n = 0;
    for (; shape->rows[n] >= 0; n++) offset[n + 1] = offset[n] + shape->rows[n];
    ArenaMark mark = arena_mark(arena);
    Tensor x = arena_tensor2(arena, DTYPE_F32, offset[n], shape->in);
    Tensor y = arena_tensor2(arena, DTYPE_F32, offset[n], shape->out);
    Tensor w = arena_tensor3(arena, DTYPE_F32, n, shape->out, shape->in);
    bench_fill(x), bench_fill(y), bench_fill(w);
    Tensor dx = arena_tensor2(arena, DTYPE_F32, offset[n], shape->in);
    Tensor y_out = arena_tensor2(arena, DTYPE_F32, offset[n], shape->out);
    Tensor dw = arena_tensor3(arena, DTYPE_F32, n, shape->out, shape->in);
    bench_fill(dw);
    const GroupedGemmArgs kinds[] = {
        [GROUPED_FORWARD] = {GROUPED_FORWARD, y_out, x, w, offset, n, 0},
        [GROUPED_BACKWARD_INPUT] = {GROUPED_BACKWARD_INPUT, dx, y, w, offset, n, 0},
        [GROUPED_BACKWARD_WEIGHT] = {GROUPED_BACKWARD_WEIGHT, dw, y, x, offset, n, 0},
    };
    for (size_t kind = 0; kind < N_CASES(kinds); kind++)
        for (int threads = 1; threads <= 2; threads++) {
            c->grouped = kinds[kind];
            backend_cpu_init(&c->be, kernel_path_best(), threads);
            bench_blas_threads(threads);
            BenchTime time[2] = {0};
            bench_time(run_grouped, run_grouped_blas, c, time);
            char what[32], text[96];
            snprintf(what, sizeof what, "grouped_%s", directions[kind].name);
            snprintf(text, sizeof text, "experts=%lld rows=%d first_rows=%d in=%lld out=%lld",
                     (long long)n, offset[n], shape->rows[0], (long long)shape->in,
                     (long long)shape->out);
            double operations = 2.0 * offset[n] * (double)(shape->in * shape->out);
            bench_print(
                (BenchRow){what, text, "cpu", threads, operations, 0, "openblas per expert"}, peak,
                time);
            ArenaMark bf16_mark = arena_mark(arena);
            c->grouped_bf16 = c->grouped;
            c->grouped_bf16.a = bf16_like(arena, c->grouped.a);
            c->grouped_bf16.b = bf16_like(arena, c->grouped.b);
            if (kind != GROUPED_BACKWARD_WEIGHT) c->grouped_bf16.c = bf16_like(arena, c->grouped.c);
            bench_time(run_grouped_bf16, run_grouped, c, time);
            snprintf(what, sizeof what, "grouped_%s_bf16", directions[kind].name);
            bench_print((BenchRow){what, text, "cpu", threads, operations, 0, "cpu in f32"}, peak,
                        time);
            arena_rewind(arena, bf16_mark);
        }
    arena_rewind(arena, mark);
}

int main(void)
{
    Arena arena;
    arena_init(&arena, "bench");
    Context c = {0};
    double peak = bench_peak();
    for (size_t i = 0; i < N_CASES(gemm_cases); i++) {
        GemmCase shape = gemm_cases[i];
        if ((double)shape.m * (double)(shape.n * shape.k) > 3e5)
            bench_dense(&c, shape, peak, &arena);
    }
    for (size_t i = 0; i < N_CASES(grouped_cases); i++)
        if (grouped_cases[i].bench_only) bench_experts(&c, &grouped_cases[i], peak, &arena);
    arena_free(&arena);
    return 0;
}
