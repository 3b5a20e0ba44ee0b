#include "kernels/kernel_check.h"

/* A few roundings of single elements, or sums over a row of at most 257 in 4 or more lanes. */
static const double tolerance = 1e-6;

static Outputs run_rmsnorm(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const RowsCase *c = one_case;
    Tensor x = random_tensor(arena, dtype, c->rows, c->cols, "x");
    Tensor w = as_vector(random_tensor(arena, dtype, 1, c->cols, "w"));
    Tensor y = filled_tensor(arena, dtype, c->rows, c->cols, (double)NAN);
    Tensor rstd = arena_tensor1(arena, DTYPE_F32, c->rows);
    be->rmsnorm(be, &(RmsNormArgs){.y_nd = y, .rstd_n = rstd, .x_nd = x, .w_d = w, .eps = 1e-6});
    bool frozen = c->rows % 2 == 0, adds = c->cols % 2;
    Tensor dx = random_tensor(arena, dtype, c->rows, c->cols, "dx");
    if (!adds) dx = filled_tensor(arena, dtype, c->rows, c->cols, (double)NAN);
    Tensor dw = as_vector(random_tensor(arena, DTYPE_F32, 1, c->cols, "dw"));
    be->rmsnorm_backward(
        be, &(RmsNormBackwardArgs){.dx_nd = dx,
                                   .dw_d = frozen ? (Tensor){0} : dw,
                                   .dy_nd = random_tensor(arena, dtype, c->rows, c->cols, "dy"),
                                   .x_nd = x,
                                   .w_d = w,
                                   .rstd_n = rstd,
                                   .beta = adds,
                                   .scratch = arena});
    Outputs out = {0};
    add_output(&out, y, tolerance);
    add_output(&out, rstd, tolerance);
    add_output(&out, dx, tolerance);
    out.floor[2] = 1; /* for a row of one element the two terms cancel */
    add_output(&out, dw, tolerance);
    return out;
}

static void rmsnorm__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES_BOTH(run_rmsnorm, rows_cases);
}

/** x rstd = 1 + 3/8 of a last place, w = 1.5: rounding twice gives 1.5, once the number above it. */
static void rmsnorm__bf16_rounds_before_the_weight(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        Tensor x = filled_tensor(&arena, DTYPE_BF16, 1, 40, 1),
               y = arena_tensor2(&arena, DTYPE_BF16, 1, 40);
        Tensor w = as_vector(filled_tensor(&arena, DTYPE_BF16, 1, 40, 1.5));
        Tensor rstd = arena_tensor1(&arena, DTYPE_F32, 1);
        double normed = 1 + 0x3p-10; /* eps makes it so: 1 / sqrt(1 + eps) */
        RmsNormArgs args = {y, rstd, x, w, 1 / (normed * normed) - 1};
        be[i].rmsnorm(&be[i], &args);
        assert_true(fabs(element(rstd, 0) - normed) < 1e-6);
        for (int64_t d = 0; d < 40; d++) assert_true(element(y, d) == 1.5);
    }
    arena_free(&arena);
}

static Outputs run_swiglu(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const RowsCase *c = one_case;
    Tensor h = random_tensor(arena, dtype, c->rows, 2 * c->cols, "h");
    for (int64_t i = 0; i < tensor_size(h); i += 5) set_element(h, i, 30 * element(h, i));
    Tensor a = arena_tensor2(arena, dtype, c->rows, c->cols);
    be->swiglu(be, &(SwiGluArgs){.a_nf = a, .h_n2f = h});
    bool weighted = c->rows % 2;
    /* as input of backward the same for all backends */
    Tensor a_in = random_tensor(arena, dtype, c->rows, c->cols, "a");
    Tensor dweight = filled_tensor(arena, DTYPE_F32, c->rows, 1, 0);
    Tensor dh = arena_tensor2(arena, dtype, c->rows, 2 * c->cols);
    Tensor weight = random_tensor(arena, DTYPE_F32, c->rows, 1, "weight");
    be->swiglu_backward(
        be, &(SwiGluBackwardArgs){.dh_n2f = dh,
                                  .dweight_n = weighted ? dweight : (Tensor){0},
                                  .da_nf = random_tensor(arena, dtype, c->rows, c->cols, "da"),
                                  .h_n2f = h,
                                  .a_nf = a_in,
                                  .weight_n = weighted ? weight : (Tensor){0}});
    Outputs out = {0};
    add_output(&out, a, tolerance);
    add_output(&out, dh, tolerance);
    add_output(&out, dweight, tolerance);
    return out;
}

static void swiglu__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES_BOTH(run_swiglu, rows_cases);
}

