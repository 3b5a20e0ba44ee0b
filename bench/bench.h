#pragma once
/**
 * Timing and its output: a JSON line per row, with the machine's own peak and the same work done by a library measured
 * beside it, since only ratios of one run mean something on a shared machine.
 *
 *   what, shape     the row                          backend, threads
 *   min_s, median_s seconds of one call              gflops      of the fastest call
 *   of_peak         gflops / (threads * peak of one core's multiply-adds, measured in this run)
 *   against, ratio  what it is compared with, and its time / our time (over 1: we are faster); left out if nothing
 *   gbytes_per_s    bytes touched / fastest time, where a row counts bytes rather than operations
 */
#include "base/clock.h"
#include "core/tensor.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void BenchWork(void *context);

typedef struct BenchTime {
    double min, median; /* seconds of a call */
} BenchTime;

enum { BENCH_RUNS = 15 };

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/** Two works in turn, run by run, so that a slow moment of the machine hits both; other may be NULL. */
static inline void bench_time(BenchWork *work, BenchWork *other, void *context, BenchTime time[2])
{
    BenchWork *works[2] = {work, other};
    double seconds[2][BENCH_RUNS];
    int64_t repeat = 1;
    for (;; repeat *= 2) { /* warms up, too */
        double start = clock_seconds();
        for (int64_t i = 0; i < repeat; i++) work(context);
        if (clock_seconds() - start > 0.01) break;
    }
    for (int run = 0; run < BENCH_RUNS; run++)
        for (int w = 0; w < 2 && works[w]; w++) {
            double start = clock_seconds();
            for (int64_t i = 0; i < repeat; i++) works[w](context);
            seconds[w][run] = (clock_seconds() - start) / (double)repeat;
        }
    for (int w = 0; w < 2 && works[w]; w++) {
        qsort(seconds[w], BENCH_RUNS, sizeof *seconds[w], bench_compare);
        time[w] = (BenchTime){seconds[w][0], seconds[w][BENCH_RUNS / 2]};
    }
}

/** GFLOP/s of independent f32 multiply-adds on one core, as wide as this build may use. */
static inline double bench_peak(void)
{
#if defined(__AVX512F__)
    enum { WIDTH = 16 };
#elif defined(__AVX2__)
    enum { WIDTH = 8 };
#else
    enum { WIDTH = 4 };
#endif
    typedef float wide __attribute__((vector_size(WIDTH * 4)));
    enum { CHAINS = 12, STEPS = 100000 };
    wide a = {0}, b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;
    wide factor = a + 0.999f, add = a + 1e-6f;
    double best = 1e9;
    for (int run = 0; run < 50; run++) {
        double start = clock_seconds();
        for (int step = 0; step < STEPS; step++) {
#if defined(__FMA__) && defined(__x86_64__)
#define BENCH_STEP(x) __asm__("vfmadd213ps %2, %1, %0" : "+v"(x) : "v"(factor), "v"(add))
#else
#define BENCH_STEP(x) x = x * factor + add
#endif
            BENCH_STEP(a);
            BENCH_STEP(b);
            BENCH_STEP(c);
            BENCH_STEP(d);
            BENCH_STEP(e);
            BENCH_STEP(f);
            BENCH_STEP(g);
            BENCH_STEP(h);
            BENCH_STEP(i);
            BENCH_STEP(j);
            BENCH_STEP(k);
            BENCH_STEP(l);
#undef BENCH_STEP
        }
        double seconds = clock_seconds() - start;
        if (seconds < best) best = seconds;
    }
    volatile float sink = (a + b + c + d + e + f + g + h + i + j + k + l)[0];
    (void)sink;
    return 2.0 * CHAINS * STEPS * WIDTH / best * 1e-9;
}

typedef struct BenchRow {
    const char *what, *shape, *backend;
    int threads;
    double operations;   /* 0: not counted */
    double bytes;        /* 0: not counted */
    const char *against; /* NULL: nothing */
} BenchRow;

static inline void bench_print(BenchRow row, double peak, const BenchTime time[2])
{
    printf(
        "{\"what\": \"%s\", \"shape\": \"%s\", \"backend\": \"%s\", \"ranks\": 1, \"threads\": %d, "
        "\"min_s\": %.4g, \"median_s\": %.4g",
        row.what, row.shape, row.backend, row.threads, time[0].min, time[0].median);
    if (row.operations > 0)
        printf(", \"gflops\": %.4g, \"of_peak\": %.3f", row.operations / time[0].min * 1e-9,
               row.operations / time[0].min * 1e-9 / (peak * row.threads));
    if (row.bytes > 0) printf(", \"gbytes_per_s\": %.4g", row.bytes / time[0].min * 1e-9);
    if (row.against)
        printf(", \"against\": \"%s\", \"ratio\": %.3f, \"ratio_median\": %.3f", row.against,
               time[1].min / time[0].min, time[1].median / time[0].median);
    printf(", \"peak_gflops\": %.4g, \"commit\": \"%s\"}\n", peak, SW_COMMIT);
    fflush(stdout);
}

/** OpenMP threads that products of OpenBLAS called from this thread use. */
static inline void bench_blas_threads(int threads)
{
    openblas_set_num_threads(threads);
    omp_set_num_threads(threads);
}

/** Numbers in [-1, 1), f32 or bf16. */
static inline void bench_fill(Tensor t)
{
    uint32_t state = 1;
    for (int64_t i = 0; i < tensor_size(t); i++) {
        state = state * 1664525 + 1013904223;
        float x = (float)(state >> 8) / (float)(1 << 23) - 1;
        uint16_t half[2];
        memcpy(half, &x, sizeof x);
        if (t.dtype == DTYPE_BF16)
            ((uint16_t *)t.data)[i] = half[1]; /* the upper half, on little-endian machines */
        else
            ((float *)t.data)[i] = x;
    }
}
