/** A decoder layer in bf16: the cpu kernels against the reference, and what stays f32 within. */
#include "fixture.h"
#include "nn/block.h"

enum { D = 48, H = 4, G = 2, C = 12, F = 20, E = 4, LAYER = 0 };

/** What a forward and a backward leave: y, dx and the gradients of all parameters. */
typedef struct Result {
    Fixture f;
    RopeTables rope;
    Block block;
    Tensor y, dx;
} Result;

static void run_block(Result *r, DType dtype, bool cpu, int n_threads, bool is_moe)
{
    *r = (Result){0};
    Fixture *f = &r->f;
    fixture_open(f, dtype);
    if (cpu) backend_cpu_init(&f->be, kernel_path_best(), n_threads);
    fixture_row(f, 3, (const int[]){90, 1, 37}, 10);
    f->mb.balancing_scale = 0.7;
    f->mb.z_scale = 0.05;
    const RopeConfig rope = {.kind = ROPE_DEFAULT, .theta = 1e4};
    assert_int_equal(rope_tables_build(&r->rope, &f->model, &rope, C, 90, f->run.dtype_acc), OK);
    /* All experts are chosen: no rounding flips a decision. */
    const BlockConfig config = {.layer = LAYER,
                                .hidden = D,
                                .norm_eps = 1e-6,
                                .attention = {.n_heads = H,
                                              .n_kv_heads = G,
                                              .head_dim = C,
                                              .bias = true,
                                              .qk_norm = true,
                                              .norm_eps = 1e-6,
                                              .scale = 0.29,
                                              .rope = &r->rope},
                                .is_moe = is_moe,
                                .ffn_dense = F,
                                .moe = {.n_experts = E, .top_k = E, .ffn = F, .normalise = true}};
    block_declare(&r->block, &f->set, &config);
    fixture_layout(f);
    int64_t count_e[E];
    RouterStats stats = {.count_e = count_e};
    BlockSaved saved;
    Tensor x = fixture_random(f, "x", f->mb.n_tokens, D);
    Tensor dy = fixture_random(f, "dy", f->mb.n_tokens, D);
    r->y = fixture_tensor(f, f->mb.n_tokens, D);
    r->dx = fixture_tensor(f, f->mb.n_tokens, D);
    block_forward(&r->block, &saved, &f->run, &f->f_to_i, &f->f_to_w, &stats, r->y, x);
    block_backward_input(&r->block, &saved, &f->run, &f->i_to_w, r->dx, dy);
    block_backward_weight(&r->block, &saved, &f->run);
}

/** ‖a - b‖ / ‖b‖ */
static double distance(Tensor a, Tensor b)
{
    double difference = 0;
    for (int64_t i = 0; i < tensor_size(b); i++) {
        double d = load(a, i) - load(b, i);
        difference += d * d;
    }
    return sqrt(difference / dot(b, b));
}

static void assert_within(const char *what, Tensor got, Tensor want, double tolerance)
{
    double d = distance(got, want);
    if (!(d <= tolerance)) fail_msg("%s: off by %.3g, allowed %.3g", what, d, tolerance);
}

/*
 * bf16 has 8 bits: a rounding is off by 2^-9 = 0.002 at most, 0.0011 in the mean. cpu and ref round alike but where their
 * f32 and f64 sums fall on different sides: few elements, but one early in the layer moves the inputs of all roundings
 * that follow by some d, which moves their results by about sqrt(d 2^-9) (found: 0.0003 and 0.0011, by path). Gradients of
 * weights, which nothing rounds, differ by what follows from those (up to 0.0001 and 0.001). Both are off from the layer
 * computed in f64 by some ten roundings (0.024).
 */
