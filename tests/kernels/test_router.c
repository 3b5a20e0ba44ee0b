#include "kernels/kernel_check.h"

static Outputs run_router(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const RouterCase *c = one_case;
    int64_t n = c->n_tokens, e = c->n_experts, k = c->n_slots;
    RouterArgs args = {.p_te = arena_tensor2(arena, dtype, n, e),
                       .lse_t = arena_tensor1(arena, dtype, n),
                       .weight_tk = arena_tensor2(arena, dtype, n, k),
                       .id_tk = arena_tensor2(arena, DTYPE_I32, n, k),
                       .count_e = ARENA_NEW(arena, int64_t, e),
                       .prob_sum_e = ARENA_NEW(arena, double, e),
                       .logit_te = random_tensor(arena, dtype, n, e, "logit"),
                       .normalise = c->normalise,
                       .scratch = arena};
    for (int64_t i = 0; i < e; i++) args.count_e[i] = 99, args.prob_sum_e[i] = 99; /* overwritten */
    be->router(be, &args);
    double *balance = ARENA_NEW(arena, double, e);
    for (int64_t i = 0; i < e; i++) balance[i] = 0.1 * (double)i;
    RouterBackwardArgs back = {.dlogit_te = arena_tensor2(arena, dtype, n, e),
                               .dweight_tk = random_tensor(arena, dtype, n, k, "dweight"),
                               .p_te = args.p_te,
                               .lse_t = args.lse_t,
                               .weight_tk = args.weight_tk,
                               .id_tk = args.id_tk,
                               .balance_e = n % 2 ? balance : NULL,
                               .z_scale = 0.01,
                               .normalise = c->normalise};
    be->router_backward(be, &back);
    Outputs out = {0};
    /* a softmax over at most 33 logits of size about 1; sums of up to 640 in f64 */
    add_output(&out, args.p_te, 5e-7);
    add_output(&out, args.lse_t, 5e-7);
    add_output(&out, args.weight_tk, 5e-7);
    add_output(&out, args.id_tk, 0);
    add_output(&out, tensor1(args.prob_sum_e, DTYPE_F64, e), 2e-7);
    add_output(&out, back.dlogit_te, 1e-6);
    return out;
}

static void router__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES(run_router, DTYPE_F32, router_cases);
}

/** Ties go to the lower index; counts are those of the ids; weights of the chosen sum to 1. */
static void router__breaks_ties_by_index_and_counts(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        float logit[2][6] = {{1, 3, 3, 0, 3, 1}, {2, 2, 2, 2, 2, 2}};
        int32_t want[2][4] = {{1, 2, 4, 0}, {0, 1, 2, 3}};
        int64_t want_count[6] = {2, 2, 2, 1, 1, 0}, count[6];
        double prob_sum[6], sum = 0;
        RouterArgs args = {.p_te = arena_tensor2(&arena, DTYPE_F32, 2, 6),
                           .lse_t = arena_tensor1(&arena, DTYPE_F32, 2),
                           .weight_tk = arena_tensor2(&arena, DTYPE_F32, 2, 4),
                           .id_tk = arena_tensor2(&arena, DTYPE_I32, 2, 4),
                           .count_e = count,
                           .prob_sum_e = prob_sum,
                           .logit_te = tensor2(logit, DTYPE_F32, 2, 6),
                           .normalise = true,
                           .scratch = &arena};
        be[i].router(&be[i], &args);
        assert_memory_equal(args.id_tk.data, want, sizeof want);
        assert_memory_equal(count, want_count, sizeof count);
        for (int64_t k = 0; k < 4; k++) {
            assert_true(fabs(element(args.weight_tk, 4 + k) - 0.25) < 1e-7);
            sum += element(args.weight_tk, k);
        }
        assert_true(fabs(sum - 1) < 1e-6);
        assert_true(fabs(prob_sum[0] + prob_sum[1] + prob_sum[2] + prob_sum[3] + prob_sum[4] +
                         prob_sum[5] - 2) < 1e-6);
        assert_true(fabs(element(args.lse_t, 1) - (2 + log(6))) < 1e-6);
    }
    arena_free(&arena);
}

/** Whatever comes in, ids are K different experts: they are used as indices. */
static void router__nan_logits_give_valid_ids(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++)
        for (int bad = 0; bad < 32; bad++) {
            float logit[5] = {1, 2, 3, 4, 5};
            for (int e = 0; e < 5; e++)
                if (bad >> e & 1) logit[e] = NAN;
            int64_t count[5];
            double prob_sum[5];
            RouterArgs args = {.p_te = arena_tensor2(&arena, DTYPE_F32, 1, 5),
                               .lse_t = arena_tensor1(&arena, DTYPE_F32, 1),
                               .weight_tk = arena_tensor2(&arena, DTYPE_F32, 1, 3),
                               .id_tk = arena_tensor2(&arena, DTYPE_I32, 1, 3),
                               .count_e = count,
                               .prob_sum_e = prob_sum,
                               .logit_te = tensor2(logit, DTYPE_F32, 1, 5),
                               .scratch = &arena};
            be[i].router(&be[i], &args);
            for (int e = 0; e < 5; e++) assert_in_range(count[e], 0, 1);
            assert_int_equal(count[0] + count[1] + count[2] + count[3] + count[4], 3);
            assert_int_equal(isnan(element(args.p_te, 0)), bad != 0);
        }
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(router__breaks_ties_by_index_and_counts),
        cmocka_unit_test(router__nan_logits_give_valid_ids),
    };
    return RUN_ON_EACH_PATH("kernels/router", tests);
}
