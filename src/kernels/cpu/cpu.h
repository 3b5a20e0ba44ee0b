#pragma once
/**
 * The fast kernels of backend_cpu_init, for f32 models and for bf16 ones: activations and working weights in bf16, all that
 * kernels/backend.h calls f32+ in f32. Every sum is f32 and rounded once. A call with other dtypes goes to the reference
 * kernel of the same name.
 *
 * Results depend on shapes and values only: work is cut at borders fixed by shapes, each piece is computed by one thread
 * in a fixed order, and partial results are added in the order of the pieces. Which thread takes which piece is free.
 * What is too little work to gain from a second thread is done without a parallel region.
 *
 * Read cpu_vector.h, then cpu_product.c: the products of all other files are its.
 */
#include "kernels/cpu/cpu_names.h"
#include "kernels/ref/ref.h"

#include <omp.h>

/** A product as one thread sees it: c [m, n] = alpha op(a) op(b) + beta c; ld*: elements from row to row as stored. */
typedef struct Product {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc;
    DType dtype_a, dtype_b, dtype_c; /* each f32 (also if left out) or bf16 */
    bool trans_a, trans_b;
    float alpha, beta; /* beta 0: c is not read */
} Product;

/**
 * On the calling thread alone. An element of c has the same bits whatever m and n are and wherever it stands, so
 * callers may cut c as they like, but never k. Takes up to 970 KiB of stack.
 *
 * Numerics: sums over k in f32; c rounded once if it is bf16. bf16 inputs are widened to f32, but where b is bf16 and the
 *           path has AMX tiles (cpu_tiles.c): numbers below 2^-126 then count as 0 in inputs and sums, and if a is f32,
 *           infinities of either input come out as NaN.
 */
void cpu_product(const Product *p);
/** The same by AMX tiles, or false, and nothing is done: a matter of dtypes and k alone. */
bool cpu_tile_product(const Product *p);

/** Address of element i of an array that is f32 or bf16. */
static inline void *cpu_element(const void *x, DType dtype, int64_t i)
{
    return (char *)x + i * (dtype == DTYPE_BF16 ? 2 : 4);
}

static inline int64_t cpu_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/** The part of a product that gives `rows` rows from `row` on and `cols` columns from `col` on, fewer at the ends. */
static inline Product product_piece(const Product *whole, int64_t row, int64_t rows, int64_t col,
                                    int64_t cols)
{
    Product p = *whole;
    p.m = cpu_smaller(whole->m - row, rows);
    p.n = cpu_smaller(whole->n - col, cols);
    p.a = cpu_element(p.a, p.dtype_a, p.trans_a ? row : row * p.lda);
    p.b = cpu_element(p.b, p.dtype_b, p.trans_b ? col * p.ldb : col);
    p.c = cpu_element(p.c, p.dtype_c, row * p.ldc + col);
    return p;
}

/** How many threads to use for about this many multiply-adds (or what takes as long). */
static inline int cpu_threads(const Backend *be, double operations)
{
    return operations < 1e6 ? 1 : be->n_threads;
}

/** Number of the calling thread within its parallel region, 0 outside of one. */
static inline int cpu_thread(void)
{
    return omp_get_thread_num();
}

/** Whether there are kernels for it. */
static inline bool cpu_dtype(DType dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16;
}

static inline int64_t cpu_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

/* cpu.c: the table of this path, but for its name */
void cpu_backend_init(Backend *be, int n_threads);
/* cpu_gemm.c */
void cpu_gemm(const Backend *be, const GemmArgs *args);
void cpu_grouped_gemm(const Backend *be, const GroupedGemmArgs *args);
/* cpu_norm.c */
void cpu_rmsnorm(const Backend *be, const RmsNormArgs *args);
void cpu_rmsnorm_backward(const Backend *be, const RmsNormBackwardArgs *args);
void cpu_bias_backward(const Backend *be, Tensor db_d, Tensor dy_nd, Arena *scratch);
/* cpu_attention.c, cpu_attention_backward.c */
void cpu_attention(const Backend *be, const AttentionArgs *args);
void cpu_attention_backward(const Backend *be, const AttentionBackwardArgs *args);
/* cpu_router.c */
void cpu_router(const Backend *be, const RouterArgs *args);
void cpu_router_backward(const Backend *be, const RouterBackwardArgs *args);
/* cpu_elementwise.c */
void cpu_rope(const Backend *be, const RopeArgs *args);
void cpu_swiglu(const Backend *be, const SwiGluArgs *args);
void cpu_swiglu_backward(const Backend *be, const SwiGluBackwardArgs *args);
void cpu_add(const Backend *be, Tensor y, Tensor a, Tensor b);
void cpu_add_bias(const Backend *be, Tensor x_nd, Tensor b_d);
void cpu_convert(const Backend *be, Tensor y, Tensor x);
/* cpu_rows.c */
void cpu_gather_rows(const Backend *be, const GatherRowsArgs *args);
void cpu_combine_rows(const Backend *be, const CombineRowsArgs *args);
void cpu_scatter_add_rows(const Backend *be, const ScatterAddRowsArgs *args);
/* cpu_loss.c */
void cpu_cross_entropy(const Backend *be, const CrossEntropyArgs *args);
/* cpu_optimizer.c */
double cpu_sum_squares(const Backend *be, Tensor x, Arena *scratch);
void cpu_adamw(const Backend *be, const AdamWArgs *args);
void cpu_sgd(const Backend *be, const SgdArgs *args);
