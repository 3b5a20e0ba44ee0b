#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <omp.h>

/* Borders of the blocks a product is cut into. */
enum { BLOCK_ROWS = 128, BLOCK_COLS = 256 };

void cpu_product(const Product *p)
{
    if (p->m == 0 || p->n == 0) return;
    /* The OpenMP build of OpenBLAS takes as many threads as the calling thread may start, whatever openblas_set_num_threads said
       on another one. */
    if (omp_get_max_threads() != 1) omp_set_num_threads(1);
    cblas_sgemm(CblasRowMajor, p->trans_a ? CblasTrans : CblasNoTrans,
                p->trans_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n, (int)p->k, p->alpha,
                p->a, (int)p->lda, p->b, (int)p->ldb, p->beta, p->c, (int)p->ldc);
}

/** Block number `index` of a product's blocks, counted along rows first. */
static void product_block(const Product *whole, int64_t index)
{
    int64_t across = (whole->n + BLOCK_COLS - 1) / BLOCK_COLS;
    int64_t row = index / across * BLOCK_ROWS, col = index % across * BLOCK_COLS;
    Product block = *whole;
    block.m = whole->m - row < BLOCK_ROWS ? whole->m - row : BLOCK_ROWS;
    block.n = whole->n - col < BLOCK_COLS ? whole->n - col : BLOCK_COLS;
    block.a += whole->trans_a ? row : row * whole->lda;
    block.b += whole->trans_b ? col * whole->ldb : col;
    block.c += row * whole->ldc + col;
    cpu_product(&block);
}

static int64_t n_blocks(int64_t m, int64_t n)
{
    return (m + BLOCK_ROWS - 1) / BLOCK_ROWS * ((n + BLOCK_COLS - 1) / BLOCK_COLS);
}

void cpu_gemm(const Backend *be, const GemmArgs *args)
{
    if (args->c.dtype != DTYPE_F32 || args->a.dtype != DTYPE_F32 || args->b.dtype != DTYPE_F32) {
        ref_gemm(be, args);
        return;
    }
    Product p = {.m = args->c.dim[0],
                 .n = args->c.dim[1],
                 .k = args->trans_a ? args->a.dim[0] : args->a.dim[1],
                 .a = args->a.data,
                 .b = args->b.data,
                 .c = args->c.data,
                 .lda = args->a.dim[1],
                 .ldb = args->b.dim[1],
                 .ldc = args->c.dim[1],
                 .trans_a = args->trans_a,
                 .trans_b = args->trans_b,
                 .alpha = 1,
                 .beta = (float)args->beta};
    int64_t n = n_blocks(p.m, p.n);
    int threads = cpu_threads(be, (double)p.m * (double)p.n * (double)p.k);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1 && n > 1)
    for (int64_t i = 0; i < n; i++) product_block(&p, i);
}

/** The plain product of expert e; m = 0 when it has no rows. */
static Product expert_product(const GroupedGemmArgs *args, int64_t e)
{
    bool weight = args->kind == GROUPED_BACKWARD_WEIGHT;
    int64_t first = args->offset_e[e], rows = args->offset_e[e + 1] - first;
    Tensor stack = weight ? args->c : args->b; /* [E, O, I] */
    int64_t out = stack.dim[1], in = stack.dim[2];
    int64_t a_cols = args->a.dim[1];
    Product p = {.a = (const float *)args->a.data + first * a_cols, .lda = a_cols, .alpha = 1};
    if (weight) {
        p.m = rows ? out : 0, p.n = in, p.k = rows;
        p.b = (const float *)args->b.data + first * in, p.ldb = in;
        p.c = (float *)args->c.data + e * out * in, p.ldc = in;
        p.trans_a = true;
        p.beta = 1;
    } else {
        bool forward = args->kind == GROUPED_FORWARD;
        p.m = rows, p.n = forward ? out : in, p.k = forward ? in : out;
        p.b = (const float *)args->b.data + e * out * in, p.ldb = in;
        p.c = (float *)args->c.data + first * p.n, p.ldc = p.n;
        p.trans_b = forward;
        p.beta = (float)args->beta;
    }
    return p;
}

void cpu_grouped_gemm(const Backend *be, const GroupedGemmArgs *args)
{
    if (args->c.dtype != DTYPE_F32 || args->a.dtype != DTYPE_F32 || args->b.dtype != DTYPE_F32) {
        ref_grouped_gemm(be, args);
        return;
    }
    Tensor stack = args->kind == GROUPED_BACKWARD_WEIGHT ? args->c : args->b;
    double operations = (double)args->a.dim[0] * (double)(stack.dim[1] * stack.dim[2]);
    int threads = cpu_threads(be, operations);
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t e = 0; e < args->n_groups; e++) {
        Product p = expert_product(args, e);
        int64_t n = n_blocks(p.m, p.n);
        /* nowait: a thread without a block of this expert goes on to the next one */
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < n; i++) product_block(&p, i);
    }
}