static void block_bf16__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    for (int is_moe = 0; is_moe < 2; is_moe++) {
        Result exact, ref, cpu, threads;
        run_block(&exact, DTYPE_F64, false, 1, is_moe);
        run_block(&ref, DTYPE_BF16, false, 1, is_moe);
        run_block(&cpu, DTYPE_BF16, true, 1, is_moe);
        run_block(&threads, DTYPE_BF16, true, 3, is_moe);
        assert_within("y", cpu.y, ref.y, 0.002);
        assert_within("dx", cpu.dx, ref.dx, 0.002);
        assert_within("y in f64", cpu.y, exact.y, 0.05);
        assert_within("dx in f64", cpu.dx, exact.dx, 0.05);
        assert_same_bits("y", threads.y, cpu.y);
        assert_same_bits("dx", threads.dx, cpu.dx);
        for (int i = 0; i < cpu.f.set.n; i++) {
            const Param *c = cpu.f.set.at[i], *r = ref.f.set.at[i], *e = exact.f.set.at[i];
            assert_int_equal(c->grad.dtype, DTYPE_F32);
            assert_within(c->name, c->grad, r->grad, 0.002);
            assert_within(c->name, c->grad, e->grad, 0.05);
        }
        assert_same_bits("gradients", threads.f.set.grads, cpu.f.set.grads);
        Result *all[] = {&exact, &ref, &cpu, &threads};
        for (int i = 0; i < 4; i++) fixture_close(&all[i]->f);
    }
}

/** The router of one run on integers: every logit is exact in f32, few are in bf16. */
static RouterSaved run_router(Fixture *f, DType dtype, bool cpu, int *n_wide)
{
    enum { T = 33 };
    fixture_open(f, dtype);
    if (cpu) backend_cpu_init(&f->be, kernel_path_best(), 2);
    fixture_row(f, 1, (const int[]){T}, 10);
    f->mb.balancing_scale = 0.7;
    f->mb.z_scale = 0.05;
    Router m;
    router_declare(&m, &f->set, LAYER, D, E, 2, true);
    fixture_layout(f);
    Tensor x = fixture_tensor(f, T, D), w = f->set.at[0]->value, dx = fixture_tensor(f, T, D);
    uint64_t key = rng_key(5, "integers"); /* of 8 bits, so that bf16 holds them */
    for (int64_t i = 0; i < T * D; i++)
        store(x, i, (double)(rng_bits(key, (uint64_t)i) % 255) - 127);
    for (int64_t i = 0; i < E * D; i++)
        store(w, i, ((double)(rng_bits(key, (uint64_t)(T * D + i)) % 255) - 127) / 32768);
    for (int64_t t = 0; t < T; t++) {
        double logit = 0;
        for (int64_t d = 0; d < D; d++) logit += load(x, t * D + d) * load(w, d);
        uint16_t rounded;
        Tensor small = tensor1(&rounded, DTYPE_BF16, 1);
        store(small, 0, logit);
        *n_wide += load(small, 0) != logit;
    }
    RouterStats stats = {.count_e = ARENA_NEW(&f->data, int64_t, E)};
    RouterSaved s = {.p_te = arena_tensor2(&f->data, DTYPE_F32, T, E),
                     .lse_t = arena_tensor1(&f->data, DTYPE_F32, T),
                     .weight_tk = arena_tensor2(&f->data, DTYPE_F32, T, 2),
                     .id_tk = arena_tensor2(&f->data, DTYPE_I32, T, 2),
                     .count_e = ARENA_NEW(&f->data, int64_t, E),
                     .dlogit_te = arena_tensor2(&f->data, DTYPE_F32, T, E)};
    Tensor dweight = arena_tensor2(&f->data, DTYPE_F32, T, 2);
    fill(dweight, "dweight", 0, 1);
    router_forward(&m, &s, &f->run, &stats, x);
    router_backward_input(&m, &s, &f->run, dx, dweight, 0);
    return s;
}

/** Probabilities, weights, choices and gradients of logits are those of an f32 model to the bit. */
static void router_bf16__is_that_of_f32_to_the_bit(void **state)
{
    (void)state;
    for (int cpu = 0; cpu < 2; cpu++) {
        Fixture f32, bf16;
        int n_wide = 0;
        RouterSaved want = run_router(&f32, DTYPE_F32, cpu, &n_wide);
        RouterSaved got = run_router(&bf16, DTYPE_BF16, cpu, &n_wide);
        assert_true(n_wide > 50); /* of 66 */
        assert_same_bits("p", got.p_te, want.p_te);
        assert_same_bits("lse", got.lse_t, want.lse_t);
        assert_same_bits("weights", got.weight_tk, want.weight_tk);
        assert_same_bits("ids", got.id_tk, want.id_tk);
        assert_same_bits("dlogit", got.dlogit_te, want.dlogit_te);
        fixture_close(&f32);
        fixture_close(&bf16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block_bf16__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(router_bf16__is_that_of_f32_to_the_bit),
    };
    return cmocka_run_group_tests_name("nn/block_bf16", tests, NULL, NULL);
}
