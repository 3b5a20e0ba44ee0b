#include "kernels/kernel_check.h"

#include <pthread.h>

/*
 * A sum of k <= 640 products of normal numbers in blocks of 256 is off by about sqrt(256)/2 roundings of 6e-8 of its own size
 * at worst, 5e-7; the largest element is several times the typical one.
 */
static const double tolerance = 1e-6;

typedef struct GemmRun {
    GemmCase shape;
    bool trans_a, trans_b;
    double beta;
} GemmRun;

static Outputs run_gemm(const Backend *be, const void *one_case, Arena *arena)
{
    const GemmRun *run = one_case;
    int64_t m = run->shape.m, n = run->shape.n, k = run->shape.k;
    Tensor a = random_tensor(arena, DTYPE_F32, run->trans_a ? k : m, run->trans_a ? m : k, "a");
    Tensor b = random_tensor(arena, DTYPE_F32, run->trans_b ? n : k, run->trans_b ? k : n, "b");
    Tensor c = random_tensor(arena, DTYPE_F32, m, n, "c");
    if (run->beta == 0) c = filled_tensor(arena, DTYPE_F32, m, n, (double)NAN);
    be->gemm(be, &(GemmArgs){.c = c,
                             .a = a,
                             .b = b,
                             .trans_a = run->trans_a,
                             .trans_b = run->trans_b,
                             .beta = run->beta});
    Outputs out = {0};
    add_output(&out, c, tolerance);
    return out;
}

static void gemm__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES(gemm_cases); i++)
        for (int mode = 0; mode < 4 && !gemm_cases[i].bench_only; mode++) {
            GemmRun run = {gemm_cases[i], mode & 1, mode & 2, (i + (size_t)mode) % 2 ? 1 : 0};
            char name[96];
            snprintf(name, sizeof name, "gemm row %zu trans %d %d beta %g", i, run.trans_a,
                     run.trans_b, run.beta);
            check_case(run_gemm, &run, name);
        }
}

static void gemm__an_empty_inner_dimension_is_a_sum_of_nothing(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    backend_cpu_init(&be[1], 2);
    for (int i = 0; i < 2; i++)
        for (int beta = 0; beta < 2; beta++) {
            Tensor c = filled_tensor(&arena, DTYPE_F32, 3, 5, beta ? 2.0 : (double)NAN);
            Tensor a = arena_tensor2(&arena, DTYPE_F32, 3, 0);
            Tensor b = arena_tensor2(&arena, DTYPE_F32, 0, 5);
            be[i].gemm(&be[i], &(GemmArgs){.c = c, .a = a, .b = b, .beta = beta});
            for (int64_t j = 0; j < 15; j++) assert_true(element(c, j) == (beta ? 2.0 : 0.0));
        }
    arena_free(&arena);
}

/** Zero times infinity is NaN: nothing may be skipped because a factor is zero. */
static void gemm__keeps_infinities_and_nans(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be;
    backend_cpu_init(&be, 1);
    for (int mode = 0; mode < 4; mode++) {
        bool ta = mode & 1, tb = mode & 2;
        Tensor a = filled_tensor(&arena, DTYPE_F32, 20, 20, 0),
               b = filled_tensor(&arena, DTYPE_F32, 20, 20, 1);
        Tensor c = filled_tensor(&arena, DTYPE_F32, 20, 20, 0);
        /* b's column 19 (of op(b)) holds an infinity in row 3; a's row 18 a NaN */
        set_element(b, tb ? 19 * 20 + 3 : 3 * 20 + 19, (double)INFINITY);
        set_element(a, ta ? 5 * 20 + 18 : 18 * 20 + 5, (double)NAN);
        be.gemm(&be, &(GemmArgs){.c = c, .a = a, .b = b, .trans_a = ta, .trans_b = tb});
        for (int64_t i = 0; i < 20; i++)
            for (int64_t j = 0; j < 20; j++)
                assert_int_equal(isnan(element(c, i * 20 + j)), i == 18 || j == 19);
    }
    arena_free(&arena);
}

/** Rows of c come out the same whether they are computed alone, at another address or among others. */
static void gemm__an_element_does_not_depend_on_its_place(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be;
    backend_cpu_init(&be, 1);
    int64_t m = 61, n = 70, k = 300;
    for (int tb = 0; tb < 2; tb++) {
        Tensor a = random_tensor(&arena, DTYPE_F32, m, k, "a");
        Tensor b = random_tensor(&arena, DTYPE_F32, tb ? n : k, tb ? k : n, "b");
        Tensor whole = arena_tensor2(&arena, DTYPE_F32, m, n);
        be.gemm(&be, &(GemmArgs){.c = whole, .a = a, .b = b, .trans_b = tb});
        for (int64_t first = 0; first < m; first += 7)
            for (int64_t rows = 1; rows <= m - first; rows += 5) {
                Tensor part = arena_tensor2(&arena, DTYPE_F32, rows + 1, n);
                part.data = tensor_at(part, first % 5); /* off any alignment */
                part.dim[0] = rows;
                be.gemm(&be,
                        &(GemmArgs){
                            .c = part, .a = tensor_rows(a, first, rows), .b = b, .trans_b = tb});
                assert_same_bits(part, tensor_rows(whole, first, rows), "rows alone");
            }
    }
    arena_free(&arena);
}

