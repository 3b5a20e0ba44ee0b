#include "fixture.h"
#include "nn/rope.h"

enum { C = 16, HALF = C / 2 };

/* Printed by: python3 scripts/golden/nn_rope.py   (HF transformers 4.57.6; frequencies in f32) */
// clang-format off
static const struct {
    RopeConfig config;
    double factor;
    double frequency_c[HALF];
} cases[] = {
    {{.kind = ROPE_DEFAULT, .theta = 1e4},
     1.0, {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786}},
    {{.kind = ROPE_LINEAR, .theta = 1e4, .factor = 4},
     1.0, {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05}},
    {{.kind = ROPE_LLAMA3, .theta = 5e5, .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_positions = 64},
     1.0, {1, 0.079403013, 0.00470075384, 0.000911583134, 0.000176776681, 3.42810235e-05, 6.64786967e-06, 1.28917316e-06}},
    {{.kind = ROPE_YARN, .theta = 1e4, .factor = 4, .beta_fast = 32, .beta_slow = 1, .truncate = true, .original_max_positions = 2048},
     1.138629436111989, {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012, 7.90569466e-05}},
    {{.kind = ROPE_YARN, .theta = 1.5e5, .factor = 32, .beta_fast = 32, .beta_slow = 1, .truncate = false, .original_max_positions = 4096},
     1.3465735902799727, {1, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05, 4.09997847e-06, 9.24208962e-07}},
    {{.kind = ROPE_YARN, .theta = 1e4, .factor = 40, .beta_fast = 32, .beta_slow = 1, .mscale = 1, .mscale_all_dim = 0.7, .truncate = true, .original_max_positions = 4096},
     1.0879546075066122, {1, 0.316227764, 0.100000001, 0.0239147246, 0.00512499968, 0.000849862176, 2.49999994e-05, 7.90569447e-06}},
    {{.kind = ROPE_YARN, .theta = 1e4, .factor = 4, .beta_fast = 32, .beta_slow = 1, .attention_factor = 1.25, .truncate = true, .original_max_positions = 2048},
     1.25, {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012, 7.90569466e-05}},
    /* the range of blended dims is empty */
    {{.kind = ROPE_YARN, .theta = 1e4, .factor = 4, .beta_fast = 32, .beta_slow = 1, .truncate = true, .original_max_positions = 4},
     1.138629436111989, {1, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05}},
    {{.kind = ROPE_YARN, .theta = 1e4, .factor = 4, .beta_fast = 8, .beta_slow = 8, .truncate = false, .original_max_positions = 2048},
     1.138629436111989, {1, 0.316227764, 0.100000001, 0.0316227786, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05}},
    /* the range ends behind the last dim */
    {{.kind = ROPE_YARN, .theta = 10, .factor = 4, .beta_fast = 900, .beta_slow = 1, .truncate = true, .original_max_positions = 10000},
     1.138629436111989, {1, 0.749894202, 0.532215893, 0.376514733, 0.265405446, 0.186322227, 0.130195454, 0.0904889554}},
};
// clang-format on
enum { N_CASES = sizeof cases / sizeof *cases };

static void rope__frequencies_are_those_of_transformers(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        double frequency_c[HALF];
        double factor = rope_frequencies(&cases[i].config, C, frequency_c);
        assert_true(fabs(factor - cases[i].factor) < 1e-14);
        for (int c = 0; c < HALF; c++) {
            /* a few f32 roundings on their side */
            double error = fabs(frequency_c[c] / cases[i].frequency_c[c] - 1);
            if (!(error < 5e-7))
                fail_msg("case %d frequency %d: %.9g, expected %.9g", i, c, frequency_c[c],
                         cases[i].frequency_c[c]);
        }
    }
}

static void rope__tables_hold_scaled_cos_and_sin(void **state)
{
    (void)state;
    enum { P = 50 };
    static const DType dtypes[] = {DTYPE_F32, DTYPE_F64};
    Arena arena;
    arena_init(&arena, "tables");
    for (int i = 0; i < N_CASES; i++)
        for (int k = 0; k < 2; k++) {
            RopeTables t;
            double frequency_c[HALF];
            double factor = rope_frequencies(&cases[i].config, C, frequency_c);
            assert_int_equal(rope_tables_build(&t, &arena, &cases[i].config, C, P, dtypes[k]), OK);
            assert_int_equal(t.n_positions, P);
            assert_int_equal(t.cos_pc.dim[0], P);
            assert_int_equal(t.cos_pc.dim[1], HALF);
            for (int64_t j = 0; j < P * HALF; j++) {
                double angle = (double)(j / HALF) * frequency_c[j % HALF];
                double tolerance = dtypes[k] == DTYPE_F32 ? 1e-7 : 1e-15;
                assert_true(fabs(load(t.cos_pc, j) - factor * cos(angle)) <= tolerance);
                assert_true(fabs(load(t.sin_pc, j) - factor * sin(angle)) <= tolerance);
            }
        }
    arena_free(&arena);
}

static void rope__growing_keeps_the_rows_there_were(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "tables");
    RopeTables small, large;
    assert_int_equal(rope_tables_build(&small, &arena, &cases[3].config, C, 5, DTYPE_F32), OK);
    assert_int_equal(rope_tables_build(&large, &arena, &cases[3].config, C, 90, DTYPE_F32), OK);
    assert_same_bits("cos", tensor_rows(large.cos_pc, 0, 5), small.cos_pc);
    assert_same_bits("sin", tensor_rows(large.sin_pc, 0, 5), small.sin_pc);
    arena_free(&arena);
}

static void rope__reports_what_does_not_fit_in_memory(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "tables");
    RopeTables t = {0};
    assert_int_equal(
        rope_tables_build(&t, &arena, &cases[0].config, C, INT64_MAX / HALF, DTYPE_F32),
        ERR_MEMORY);
    assert_true(tensor_is_null(t.cos_pc));
    arena_free(&arena);
}

static void rope__turns_halves_by_position_and_back(void **state)
{
    (void)state;
    enum { HEADS = 3 };
    Fixture f;
    RopeTables t;
    fixture_open(&f, DTYPE_F64);
    fixture_row(&f, 2, (const int[]){4, 3}, 10);
    assert_int_equal(rope_tables_build(&t, &f.model, &cases[0].config, C, 4, DTYPE_F64), OK);
    const int64_t n = f.mb.n_tokens;
    Tensor x = fixture_random(&f, "x", n, HEADS * C), y = fixture_copy(&f, x);
    rope_apply(&t, &f.run, y, HEADS, false);
    for (int64_t i = 0; i < n * HEADS; i++)
        for (int64_t c = 0; c < HALF; c++) {
            double angle = f.mb.position_t[i / HEADS] * pow(1e4, -2.0 * (double)c / C);
            double a = load(x, i * C + c), b = load(x, i * C + HALF + c);
            assert_true(fabs(load(y, i * C + c) - (a * cos(angle) - b * sin(angle))) < 1e-14);
            assert_true(fabs(load(y, i * C + HALF + c) - (b * cos(angle) + a * sin(angle))) <
                        1e-14);
        }
    rope_apply(&t, &f.run, y, HEADS, true);
    assert_near("there and back", y, x, 1e-14);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope__frequencies_are_those_of_transformers),
        cmocka_unit_test(rope__tables_hold_scaled_cos_and_sin),
        cmocka_unit_test(rope__growing_keeps_the_rows_there_were),
        cmocka_unit_test(rope__reports_what_does_not_fit_in_memory),
        cmocka_unit_test(rope__turns_halves_by_position_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
