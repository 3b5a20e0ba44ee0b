#include "fixture.h"
#include "nn/dispatch.h"

static void take(Fixture *f, Dispatch *d, int64_t n_rows, int64_t n_experts)
{
    *d = (Dispatch){.offset_e = ARENA_NEW(&f->data, int32_t, n_experts + 1),
                    .token_r = ARENA_NEW(&f->data, int32_t, n_rows),
                    .pair_r = ARENA_NEW(&f->data, int32_t, n_rows),
                    .row_nk = ARENA_NEW(&f->data, int32_t, n_rows)};
}

static void dispatch__sorts_pairs_by_expert_then_token(void **state)
{
    (void)state;
    Fixture f;
    Dispatch d;
    fixture_open(&f, DTYPE_F64);
    take(&f, &d, 8, 4);
    int32_t id_tk[] = {2, 0, 0, 3, 2, 3, 0, 2}; /* expert 1 has no tokens */
    dispatch_sort(&d, &f.run, tensor2(id_tk, DTYPE_I32, 4, 2), 0, 4);
    assert_int_equal(d.n_rows, 8);
    assert_memory_equal(d.offset_e, ((int32_t[]){0, 3, 3, 6, 8}), 5 * sizeof(int32_t));
    assert_memory_equal(d.pair_r, ((int32_t[]){1, 2, 6, 0, 4, 7, 3, 5}), 8 * sizeof(int32_t));
    assert_memory_equal(d.token_r, ((int32_t[]){0, 1, 3, 0, 2, 3, 1, 2}), 8 * sizeof(int32_t));
    assert_memory_equal(d.row_nk, ((int32_t[]){3, 0, 1, 6, 4, 7, 2, 5}), 8 * sizeof(int32_t));
    fixture_close(&f);
}

/* Experts 2 and 3 are here: pairs of others have no row. */
static void dispatch__leaves_out_experts_of_other_ranks(void **state)
{
    (void)state;
    Fixture f;
    Dispatch d;
    fixture_open(&f, DTYPE_F64);
    take(&f, &d, 8, 2);
    int32_t id_nk[] = {2, 0, 4, 3, 2, 3, 0, 1};
    dispatch_sort(&d, &f.run, tensor2(id_nk, DTYPE_I32, 4, 2), 2, 2);
    assert_int_equal(d.n_rows, 4);
    assert_memory_equal(d.offset_e, ((int32_t[]){0, 2, 4}), 3 * sizeof(int32_t));
    assert_memory_equal(d.pair_r, ((int32_t[]){0, 4, 3, 5}), 4 * sizeof(int32_t));
    assert_memory_equal(d.token_r, ((int32_t[]){0, 2, 1, 2}), 4 * sizeof(int32_t));
    assert_memory_equal(d.row_nk, ((int32_t[]){0, -1, -1, 2, 1, 3, -1, -1}), 8 * sizeof(int32_t));
    fixture_close(&f);
}

static void dispatch__is_a_stable_permutation_of_random_pairs(void **state)
{
    (void)state;
    enum { TOKENS = 97, K = 3, E = 11 };
    Fixture f;
    Dispatch d;
    fixture_open(&f, DTYPE_F64);
    take(&f, &d, TOKENS * K, E);
    int32_t id[TOKENS * K];
    for (int i = 0; i < TOKENS * K; i++) id[i] = (int32_t)(rng_bits(5, (uint64_t)i) % E);
    dispatch_sort(&d, &f.run, tensor2(id, DTYPE_I32, TOKENS, K), 0, E);
    assert_int_equal(d.offset_e[0], 0);
    assert_int_equal(d.offset_e[E], TOKENS * K);
    for (int e = 0; e < E; e++)
        for (int32_t row = d.offset_e[e]; row < d.offset_e[e + 1]; row++) {
            assert_int_equal(id[d.pair_r[row]], e);
            assert_int_equal(d.token_r[row], d.pair_r[row] / K);
            assert_int_equal(d.row_nk[d.pair_r[row]], row);
            if (row > d.offset_e[e]) assert_true(d.pair_r[row] > d.pair_r[row - 1]);
        }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dispatch__sorts_pairs_by_expert_then_token),
        cmocka_unit_test(dispatch__leaves_out_experts_of_other_ranks),
        cmocka_unit_test(dispatch__is_a_stable_permutation_of_random_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
