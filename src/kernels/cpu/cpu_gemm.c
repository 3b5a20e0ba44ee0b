#include "kernels/cpu/cpu.h"

#include <math.h>

/*
 * A product is shared out as a grid of pieces. The kernel gives an element the same bits in any cut, so the number of pieces
 * may follow the number of threads.
 */
typedef struct Grid {
    int64_t rows, cols;   /* of a piece */
    int64_t down, across; /* pieces */
} Grid;

enum { PIECE_ROWS = 64, PIECE_COLS = 64, PIECES_PER_THREAD = 4 };

/**
 * About n pieces, none smaller than PIECE_ROWS x PIECE_COLS, and near to squares: a piece copies its rows of a once for every
 * few columns, its columns of b once.
 */
static Grid grid_of(const Product *p, int64_t n)
{
    int64_t down = p->n > 0 ? llround(sqrt((double)n * (double)p->m / (double)p->n)) : 1;
    down = down < 1 ? 1 : cpu_smaller(down, n);
    Grid grid = {.rows = cpu_blocks(cpu_blocks(p->m, down), PIECE_ROWS) * PIECE_ROWS, .cols = p->n};
    grid.down = cpu_blocks(p->m, grid.rows);
    if (grid.down > 0 && grid.down < n) {
        int64_t across = cpu_blocks(n, grid.down);
        grid.cols = cpu_blocks(cpu_blocks(p->n, across), PIECE_COLS) * PIECE_COLS;
    }
    grid.across = cpu_blocks(p->n, grid.cols > 0 ? grid.cols : 1);
    return grid;
}

static void piece_product(const Product *whole, Grid grid, int64_t index)
{
    int64_t row = index / grid.across * grid.rows, col = index % grid.across * grid.cols;
    Product piece = product_piece(whole, row, grid.rows, col, grid.cols);
    cpu_product(&piece);
}

static bool takes(Tensor a, Tensor b, Tensor c)
{
    return cpu_dtype(a.dtype) && cpu_dtype(b.dtype) && cpu_dtype(c.dtype);
}

void cpu_gemm(const Backend *be, const GemmArgs *args)
{
    if (!takes(args->a, args->b, args->c)) {
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
                 .dtype_a = args->a.dtype,
                 .dtype_b = args->b.dtype,
                 .dtype_c = args->c.dtype,
                 .trans_a = args->trans_a,
                 .trans_b = args->trans_b,
                 .alpha = 1,
                 .beta = (float)args->beta};
    int threads = cpu_threads(be, (double)p.m * (double)p.n * (double)p.k);
    if (threads == 1) {
        cpu_product(&p);
        return;
    }
    Grid grid = grid_of(&p, (int64_t)threads * PIECES_PER_THREAD);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t i = 0; i < grid.down * grid.across; i++) piece_product(&p, grid, i);
}

/** The plain product of expert e, which has rows. */
static Product expert_product(const GroupedGemmArgs *args, int64_t e)
{
    bool weight = args->kind == GROUPED_BACKWARD_WEIGHT;
    int64_t first = args->offset_e[e], rows = args->offset_e[e + 1] - first;
    Tensor stack = weight ? args->c : args->b; /* [E, O, I] */
    int64_t out = stack.dim[1], in = stack.dim[2], a_cols = args->a.dim[1];
    Product p = {.a = tensor_at(args->a, first * a_cols),
                 .lda = a_cols,
                 .dtype_a = args->a.dtype,
                 .dtype_b = args->b.dtype,
                 .dtype_c = args->c.dtype,
                 .alpha = 1};
    if (weight) {
        p.m = out, p.n = in, p.k = rows;
        p.b = tensor_at(args->b, first * in), p.ldb = in;
        p.c = tensor_at(args->c, e * out * in), p.ldc = in;
        p.trans_a = true;
        p.beta = 1;
    } else {
        bool forward = args->kind == GROUPED_FORWARD;
        p.m = rows, p.n = forward ? out : in, p.k = forward ? in : out;
        p.b = tensor_at(args->b, e * out * in), p.ldb = in;
        p.c = tensor_at(args->c, first * p.n), p.ldc = p.n;
        p.trans_b = forward;
        p.beta = (float)args->beta;
    }
    return p;
}

void cpu_grouped_gemm(const Backend *be, const GroupedGemmArgs *args)
{
    if (!takes(args->a, args->b, args->c)) {
        ref_grouped_gemm(be, args);
        return;
    }
    Tensor stack = args->kind == GROUPED_BACKWARD_WEIGHT ? args->c : args->b;
    int64_t all_rows = args->offset_e[args->n_groups];
    int threads = cpu_threads(be, (double)all_rows * (double)(stack.dim[1] * stack.dim[2]));
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t e = 0; e < args->n_groups; e++) {
        int64_t rows = args->offset_e[e + 1] - args->offset_e[e];
        if (rows == 0) continue;
        Product p = expert_product(args, e);
        if (threads == 1) {
            cpu_product(&p);
            continue;
        }
        /* An expert is cut by its share of the rows, so that a popular one doesn't hold up the rest. */
        Grid grid = grid_of(&p, cpu_blocks(rows * threads * PIECES_PER_THREAD, all_rows));
        /* nowait: a thread without a piece of this expert goes on to the next one */
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < grid.down * grid.across; i++) piece_product(&p, grid, i);
    }
}
