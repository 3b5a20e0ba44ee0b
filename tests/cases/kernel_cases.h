#pragma once
/**
 * Shapes of the kernels, for the tests (against the reference) and the benchmarks. Odd sizes that fit no vector, block
 * or tile are there on purpose; rows marked bench_only are too large for the reference.
 */
#include <stdbool.h>
#include <stdint.h>

typedef struct GemmCase {
    int64_t m, n, k;
    bool bench_only;
} GemmCase;

// clang-format off
static const GemmCase gemm_cases[] = {
    {1, 1, 1, 0},       {1, 7, 3, 0},       {3, 1, 17, 0},      {17, 33, 64, 0},      {33, 17, 1, 0},
    {64, 64, 64, 0},    {14, 32, 256, 0},   {15, 31, 257, 0},   {28, 48, 255, 0},     {1, 257, 64, 0},
    {257, 3, 33, 0},    {33, 600, 65, 0},   {257, 257, 257, 0}, {5, 100, 520, 0},     {100, 13, 300, 0},
    {1, 768, 512, 0},   {16, 768, 512, 0},  {640, 384, 128, 1}, {640, 100, 128, 1},   {128, 128, 640, 0},
    {512, 512, 512, 1}, {1024, 1024, 1024, 1}, {1024, 3072, 1024, 1}, {2048, 2048, 2048, 1}, {4096, 512, 512, 1},
};

/* rows of each expert, -1 ends the list; weights [E, out, in] */
typedef struct GroupedCase {
    int64_t out, in;
    int rows[17];
    bool bench_only;
} GroupedCase;

static const GroupedCase grouped_cases[] = {
    {7, 3, {1, -1}, 0},
    {33, 17, {0, 5, 0, 1, 3, 0, -1}, 0},
    {64, 64, {0, 0, -1}, 0},
    {256, 128, {160, 33, 0, 257, 64, 1, 17, 108, -1}, 0},
    {128, 128, {600, 1, 2, 3, -1}, 0},
    {256, 128, {160, 160, 160, 160, 160, 160, 160, 160, -1}, 1},
    {256, 256, {64, 64, 64, 64, 64, 64, 64, 64, -1}, 1},
    {768, 512, {16, 16, 16, 16, 16, 16, 16, 16, -1}, 1},
    {768, 512, {64, 64, 64, 64, 64, 64, 64, 64, -1}, 1},
    {768, 512, {256, 256, 256, 256, 256, 256, 256, 256, -1}, 1},
    {768, 512, {1600, 64, 64, 64, 64, 64, 64, 64, -1}, 1},
};

/* n_segments segments of nq queries and nk keys each, the i-th longer by i * grow */
typedef struct AttentionCase {
    int64_t n_heads, n_kv_heads, head_dim;
    int n_segments, nq, nk, grow;
    bool bench_only;
} AttentionCase;

static const AttentionCase attention_cases[] = {
    {1, 1, 16, 1, 1, 1, 0, 0},    {4, 1, 32, 3, 1, 1, 0, 0},    {2, 2, 64, 2, 17, 17, 16, 0},  {4, 1, 16, 5, 3, 3, 7, 0},
    {8, 2, 32, 40, 17, 17, 1, 0}, {2, 1, 128, 1, 64, 64, 0, 0}, {4, 4, 24, 2, 65, 65, 0, 0},   {2, 1, 16, 1, 333, 333, 0, 0},
    {4, 2, 32, 3, 1, 33, 64, 0},  {2, 1, 16, 2, 5, 300, 3, 0},  {1, 1, 7, 1, 70, 600, 0, 0},
    {4, 2, 32, 38, 17, 17, 0, 1}, {8, 8, 64, 60, 17, 17, 0, 1}, {8, 4, 64, 1, 1024, 1024, 0, 1}, {16, 4, 64, 1, 4096, 4096, 0, 1},
    {16, 8, 128, 4, 512, 512, 0, 1}, {16, 4, 64, 1, 1, 1024, 0, 1},
};

/* rows and columns of norms, swiglu, gathers, sums */
typedef struct RowsCase {
    int64_t rows, cols;
    bool bench_only;
} RowsCase;

static const RowsCase rows_cases[] = {
    {1, 1, 0}, {3, 7, 0}, {17, 33, 0}, {64, 64, 0}, {257, 16, 0}, {33, 257, 0}, {200, 100, 0}, {640, 128, 0},
    {2560, 32, 1}, {4096, 1024, 1},
};

typedef struct RouterCase {
    int64_t n_tokens, n_experts, n_slots;
    bool normalise, bench_only;
} RouterCase;

static const RouterCase router_cases[] = {
    {1, 1, 1, true, 0},     {3, 7, 2, false, 0},    {17, 8, 2, true, 0},   {257, 33, 4, true, 0},
    {64, 16, 16, false, 0}, {640, 8, 2, true, 0},   {4096, 128, 8, true, 1},
};

typedef struct LossCase {
    int64_t rows, n_ids;
    bool bench_only;
} LossCase;

static const LossCase loss_cases[] = {
    {1, 7, 0}, {33, 7, 0}, {17, 1000, 0}, {3, 1, 0}, {2, 5000, 0}, {640, 100, 0}, {1024, 32000, 1},
};
// clang-format on

#define N_CASES(list) (sizeof(list) / sizeof *(list))
