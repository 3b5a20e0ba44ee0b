/** Norms, activations, router, loss, optimizer: bytes read and written once each, against memcpy of as many bytes. */
#include "bench.h"

#include "cases/kernel_cases.h"
#include "kernels/backend.h"

typedef struct Context {
    Backend be;
    Arena *arena;
    int64_t rows, cols;
    DType dtype;
    Tensor x, y, z, h, dh, w, dw, rstd, from, to;
    RouterArgs router;
    CrossEntropyArgs loss;
    size_t bytes;
    double sink;
} Context;

static void run_copy(void *context)
{
    Context *c = context;
    memcpy(c->to.data, c->from.data, c->bytes / 2);
}

static void run_rmsnorm(void *context)
{
    Context *c = context;
    c->be.rmsnorm(&c->be, &(RmsNormArgs){c->y, c->rstd, c->x, c->w, 1e-6});
}

static void run_rmsnorm_backward(void *context)
{
    Context *c = context;
    c->be.rmsnorm_backward(
        &c->be, &(RmsNormBackwardArgs){c->z, c->dw, c->y, c->x, c->w, c->rstd, 0, c->arena});
}

static void run_swiglu(void *context)
{
    Context *c = context;
    c->be.swiglu(&c->be, &(SwiGluArgs){c->x, c->h});
}

static void run_swiglu_backward(void *context)
{
    Context *c = context;
    c->be.swiglu_backward(&c->be, &(SwiGluBackwardArgs){c->dh, {0}, c->y, c->h, c->x, {0}});
}

static void run_add(void *context)
{
    Context *c = context;
    c->be.add(&c->be, c->z, c->x, c->y);
}

static void run_sum_squares(void *context)
{
    Context *c = context;
    c->sink += c->be.sum_squares(&c->be, c->h, c->arena);
}

static void run_adamw(void *context)
{
    Context *c = context;
    c->be.adamw(&c->be, &(AdamWArgs){c->x, c->y, c->z, c->to, 1e-9, 0.9, 0.95, 1e-8, 0.01, 1, 10});
}

static void run_router(void *context)
{
    Context *c = context;
    c->be.router(&c->be, &c->router);
}

static void run_loss(void *context)
{
    Context *c = context;
    c->be.cross_entropy(&c->be, &c->loss);
}

static const struct {
    const char *name;
    BenchWork *run;
    double floats; /* read and written per element of [rows, cols] */
    bool f32_only;
} row_kernels[] = {
    {"rmsnorm", run_rmsnorm, 2, false}, {"rmsnorm_backward", run_rmsnorm_backward, 3, false},
    {"swiglu", run_swiglu, 3, false},   {"swiglu_backward", run_swiglu_backward, 5, false},
    {"add", run_add, 3, false},         {"sum_squares", run_sum_squares, 2, true},
    {"adamw", run_adamw, 7, true},
};

static void bench_one(Context *c, const char *what, BenchWork *run, double bytes, double peak)
{
    char text[64];
    snprintf(text, sizeof text, "rows=%lld cols=%lld dtype=%s", (long long)c->rows,
             (long long)c->cols, dtype_name(c->dtype));
    c->bytes = (size_t)bytes;
    for (int threads = 1; threads <= 2; threads++) {
        backend_cpu_init(&c->be, kernel_path_best(), threads);
        BenchTime time[2] = {0};
        bench_time(run, run_copy, c, time);
        bench_print((BenchRow){what, text, "cpu", threads, 0, bytes, "memcpy on one thread"}, peak,
                    time);
    }
}

