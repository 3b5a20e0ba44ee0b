#include "kernels/kernel_check.h"

static Outputs run_loss(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const LossCase *c = one_case;
    Outputs out = {0};
    for (int want_grad = 0; want_grad < 2; want_grad++) {
        Tensor logit = random_tensor(arena, dtype, c->rows, c->n_ids, "logit");
        int32_t *target = ARENA_NEW(arena, int32_t, c->rows);
        double *weight = ARENA_NEW(arena, double, c->rows), *loss = ARENA_NEW(arena, double, 1);
        for (int64_t n = 0; n < c->rows; n++) {
            target[n] = n % 3 == 1 ? -100 : (int32_t)(n * 31 % c->n_ids);
            weight[n] = 0.5 + 0.01 * (double)n;
        }
        CrossEntropyArgs args = {logit, target, weight, loss, want_grad, arena};
        be->cross_entropy(be, &args);
        add_output(&out, tensor1(loss, DTYPE_F64, 1), 2e-7); /* e^x to 1 ulp, all else in f64 */
        add_output(&out, logit, want_grad ? 5e-7 : 0);
    }
    return out;
}

static void cross_entropy__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES(run_loss, DTYPE_F32, loss_cases);
}

/** By hand: two ids, equal logits; and rows without a target get zeros and add nothing, not even a NaN. */
static void cross_entropy__known_values(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        float logit[3][2] = {{4, 4}, {NAN, 1}, {0, 100}};
        int32_t target[3] = {1, -100, 1};
        double weight[3] = {2, 7, 1}, loss = 99;
        CrossEntropyArgs args = {
            tensor2(logit, DTYPE_F32, 3, 2), target, weight, &loss, true, &arena};
        be[i].cross_entropy(&be[i], &args);
        assert_true(fabs(loss - 2 * log(2)) < 1e-6);
        assert_true(logit[0][0] == 1 && logit[0][1] == -1 && logit[1][0] == 0 && logit[1][1] == 0);
        assert_true(fabs((double)logit[2][1]) < 1e-30);
    }
    arena_free(&arena);
}

static void cross_entropy__huge_logits_stay_finite_and_nan_stays_nan(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++)
        for (int bad = 0; bad < 21; bad++) {
            Tensor logit = random_tensor(&arena, DTYPE_F32, 2, 20, "logit");
            for (int64_t v = 0; v < 40; v++) set_element(logit, v, v % 2 ? 1e4 : -1e4);
            int32_t target[2] = {0, 3};
            double weight[2] = {1, 1}, loss;
            if (bad > 0) set_element(logit, bad - 1, (double)NAN);
            CrossEntropyArgs args = {logit, target, weight, &loss, true, &arena};
            be[i].cross_entropy(&be[i], &args);
            if (bad == 0) {
                assert_true(fabs(loss - (2e4 + 2 * log(10))) < 1e-2);
                assert_true(element(logit, 0) == -1 && fabs(element(logit, 1) - 0.1) < 1e-7);
            } else {
                assert_true(isnan(loss) && isnan(element(logit, 0)) && isnan(element(logit, 19)));
                assert_true(isfinite(element(logit, 20)));
            }
        }
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(cross_entropy__known_values),
        cmocka_unit_test(cross_entropy__huge_logits_stay_finite_and_nan_stays_nan),
    };
    return RUN_ON_EACH_PATH("kernels/loss", tests);
}
