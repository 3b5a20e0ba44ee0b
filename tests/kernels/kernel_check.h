#pragma once
/**
 * Common ground of the kernel tests: random tensors, comparison with the reference, and the check that bits do not
 * depend on the number of threads.
 */
#include "base/rng.h"
#include "kernels/ref/ref.h"
#include "cases/kernel_cases.h"

#include <math.h>
#include <stdio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/** The kernel path that a run of all tests is about. */
static KernelPath tested_path;

static inline void tested_backend_init(Backend *be, int n_threads)
{
    backend_cpu_init(be, tested_path, n_threads);
}

/** All tests on each path that this machine can do; the sum of the failures. */
#define RUN_ON_EACH_PATH(name, tests) \
    ({ \
        int run_failed = 0; \
        for (int run_path = 0; run_path <= (int)kernel_path_best(); run_path++) { \
            tested_path = (KernelPath)run_path; \
            char run_name[64]; \
            snprintf(run_name, sizeof run_name, "%s %s", name, kernel_path_name(tested_path)); \
            run_failed += cmocka_run_group_tests_name(run_name, tests, NULL, NULL); \
        } \
        run_failed; \
    })

enum { MAX_OUTPUTS = 6 };

/**
 * What a kernel wrote, with the error allowed for each: |cpu - ref| <= tolerance * max(floor, max |ref|) (0: equal). A bf16
 * element may be off by one unit of its last place besides: two sums, however close, may round to different sides.
 */
typedef struct Outputs {
    Tensor at[MAX_OUTPUTS];
    double tolerance[MAX_OUTPUTS];
    double floor[MAX_OUTPUTS]; /* size of the terms where they may cancel altogether; else 0 */
    int n;
} Outputs;

/**
 * Makes the inputs of a case (the same for every backend), runs the kernel and returns its outputs. dtype: that of
 * activations and weights, f32 or bf16; f32 for kernels that know no other.
 */
typedef Outputs RunCase(const Backend *be, DType dtype, const void *one_case, Arena *arena);

static inline void add_output(Outputs *out, Tensor t, double tolerance)
{
    assert_true(out->n < MAX_OUTPUTS);
    out->at[out->n] = t;
    out->floor[out->n] = 0;
    out->tolerance[out->n++] = tolerance;
}

static inline double element(Tensor t, int64_t i)
{
    switch (t.dtype) {
    case DTYPE_I32: return ((const int32_t *)t.data)[i];
    case DTYPE_I64: return (double)((const int64_t *)t.data)[i];
    default: return ref_load(t, i);
    }
}

static inline void set_element(Tensor t, int64_t i, double value)
{
    ref_store(t, i, value);
}

/** Nearly normal values; the name tells tensors of one case apart. */
static inline void fill_random(Tensor t, const char *name)
{
    uint64_t key = rng_key(7, name);
    for (int64_t i = 0; i < tensor_size(t); i++) {
        key ^= key >> 12, key ^= key << 25, key ^= key >> 27; /* xorshift64*: Marsaglia, Vigna */
        uint64_t bits = key * 0x2545f4914f6cdd1d;
        double sum = 0; /* of four uniform numbers: nearly normal */
        for (int part = 0; part < 64; part += 16)
            sum += (double)(bits >> part & 0xffff) / 65535 - 0.5;
        set_element(t, i, sum * sqrt(3));
    }
}

static inline Tensor random_tensor(Arena *arena, DType dtype, int64_t d0, int64_t d1,
                                   const char *name)
{
    Tensor t = arena_tensor2(arena, dtype, d0, d1);
    fill_random(t, name);
    return t;
}

static inline Tensor filled_tensor(Arena *arena, DType dtype, int64_t d0, int64_t d1, double value)
{
    Tensor t = arena_tensor2(arena, dtype, d0, d1);
    for (int64_t i = 0; i < tensor_size(t); i++) set_element(t, i, value);
    return t;
}

static inline Tensor as_vector(Tensor t)
{
    return tensor1(t.data, t.dtype, tensor_size(t));
}

/** One unit of the last place of the larger of two bf16 numbers; 0 for other dtypes. */
static inline double last_place(DType dtype, double a, double b)
{
    double larger = fmax(fmax(fabs(a), fabs(b)), 0x1p-126);
    return dtype == DTYPE_BF16 && isfinite(larger) ? ldexp(1, ilogb(larger) - 7) : 0;
}

static inline void assert_near(Tensor got, Tensor want, double tolerance, double floor,
                               const char *what)
{
    double largest = floor, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < tensor_size(want); i++) {
        double x = element(want, i), y = element(got, i);
        double error = fmax(fabs(y - x) - last_place(want.dtype, x, y), 0);
        if (isnan(x) || isnan(y)) error = NAN;
        if (fabs(x) > largest) largest = fabs(x);
        if (!(error <= worst)) worst = error, at = i; /* NaN counts as worst */
    }
    if (!(worst <= tolerance * largest))
        fail_msg("%s: element %lld is %.9g, expected %.9g: error %.3g of the largest %.3g (allowed "
                 "%.3g)",
                 what, (long long)at, element(got, at), element(want, at), worst / largest, largest,
                 tolerance);
}

static inline void assert_same_bits(Tensor got, Tensor want, const char *what)
{
    const char *a = got.data, *b = want.data;
    size_t bytes = dtype_bytes(got.dtype);
    for (int64_t i = 0; i < tensor_size(want); i++)
        if (memcmp(a + (size_t)i * bytes, b + (size_t)i * bytes, bytes) != 0)
            fail_msg("%s: element %lld is %.17g, expected %.17g to the bit", what, (long long)i,
                     element(got, i), element(want, i));
}

/** cpu against ref, and cpu with 2, 3, 4 threads against cpu with one, to the bit. */
static inline void check_case(RunCase *run, DType dtype, const void *one_case, const char *name)
{
    Arena arena;
    arena_init(&arena, "test");
    Backend be;
    backend_ref_init(&be, 1);
    Outputs want = run(&be, dtype, one_case, &arena);
    tested_backend_init(&be, 1);
    Outputs one = run(&be, dtype, one_case, &arena);
    for (int i = 0; i < want.n; i++) {
        char what[96];
        snprintf(what, sizeof what, "%s %s, output %d", dtype_name(dtype), name, i);
        assert_near(one.at[i], want.at[i], want.tolerance[i], want.floor[i], what);
    }
    for (int threads = 2; threads <= 4; threads++) {
        tested_backend_init(&be, threads);
        Outputs many = run(&be, dtype, one_case, &arena);
        for (int i = 0; i < want.n; i++) {
            char what[96];
            snprintf(what, sizeof what, "%s %s, output %d, %d threads", dtype_name(dtype), name, i,
                     threads);
            assert_same_bits(many.at[i], one.at[i], what);
        }
    }
    arena_free(&arena);
}

/** All rows of a list of cases that are not for benchmarks only. */
#define CHECK_CASES(run, dtype, list) \
    do { \
        for (size_t check_i = 0; check_i < N_CASES(list); check_i++) { \
            char check_name[64]; \
            snprintf(check_name, sizeof check_name, "%s row %zu", #list, check_i); \
            if (!(list)[check_i].bench_only) check_case(run, dtype, &(list)[check_i], check_name); \
        } \
    } while (0)

/** The same in each dtype of models. */
#define CHECK_CASES_BOTH(run, list) \
    do { \
        CHECK_CASES(run, DTYPE_F32, list); \
        CHECK_CASES(run, DTYPE_BF16, list); \
    } while (0)
