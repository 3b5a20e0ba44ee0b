#pragma once
/**
 * The fast f32 kernels of backend_cpu_init. A call with other dtypes goes to the reference kernel of the same name.
 *
 * Results depend on shapes and values only: work is cut at borders fixed by shapes, each piece is computed by one thread
 * in a fixed order, and partial results are added in the order of the pieces. Which thread takes which piece is free.
 * A piece of work too small to gain from a second thread is done without a parallel region (again decided by shape).
 */
#include "kernels/ref/ref.h"

/** A product's operands as one thread sees them: c [m, n] = alpha op(a) op(b) + beta c; ld*: elements from row to row. */
typedef struct Product {
    int64_t m, n, k;
    const float *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    bool trans_a, trans_b;
    float alpha, beta;
} Product;

/** On the calling thread alone. */
void cpu_product(const Product *p);

/** Threads for work of about this many simple operations: be->n_threads, or 1 when it is too little to share. */
static inline int cpu_threads(const Backend *be, double operations)
{
    return operations < 2e5 ? 1 : be->n_threads;
}

/* cpu_gemm.c */
void cpu_gemm(const Backend *be, const GemmArgs *args);
void cpu_grouped_gemm(const Backend *be, const GroupedGemmArgs *args);
