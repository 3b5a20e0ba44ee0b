/**
 * bf16 products against oneDNN's matmul (operands in place as stored, primitives made beforehand, scratchpad of the user's) in
 * the three directions of a linear. Built where oneDNN is found.
 */
#include "bench.h"

#include "kernels/backend.h"

#include <oneapi/dnnl/dnnl.h>

typedef struct Context {
    Backend be;
    GemmArgs gemm;
    dnnl_primitive_t matmul;
    dnnl_stream_t stream;
    dnnl_exec_arg_t args[4];
} Context;

static void must(dnnl_status_t status)
{
    if (status == dnnl_success) return;
    fprintf(stderr, "oneDNN: status %d\n", (int)status);
    exit(1);
}

static void run_ours(void *context)
{
    Context *c = context;
    c->be.gemm(&c->be, &c->gemm);
}

static void run_onednn(void *context)
{
    Context *c = context;
    must(dnnl_primitive_execute(c->matmul, c->stream, 4, c->args));
    must(dnnl_stream_wait(c->stream));
}

static dnnl_memory_desc_t matrix(Tensor t, bool transposed)
{
    dnnl_memory_desc_t desc;
    const dnnl_dims_t dims = {t.dim[transposed], t.dim[!transposed]};
    must(dnnl_memory_desc_init_by_tag(&desc, 2, dims, t.dtype == DTYPE_BF16 ? dnnl_bf16 : dnnl_f32,
                                      transposed ? dnnl_ba : dnnl_ab));
    return desc;
}

static dnnl_memory_t memory(dnnl_engine_t engine, dnnl_memory_desc_t desc, void *data)
{
    dnnl_memory_t out;
    must(dnnl_memory_create(&out, &desc, engine, data));
    return out;
}

/* The same product as c->gemm. */
static void make_onednn(Context *c, dnnl_engine_t engine, Arena *arena)
{
    const GemmArgs *g = &c->gemm;
    const dnnl_memory_desc_t a = matrix(g->a, g->trans_a), b = matrix(g->b, g->trans_b),
                             y = matrix(g->c, false);
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t post;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t primitive;
    must(dnnl_primitive_attr_create(&attr));
    must(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    must(dnnl_post_ops_create(&post));
    if (g->beta > 0) must(dnnl_post_ops_append_sum(post, (float)g->beta));
    must(dnnl_primitive_attr_set_post_ops(attr, post));
    must(dnnl_matmul_desc_init(&desc, &a, &b, NULL, &y));
    must(dnnl_primitive_desc_create(&primitive, &desc, attr, engine, NULL));
    must(dnnl_primitive_create(&c->matmul, primitive));
    const dnnl_memory_desc_t *pad =
        dnnl_primitive_desc_query_md(primitive, dnnl_query_scratchpad_md, 0);
    void *scratch = arena_take(arena, dnnl_memory_desc_get_size(pad) + 64);
    c->args[0] = (dnnl_exec_arg_t){DNNL_ARG_SRC, memory(engine, a, g->a.data)};
    c->args[1] = (dnnl_exec_arg_t){DNNL_ARG_WEIGHTS, memory(engine, b, g->b.data)};
    c->args[2] = (dnnl_exec_arg_t){DNNL_ARG_DST, memory(engine, y, g->c.data)};
    c->args[3] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, memory(engine, *pad, scratch)};
    must(dnnl_primitive_desc_destroy(primitive));
    must(dnnl_post_ops_destroy(post));
    must(dnnl_primitive_attr_destroy(attr));
}

static const struct {
    const char *name;
    bool trans_a, trans_b;
    DType dtype;
    double beta;
} directions[] = {{"forward", false, true, DTYPE_BF16, 0},
                  {"input_grad", false, false, DTYPE_BF16, 0},
                  {"weight_grad", true, false, DTYPE_F32, 1}};

/* A linear's tokens, inputs, outputs: dense ones, an expert's, the head (whose logits are f32). */
static const struct {
    int64_t tokens, in, out;
} shapes[] = {
    {1024, 512, 512}, {1024, 768, 2048}, {256, 512, 384}, {256, 384, 512}, {1024, 512, 32000}};

int main(void)
{
    Arena arena;
    arena_init(&arena, "bench");
    double peak = bench_peak();
    Context c = {0};
    dnnl_engine_t engine;
    kernel_path_best(); /* asks for the tiles before there are threads */
    must(dnnl_engine_create(&engine, dnnl_cpu, 0));
    must(dnnl_stream_create(&c.stream, engine, dnnl_stream_default_flags));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t d = 0; d < 3; d++)
            for (int threads = 1; threads <= 2; threads++) {
                if (shapes[i].out == 32000 && d > 0) continue; /* gradients of logits are f32 */
                ArenaMark mark = arena_mark(&arena);
                const int64_t t = shapes[i].tokens, in = shapes[i].in, out = shapes[i].out;
                const int64_t m = d == 2 ? out : t, n = d == 0 ? out : in,
                              k = d == 0   ? in
                                  : d == 1 ? out
                                           : t;
                const bool ta = directions[d].trans_a, tb = directions[d].trans_b;
                DType dtype = out == 32000 ? DTYPE_F32 : directions[d].dtype;
                c.gemm = (GemmArgs){.a = arena_tensor2(&arena, DTYPE_BF16, ta ? k : m, ta ? m : k),
                                    .b = arena_tensor2(&arena, DTYPE_BF16, tb ? n : k, tb ? k : n),
                                    .c = arena_tensor2(&arena, dtype, m, n),
                                    .trans_a = ta,
                                    .trans_b = tb,
                                    .beta = directions[d].beta};
                bench_fill(c.gemm.a), bench_fill(c.gemm.b), bench_fill(c.gemm.c);
                backend_cpu_init(&c.be, kernel_path_best(), threads);
                omp_set_num_threads(threads);
                make_onednn(&c, engine, &arena);
                BenchTime time[2] = {0};
                bench_time(run_ours, run_onednn, &c, time);
                char what[32], text[64];
                snprintf(what, sizeof what, "gemm_%s_bf16", directions[d].name);
                snprintf(text, sizeof text, "m=%lld n=%lld k=%lld", (long long)m, (long long)n,
                         (long long)k);
                bench_print((BenchRow){what, text, c.be.name, threads,
                                       2.0 * (double)m * (double)(n * k), 0, "onednn"},
                            peak, time);
                for (int arg = 0; arg < 4; arg++) must(dnnl_memory_destroy(c.args[arg].memory));
                must(dnnl_primitive_destroy(c.matmul));
                arena_rewind(&arena, mark);
            }
    must(dnnl_stream_destroy(c.stream));
    must(dnnl_engine_destroy(engine));
    arena_free(&arena);
    return 0;
}