static void swiglu__extreme_gates_stay_finite(void **state)
{
    (void)state;
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        float h[10] = {-1e4F, -100, -89, 0, 1e4F, 1, 1, 1, 1, 1}, a[5], da[5] = {1, 1, 1, 1, 1},
              dh[10];
        be[i].swiglu(&be[i],
                     &(SwiGluArgs){tensor2(a, DTYPE_F32, 1, 5), tensor2(h, DTYPE_F32, 1, 10)});
        be[i].swiglu_backward(&be[i], &(SwiGluBackwardArgs){.dh_n2f = tensor2(dh, DTYPE_F32, 1, 10),
                                                            .da_nf = tensor2(da, DTYPE_F32, 1, 5),
                                                            .h_n2f = tensor2(h, DTYPE_F32, 1, 10),
                                                            .a_nf = tensor2(a, DTYPE_F32, 1, 5)});
        for (int f = 0; f < 5; f++)
            assert_true(isfinite(a[f]) && isfinite(dh[f]) && isfinite(dh[f + 5]));
        assert_true(fabs((double)a[0]) < 1e-30 && a[4] == 1e4F && dh[4] == 1 && dh[3] == 0.5F);
    }
}

static Outputs run_rows(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const RowsCase *c = one_case;
    enum { SLOTS = 3 };
    int64_t rows = c->rows, cols = c->cols;
    Tensor x = random_tensor(arena, dtype, rows, cols, "x");
    int32_t *index = ARENA_NEW(arena, int32_t, rows * SLOTS);
    for (int64_t i = 0; i < rows * SLOTS; i++) /* some point nowhere, all of a row too */
        index[i] = i % 7 == 3 || i / SLOTS % 4 == 2 ? -1 : (int32_t)(i * 5 % rows);
    Tensor weight = random_tensor(arena, DTYPE_F32, rows, SLOTS, "weight");
    bool weighted = rows % 2, adds = cols % 2;
    Tensor gathered = arena_tensor2(arena, dtype, rows * SLOTS, cols);
    be->gather_rows(be, &(GatherRowsArgs){.y_nd = gathered,
                                          .x_td = x,
                                          .scale_n = weighted ? as_vector(weight) : (Tensor){0},
                                          .index_n = index});
    Tensor combined = adds ? random_tensor(arena, dtype, rows, cols, "y")
                           : filled_tensor(arena, dtype, rows, cols, (double)NAN);
    be->combine_rows(be, &(CombineRowsArgs){.y_td = combined,
                                            .x_rd = x,
                                            .weight_tk = weighted ? weight : (Tensor){0},
                                            .row_tk = index,
                                            .n_slots = SLOTS,
                                            .beta = adds});
    /* A sum kept in f32, and one rounded from it. */
    Tensor sum = filled_tensor(arena, DTYPE_F32, rows, cols, (double)NAN);
    be->combine_rows(be,
                     &(CombineRowsArgs){.y_td = sum, .x_rd = x, .row_tk = index, .n_slots = SLOTS});
    Tensor rounded = filled_tensor(arena, dtype, rows, cols, (double)NAN);
    be->combine_rows(
        be, &(CombineRowsArgs){.y_td = rounded, .x_rd = sum, .row_tk = index, .n_slots = SLOTS});
    Tensor scattered = random_tensor(arena, DTYPE_F32, rows, cols, "w");
    for (int64_t i = 0; i < rows; i++) index[i] = (int32_t)(i % 2 ? 0 : i); /* half of them meet */
    be->scatter_add_rows(be, &(ScatterAddRowsArgs){.dw_vd = scattered, .dy_td = x, .id_t = index});
    Outputs out = {0};
    add_output(&out, gathered, 1e-7);
    add_output(&out, combined, 3e-7);
    add_output(&out, sum, 3e-7);
    add_output(&out, rounded, 3e-7);
    add_output(&out, scattered,
               3e-6); /* up to 320 additions one after the other, in f32 on both sides */
    return out;
}

static void rows__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES_BOTH(run_rows, rows_cases);
}

static Outputs run_sums(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const RowsCase *c = one_case;
    Tensor a = random_tensor(arena, dtype, c->rows, c->cols, "a");
    Tensor b = random_tensor(arena, dtype, c->rows, c->cols, "b");
    Tensor bias = as_vector(random_tensor(arena, dtype, 1, c->cols, "bias"));
    Tensor dbias = as_vector(random_tensor(arena, DTYPE_F32, 1, c->cols, "dbias"));
    be->add(be, a, a, b);
    be->bias_backward(be, dbias, b, arena);
    be->add_bias(be, b, bias);
    Outputs out = {0};
    add_output(&out, a, 0);
    add_output(&out, b, 0);
    add_output(&out, dbias, tolerance);
    return out;
}

