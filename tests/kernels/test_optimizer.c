#include "kernels/kernel_check.h"

static const int64_t sizes[] = {1, 7, 4096, 4097, 10000, 100003};

static Outputs run_optimizer(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const int64_t *n = one_case;
    Tensor w = random_tensor(arena, dtype, 1, *n, "w"), g = random_tensor(arena, dtype, 1, *n, "g");
    Tensor m = random_tensor(arena, dtype, 1, *n, "m"), v = random_tensor(arena, dtype, 1, *n, "v");
    for (int64_t i = 0; i < *n; i++) set_element(v, i, fabs(element(v, i)));
    Tensor sgd_w = random_tensor(arena, dtype, 1, *n, "w");
    be->adamw(be, &(AdamWArgs){.w = w,
                               .g = g,
                               .m = m,
                               .v = v,
                               .lr = 0.01,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .grad_scale = 0.7,
                               .t = 3});
    be->sgd(be, &(SgdArgs){.w = sgd_w, .g = g, .lr = 0.1, .weight_decay = 0.01, .grad_scale = 0.7});
    double *squares = ARENA_NEW(arena, double, 1);
    *squares = be->sum_squares(be, g, arena);
    Outputs out = {0};
    /* a handful of f32 roundings each; 1 - beta2 as a float is off by 3e-8 */
    add_output(&out, w, 3e-7);
    add_output(&out, m, 3e-7);
    add_output(&out, v, 3e-7);
    add_output(&out, sgd_w, 3e-7);
    add_output(&out, tensor1(squares, DTYPE_F64, 1), 1e-14); /* sums of 4096 in f64 */
    return out;
}

static void optimizer__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES(sizes); i++) {
        char name[32];
        snprintf(name, sizeof name, "size %lld", (long long)sizes[i]);
        check_case(run_optimizer, DTYPE_F32, &sizes[i], name);
    }
}

/** The first step with zero moments moves by lr against the sign of the gradient, after the decay. */
static void adamw__first_step_by_hand(void **state)
{
    (void)state;
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        float w[2] = {2, 2}, g[2] = {3, -5}, m[2] = {0, 0}, v[2] = {0, 0};
        AdamWArgs args = {.w = tensor1(w, DTYPE_F32, 2),
                          .g = tensor1(g, DTYPE_F32, 2),
                          .m = tensor1(m, DTYPE_F32, 2),
                          .v = tensor1(v, DTYPE_F32, 2),
                          .lr = 0.1,
                          .beta1 = 0.9,
                          .beta2 = 0.99,
                          .eps = 1e-12,
                          .weight_decay = 0.5,
                          .grad_scale = 0.5,
                          .t = 1};
        be[i].adamw(&be[i], &args);
        assert_true(fabs((double)w[0] - 1.8) < 1e-6 && fabs((double)w[1] - 2.0) < 1e-6);
        assert_true(fabs((double)m[0] - 0.15) < 1e-7 && fabs((double)v[1] - 0.0625) < 1e-7);
    }
}

static void sum_squares__keeps_nan_and_infinity_at_any_place(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 2);
    Tensor x = filled_tensor(&arena, DTYPE_F32, 1, 4099, 1);
    const int64_t places[] = {0, 1, 7, 8, 4095, 4096, 4098};
    for (int i = 0; i < 2; i++) {
        assert_true(be[i].sum_squares(&be[i], x, &arena) == 4099);
        for (size_t p = 0; p < N_CASES(places); p++) {
            set_element(x, places[p], (double)NAN);
            assert_true(isnan(be[i].sum_squares(&be[i], x, &arena)));
            set_element(x, places[p], -(double)INFINITY);
            assert_true(isinf(be[i].sum_squares(&be[i], x, &arena)));
            set_element(x, places[p], 1);
        }
        /* squares beyond the range of f32 */
        set_element(x, 5, 1e30);
        assert_true(fabs(be[i].sum_squares(&be[i], x, &arena) / 1e60 - 1) < 1e-6);
        set_element(x, 5, 1);
    }
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizer__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(adamw__first_step_by_hand),
        cmocka_unit_test(sum_squares__keeps_nan_and_infinity_at_any_place),
    };
    return RUN_ON_EACH_PATH("kernels/optimizer", tests);
}