static void bench_rows(RowsCase shape, DType dtype, double peak, Arena *arena)
{
    int64_t r = shape.rows, d = shape.cols;
    Context c = {.arena = arena, .rows = r, .cols = d, .dtype = dtype};
    Tensor *plain[] = {&c.x, &c.y, &c.z};
    for (size_t i = 0; i < N_CASES(plain); i++) *plain[i] = arena_tensor2(arena, dtype, r, d);
    c.h = arena_tensor2(arena, dtype, r, 2 * d), c.dh = arena_tensor2(arena, dtype, r, 2 * d);
    c.from = arena_tensor2(arena, DTYPE_F32, r, 4 * d),
    c.to = arena_tensor2(arena, DTYPE_F32, r, 4 * d);
    c.w = arena_tensor1(arena, dtype, d), c.dw = arena_tensor1(arena, DTYPE_F32, d);
    c.rstd = arena_tensor1(arena, DTYPE_F32, r);
    Tensor filled[] = {c.x, c.y, c.h, c.w, c.from};
    for (size_t i = 0; i < N_CASES(filled); i++) bench_fill(filled[i]);
    memset(c.z.data, 0, tensor_bytes(c.z));
    for (size_t i = 0; i < N_CASES(row_kernels); i++) {
        if (dtype == DTYPE_BF16 && row_kernels[i].f32_only) continue;
        memset(c.to.data, 0, tensor_bytes(c.to));
        bench_one(&c, row_kernels[i].name, row_kernels[i].run,
                  (double)dtype_bytes(dtype) * row_kernels[i].floats * (double)(r * d), peak);
    }
}

int main(void)
{
    Arena arena;
    arena_init(&arena, "bench");
    double peak = bench_peak();
    for (size_t i = 0; i < N_CASES(rows_cases); i++)
        if (rows_cases[i].rows >= 640) {
            bench_rows(rows_cases[i], DTYPE_F32, peak, &arena);
            arena_reset(&arena);
            bench_rows(rows_cases[i], DTYPE_BF16, peak, &arena);
            arena_reset(&arena);
        }
    for (size_t i = 0; i < N_CASES(router_cases); i++) {
        int64_t t = router_cases[i].n_tokens, e = router_cases[i].n_experts,
                k = router_cases[i].n_slots;
        if (t < 640) continue;
        Context c = {.arena = &arena, .rows = t, .cols = e};
        c.router = (RouterArgs){.p_te = arena_tensor2(&arena, DTYPE_F32, t, e),
                                .lse_t = arena_tensor1(&arena, DTYPE_F32, t),
                                .weight_tk = arena_tensor2(&arena, DTYPE_F32, t, k),
                                .id_tk = arena_tensor2(&arena, DTYPE_I32, t, k),
                                .count_e = ARENA_NEW(&arena, int64_t, e),
                                .prob_sum_e = ARENA_NEW(&arena, double, e),
                                .logit_te = arena_tensor2(&arena, DTYPE_F32, t, e),
                                .normalise = true,
                                .scratch = &arena};
        bench_fill(c.router.logit_te);
        c.from = c.router.logit_te, c.to = c.router.p_te;
        bench_one(&c, "router", run_router, 8.0 * (double)(t * e), peak);
        arena_reset(&arena);
    }
    for (size_t i = 0; i < N_CASES(loss_cases); i++) {
        int64_t n = loss_cases[i].rows, v = loss_cases[i].n_ids;
        if (n < 640) continue;
        Context c = {.arena = &arena, .rows = n, .cols = v};
        int32_t *target = ARENA_NEW(&arena, int32_t, n);
        double *weight = ARENA_NEW(&arena, double, n);
        for (int64_t r = 0; r < n; r++) weight[r] = 1;
        Tensor logit = arena_tensor2(&arena, DTYPE_F32, n, v);
        bench_fill(logit);
        c.loss = (CrossEntropyArgs){logit, target, weight, &c.sink, true, &arena};
        c.from = logit, c.to = arena_tensor2(&arena, DTYPE_F32, n, v);
        bench_one(&c, "cross_entropy", run_loss, 8.0 * (double)(n * v), peak);
        arena_reset(&arena);
    }
    arena_free(&arena);
    return 0;
}
