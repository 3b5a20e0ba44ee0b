#include "kernels/kernel_check.h"

#include <pthread.h>

/*
 * A sum of k <= 640 products of normal numbers in blocks of 256 is off by about sqrt(256)/2 roundings of 6e-8 of its own size
 * at worst, 5e-7; the largest element is several times the typical one.
 */
static const double tolerance = 1e-6;

/* Of a, b and c. bf16 models multiply activations and weights, into activations, f32 logits or f32 weight gradients; the
   gradient of logits is f32. */
typedef struct Dtypes {
    DType a, b, c;
} Dtypes;

static const Dtypes dtypes[] = {
    {DTYPE_F32, DTYPE_F32, DTYPE_F32},   {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_F32}, {DTYPE_F32, DTYPE_BF16, DTYPE_BF16},
    {DTYPE_F32, DTYPE_BF16, DTYPE_F32},  {DTYPE_BF16, DTYPE_F32, DTYPE_BF16}};

typedef struct GemmRun {
    GemmCase shape;
    Dtypes dtype;
    bool trans_a, trans_b;
    double beta;
} GemmRun;

static Outputs run_gemm(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    (void)dtype; /* the case says more */
    const GemmRun *run = one_case;
    int64_t m = run->shape.m, n = run->shape.n, k = run->shape.k;
    Tensor a = random_tensor(arena, run->dtype.a, run->trans_a ? k : m, run->trans_a ? m : k, "a");
    Tensor b = random_tensor(arena, run->dtype.b, run->trans_b ? n : k, run->trans_b ? k : n, "b");
    Tensor c = random_tensor(arena, run->dtype.c, m, n, "c");
    if (run->beta == 0) c = filled_tensor(arena, run->dtype.c, m, n, (double)NAN);
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
        for (int mode = 0; mode < 4 && !gemm_cases[i].bench_only; mode++)
            for (size_t d = 0; d < N_CASES(dtypes); d++) {
                GemmCase shape = gemm_cases[i];
                bool large = shape.m * shape.n * shape.k > 1000000;
                if (large && d != 0 && d != 1 + (i + (size_t)mode) % 5) continue;
                GemmRun run = {shape, dtypes[d], mode & 1, mode & 2,
                               (i + (size_t)mode + d) % 2 ? 1 : 0};
                char name[96];
                snprintf(name, sizeof name, "gemm row %zu trans %d %d beta %g c %s", i, run.trans_a,
                         run.trans_b, run.beta, dtype_name(run.dtype.c));
                check_case(run_gemm, run.dtype.a, &run, name);
            }
}

static void gemm__an_empty_inner_dimension_is_a_sum_of_nothing(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 2);
    for (int i = 0; i < 2; i++)
        for (int beta = 0; beta < 2; beta++)
            for (size_t d = 0; d < N_CASES(dtypes); d++) {
                Tensor c = filled_tensor(&arena, dtypes[d].c, 3, 5, beta ? 2.0 : (double)NAN);
                Tensor a = arena_tensor2(&arena, dtypes[d].a, 3, 0);
                Tensor b = arena_tensor2(&arena, dtypes[d].b, 0, 5);
                be[i].gemm(&be[i], &(GemmArgs){.c = c, .a = a, .b = b, .beta = beta});
                for (int64_t j = 0; j < 15; j++) assert_true(element(c, j) == (beta ? 2.0 : 0.0));
            }
    arena_free(&arena);
}

/** AMX multiplies an f32 factor in three parts, zeros among them. */
static bool in_parts(Dtypes d)
{
    return tested_path == KERNEL_AMX && d.a == DTYPE_F32 && d.b == DTYPE_BF16;
}

/** Zero times infinity is NaN: nothing may be skipped because a factor is zero, and nothing filled up to an even length. */
static void gemm__keeps_infinities_and_nans(void **state)
{
    (void)state;
    enum { N = 21 };
    Arena arena;
    arena_init(&arena, "test");
    Backend be;
    tested_backend_init(&be, 1);
    for (size_t d = 0; d < N_CASES(dtypes); d++)
        for (int mode = 0; mode < 4; mode++) {
            bool ta = mode & 1, tb = mode & 2;
            Tensor a = filled_tensor(&arena, dtypes[d].a, N, N, 0),
                   b = filled_tensor(&arena, dtypes[d].b, N, N, 1);
            Tensor c = filled_tensor(&arena, dtypes[d].c, N, N, 0);
            /* b's column 19 (of op(b)) holds an infinity in its last row; a's row 18 a NaN */
            set_element(b, tb ? 19 * N + 20 : 20 * N + 19, (double)INFINITY);
            set_element(a, ta ? 5 * N + 18 : 18 * N + 5, (double)NAN);
            be.gemm(&be, &(GemmArgs){.c = c, .a = a, .b = b, .trans_a = ta, .trans_b = tb});
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < N; j++)
                    assert_int_equal(isnan(element(c, i * N + j)), i == 18 || j == 19);
            /* an infinity alone stays one */
            set_element(a, ta ? 5 * N + 18 : 18 * N + 5, 0);
            for (int64_t i = 0; i < N; i++) set_element(a, ta ? 20 * N + i : i * N + 20, 2);
            be.gemm(&be, &(GemmArgs){.c = c, .a = a, .b = b, .trans_a = ta, .trans_b = tb});
            for (int64_t i = 0; i < N; i++)
                for (int64_t j = 0; j < N; j++)
                    if (j == 19 && in_parts(dtypes[d]))
                        assert_int_equal(isnan(element(c, i * N + j)), 1);
                    else
                        assert_true(element(c, i * N + j) == (j == 19 ? (double)INFINITY : 2));
        }
    arena_free(&arena);
}