typedef struct GroupedRun {
    GroupedCase shape;
    GroupedKind kind;
    double beta;
} GroupedRun;

static Outputs run_grouped(const Backend *be, const void *one_case, Arena *arena)
{
    const GroupedRun *run = one_case;
    int64_t out_cols = run->shape.out, in_cols = run->shape.in, n = 0;
    int32_t offset[18] = {0};
    for (; run->shape.rows[n] >= 0; n++) offset[n + 1] = offset[n] + run->shape.rows[n];
    int64_t rows = offset[n];
    Tensor x = random_tensor(arena, DTYPE_F32, rows, in_cols, "x");
    Tensor y = random_tensor(arena, DTYPE_F32, rows, out_cols, "y");
    Tensor w = arena_tensor3(arena, DTYPE_F32, n, out_cols, in_cols);
    fill_random(w, "w");
    if (run->beta == 0 && run->kind != GROUPED_BACKWARD_WEIGHT) {
        Tensor *c = run->kind == GROUPED_FORWARD ? &y : &x;
        *c = filled_tensor(arena, DTYPE_F32, c->dim[0], c->dim[1], (double)NAN);
    }
    GroupedGemmArgs args[] = {
        [GROUPED_FORWARD] = {.c = y, .a = x, .b = w},
        [GROUPED_BACKWARD_INPUT] = {.c = x, .a = y, .b = w},
        [GROUPED_BACKWARD_WEIGHT] = {.c = w, .a = y, .b = x},
    };
    GroupedGemmArgs *chosen = &args[run->kind];
    chosen->kind = run->kind;
    chosen->offset_e = offset;
    chosen->n_groups = n;
    chosen->beta = run->beta;
    be->grouped_gemm(be, chosen);
    Outputs out = {0};
    add_output(&out, chosen->c, tolerance);
    return out;
}

static void grouped_gemm__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_CASES(grouped_cases); i++)
        for (int kind = 0; kind < 3 && !grouped_cases[i].bench_only; kind++)
            for (int beta = 0; beta < 2; beta++) {
                GroupedRun run = {grouped_cases[i], (GroupedKind)kind, beta};
                char name[64];
                snprintf(name, sizeof name, "grouped row %zu kind %d beta %d", i, kind, beta);
                check_case(run_grouped, &run, name);
            }
}

static void grouped_gemm__leaves_weights_of_empty_experts_alone(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    backend_cpu_init(&be[1], 2);
    for (int i = 0; i < 2; i++) {
        GroupedRun run = {{4, 5, {0, 3, 0, -1}, 0}, GROUPED_BACKWARD_WEIGHT, 0};
        Tensor w = run_grouped(&be[i], &run, &arena).at[0];
        Tensor before = arena_tensor3(&arena, DTYPE_F32, 3, 4, 5);
        fill_random(before, "w");
        assert_same_bits(tensor_rows(w, 0, 1), tensor_rows(before, 0, 1), "expert 0");
        assert_same_bits(tensor_rows(w, 2, 1), tensor_rows(before, 2, 1), "expert 2");
        assert_true(element(w, 20) != element(before, 20));
    }
    arena_free(&arena);
}

/* Four ranks as threads, each with its own parallel regions. */
static void *rank_main(void *arena)
{
    Backend be;
    backend_cpu_init(&be, 3);
    GemmRun run = {{640, 384, 128, 0}, false, true, 0};
    Tensor c = {0};
    for (int repeat = 0; repeat < 3; repeat++) c = run_gemm(&be, &run, arena).at[0];
    return c.data;
}

static void gemm__ranks_at_once_get_the_bits_of_one_alone(void **state)
{
    (void)state;
    enum { RANKS = 4 };
    Arena arena[RANKS + 1];
    for (int i = 0; i <= RANKS; i++) arena_init(&arena[i], "rank");
    pthread_t thread[RANKS];
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, rank_main, &arena[i]), 0);
    Backend be;
    backend_cpu_init(&be, 1);
    GemmRun run = {{640, 384, 128, 0}, false, true, 0};
    Tensor want = run_gemm(&be, &run, &arena[RANKS]).at[0];
    for (int i = 0; i < RANKS; i++) {
        void *data;
        assert_int_equal(pthread_join(thread[i], &data), 0);
        assert_same_bits(tensor2(data, DTYPE_F32, 640, 384), want, "rank");
    }
    for (int i = 0; i <= RANKS; i++) arena_free(&arena[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(gemm__an_empty_inner_dimension_is_a_sum_of_nothing),
        cmocka_unit_test(gemm__keeps_infinities_and_nans),
        cmocka_unit_test(gemm__an_element_does_not_depend_on_its_place),
        cmocka_unit_test(grouped_gemm__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(grouped_gemm__leaves_weights_of_empty_experts_alone),
        cmocka_unit_test(gemm__ranks_at_once_get_the_bits_of_one_alone),
    };
    return cmocka_run_group_tests_name("kernels/gemm", tests, NULL, NULL);
}