static void add__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES_BOTH(run_sums, rows_cases);
}

/** Between f32 and bf16 all bit patterns of interest, at all lengths and places within a vector. */
static void convert__bf16_of_f32_is_ref_to_the_bit(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static float x[N], back[N], want_back[N];
    static uint16_t small[N], want[N];
    for (uint32_t i = 0; i < N; i++) {
        /* every upper half, with lower halves around zero, the tie and the next one */
        static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        uint32_t bits = i << 16 | lower[i % 6 ^ (i >> 9) % 2];
        memcpy(&x[i], &bits, sizeof bits);
    }
    Backend ref, cpu;
    backend_ref_init(&ref, 1);
    tested_backend_init(&cpu, 2);
    for (int64_t first = 0, n = 1; first < N; first += n, n = n % 70 + 1) {
        int64_t size = n < N - first ? n : N - first;
        cpu.convert(&cpu, tensor1(small + first, DTYPE_BF16, size),
                    tensor1(x + first, DTYPE_F32, size));
        cpu.convert(&cpu, tensor1(back + first, DTYPE_F32, size),
                    tensor1(small + first, DTYPE_BF16, size));
    }
    ref.convert(&ref, tensor1(want, DTYPE_BF16, N), tensor1(x, DTYPE_F32, N));
    ref.convert(&ref, tensor1(want_back, DTYPE_F32, N), tensor1(want, DTYPE_BF16, N));
    for (int i = 0; i < N; i++)
        if (isnan(x[i])) /* its payload stays */
            assert_true(isnan(back[i]) && signbit(back[i]) == signbit(x[i]));
        else
            assert_true(small[i] == want[i] && memcmp(&back[i], &want_back[i], 4) == 0);
}

/** Rounding to the 16-bit formats: nearest, ties to even, subnormals, overflow, NaN. */
static void convert__rounds_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        DType dtype;
        double value;
        uint16_t bits;
    } cases[] = {
        {DTYPE_BF16, 1, 0x3f80},
        {DTYPE_BF16, -1.0078125, 0xbf81},
        {DTYPE_BF16, 1.00390625, 0x3f80},         /* halfway: to even */
        {DTYPE_BF16, 1.01171875, 0x3f82},         /* halfway: to even */
        {DTYPE_BF16, 1.00390625 + 1e-12, 0x3f81}, /* no rounding to f32 in between */
        {DTYPE_BF16, 3.4e38, 0x7f80},
        {DTYPE_BF16, 1e-40, 0x0001},
        {DTYPE_BF16, -0.0, 0x8000},
        {DTYPE_BF16, (double)INFINITY, 0x7f80},
        {DTYPE_BF16, (double)NAN, 0x7fc0},
        {DTYPE_F16, 1.5, 0x3e00},
        {DTYPE_F16, 65504, 0x7bff},
        {DTYPE_F16, 65519.9, 0x7bff},
        {DTYPE_F16, 65520, 0x7c00},
        {DTYPE_F16, 5.9604644775390625e-8, 0x0001},
        {DTYPE_F16, 6.097555160522461e-5, 0x03ff},
    };
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int b = 0; b < 2; b++)
        for (size_t i = 0; i < N_CASES(cases); i++) {
            double value = cases[i].value, back;
            uint16_t bits;
            Tensor small = tensor1(&bits, cases[i].dtype, 1);
            be[b].convert(&be[b], small, tensor1(&value, DTYPE_F64, 1));
            assert_int_equal(bits, cases[i].bits);
            be[b].convert(&be[b], tensor1(&back, DTYPE_F64, 1), small);
            if (isnan(value))
                assert_true(isnan(back));
            else if (fabs(value) < 1e4 && fabs(value) > 1e-4)
                assert_true(fabs(back - value) <= fabs(value) / 256);
            uint16_t again;
            be[b].convert(&be[b], tensor1(&again, cases[i].dtype, 1), tensor1(&back, DTYPE_F64, 1));
            assert_int_equal(again, bits);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(rmsnorm__bf16_rounds_before_the_weight),
        cmocka_unit_test(swiglu__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(swiglu__extreme_gates_stay_finite),
        cmocka_unit_test(rows__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(add__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(convert__bf16_of_f32_is_ref_to_the_bit),
        cmocka_unit_test(convert__rounds_to_nearest_even),
    };
    return RUN_ON_EACH_PATH("kernels/elementwise", tests);
}