/** Rows and columns of c come out the same whether they are computed alone, at another address or among others. */
static void gemm__an_element_does_not_depend_on_its_place(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be;
    tested_backend_init(&be, 1);
    int64_t m = 123, n = 70,
            k = 601; /* more rows than are rounded at a time, more k than a block */
    for (int tb = 0; tb < 2; tb++)
        for (size_t d = 0; d < N_CASES(dtypes); d++) {
            Tensor a = random_tensor(&arena, dtypes[d].a, m, k, "a");
            Tensor b = random_tensor(&arena, dtypes[d].b, tb ? n : k, tb ? k : n, "b");
            Tensor whole = arena_tensor2(&arena, dtypes[d].c, m, n);
            be.gemm(&be, &(GemmArgs){.c = whole, .a = a, .b = b, .trans_b = tb});
            for (int64_t first = 0; first < m; first += 17)
                for (int64_t rows = 1; rows <= m - first; rows += 13) {
                    Tensor part = arena_tensor2(&arena, dtypes[d].c, rows + 1, n);
                    part.data = tensor_at(part, first % 5); /* off any alignment */
                    part.dim[0] = rows;
                    be.gemm(&be, &(GemmArgs){.c = part,
                                             .a = tensor_rows(a, first, rows),
                                             .b = b,
                                             .trans_b = tb});
                    assert_same_bits(part, tensor_rows(whole, first, rows), "rows alone");
                }
            for (int64_t first = 0; tb && first < n; first += 23) { /* columns: rows of b */
                int64_t cols = n - first < 31 ? n - first : 31;
                Tensor part = arena_tensor2(&arena, dtypes[d].c, m, cols);
                be.gemm(&be,
                        &(GemmArgs){
                            .c = part, .a = a, .b = tensor_rows(b, first, cols), .trans_b = true});
                for (int64_t i = 0; i < m; i++)
                    assert_memory_equal(tensor_at(part, i * cols), tensor_at(whole, i * n + first),
                                        (size_t)cols * dtype_bytes(part.dtype));
            }
        }
    arena_free(&arena);
}

typedef struct GroupedRun {
    GroupedCase shape;
    GroupedKind kind;
    double beta;
} GroupedRun;

static Outputs run_grouped(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const GroupedRun *run = one_case;
    int64_t out_cols = run->shape.out, in_cols = run->shape.in, n = 0;
    int32_t offset[18] = {0};
    for (; run->shape.rows[n] >= 0; n++) offset[n + 1] = offset[n] + run->shape.rows[n];
    int64_t rows = offset[n];
    Tensor x = random_tensor(arena, dtype, rows, in_cols, "x");
    Tensor y = random_tensor(arena, dtype, rows, out_cols, "y");
    bool weight_grad = run->kind == GROUPED_BACKWARD_WEIGHT;
    Tensor w = arena_tensor3(arena, weight_grad ? DTYPE_F32 : dtype, n, out_cols, in_cols);
    fill_random(w, "w");
    if (run->beta == 0 && !weight_grad) {
        Tensor *c = run->kind == GROUPED_FORWARD ? &y : &x;
        *c = filled_tensor(arena, dtype, c->dim[0], c->dim[1], (double)NAN);
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
                check_case(run_grouped, DTYPE_F32, &run, name);
                check_case(run_grouped, DTYPE_BF16, &run, name);
            }
}

static void grouped_gemm__leaves_weights_of_empty_experts_alone(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 2);
    for (int i = 0; i < 2; i++) {
        GroupedRun run = {{4, 5, {0, 3, 0, -1}, 0}, GROUPED_BACKWARD_WEIGHT, 0};
        Tensor w = run_grouped(&be[i], DTYPE_F32, &run, &arena).at[0];
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
    tested_backend_init(&be, 3);
    GemmRun run = {{640, 384, 128, 0}, dtypes[0], false, true, 0};
    Tensor c = {0};
    for (int repeat = 0; repeat < 3; repeat++) c = run_gemm(&be, DTYPE_F32, &run, arena).at[0];
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
    tested_backend_init(&be, 1);
    GemmRun run = {{640, 384, 128, 0}, dtypes[0], false, true, 0};
    Tensor want = run_gemm(&be, DTYPE_F32, &run, &arena[RANKS]).at[0];
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
    return RUN_ON_EACH_PATH("kernels/gemm", tests);
}
