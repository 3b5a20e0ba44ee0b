#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

/* Sums over rows: blocks of this many rows, each into a row of its own, then the blocks in order. */
enum { ROW_BLOCK = 32 };

ALWAYS_INLINE void rmsnorm_row(DType dtype, const RmsNormArgs *args, int64_t n)
{
    int64_t cols = tensor_size(args->w_d), row = n * cols;
    const void *x = args->x_nd.data;
    vec sum = {0};
    for (int64_t d = 0; d < cols; d += LANES) {
        vec xd = vec_read(dtype, x, row + d, cols - d);
        sum = vec_madd(xd, xd, sum);
    }
    double mean = (double)vec_sum(sum) / (double)cols;
    float rstd = (float)(1 / sqrt(mean + args->eps));
    for (int64_t d = 0; d < cols; d += LANES) {
        vec normed = vec_rounded(dtype, vec_read(dtype, x, row + d, cols - d) * vec_set(rstd));
        vec_write(dtype, args->y_nd.data, row + d,
                  vec_read(dtype, args->w_d.data, d, cols - d) * normed, cols - d);
    }
    ((float *)args->rstd_n.data)[n] = rstd;
}

void cpu_rmsnorm(const Backend *be, const RmsNormArgs *args)
{
    if (!cpu_dtype(args->x_nd.dtype)) {
        ref_rmsnorm(be, args);
        return;
    }
    int64_t cols = tensor_size(args->w_d), rows = tensor_size(args->rstd_n);
    int threads = cpu_threads(be, 2 * (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) BY_DTYPE(args->x_nd.dtype, rmsnorm_row, args, n);
}

/** dx of one row; its share of dw is added to dw_sum (NULL: none). */
ALWAYS_INLINE void rmsnorm_backward_row(DType dtype, const RmsNormBackwardArgs *args, int64_t n,
                                        float *dw_sum)
{
    int64_t cols = tensor_size(args->w_d), row = n * cols;
    const void *x = args->x_nd.data, *dy = args->dy_nd.data, *w = args->w_d.data;
    void *dx = args->dx_nd.data;
    vec rstd = vec_set(((const float *)args->rstd_n.data)[n]), sum = {0};
    for (int64_t d = 0; d < cols; d += LANES) {
        int64_t left = cols - d;
        vec normed = vec_read(dtype, x, row + d, left) * rstd;
        vec dyd = vec_read(dtype, dy, row + d, left);
        sum = vec_madd(normed, vec_read(dtype, w, d, left) * dyd, sum);
        if (dw_sum)
            vec_store_to(dw_sum + d, vec_madd(dyd, normed, vec_load_to(dw_sum + d, left)), left);
    }
    vec minus_mean = vec_set(-vec_sum(sum) / (float)cols);
    for (int64_t d = 0; d < cols; d += LANES) {
        int64_t left = cols - d;
        vec normed = vec_read(dtype, x, row + d, left) * rstd;
        vec wdy = vec_read(dtype, w, d, left) * vec_read(dtype, dy, row + d, left);
        vec result = rstd * vec_madd(normed, minus_mean, wdy);
        if (args->beta != 0)
            result += vec_set((float)args->beta) * vec_read(dtype, dx, row + d, left);
        vec_write(dtype, dx, row + d, result, left);
    }
}

/** total [cols] += `rows` rows of part [..., cols] from `first` on, added up in order first. */
ALWAYS_INLINE void add_parts(DType dtype, float *total, const void *part, int64_t first,
                             int64_t rows, int64_t cols)
{
    for (int64_t d = 0; d < cols; d += LANES) {
        vec sum = {0};
        for (int64_t r = first; r < first + rows; r++)
            sum += vec_read(dtype, part, r * cols + d, cols - d);
        vec_store_to(total + d, vec_load_to(total + d, cols - d) + sum, cols - d);
    }
}

void cpu_rmsnorm_backward(const Backend *be, const RmsNormBackwardArgs *args)
{
    if (!cpu_dtype(args->x_nd.dtype)) {
        ref_rmsnorm_backward(be, args);
        return;
    }
    int64_t cols = tensor_size(args->w_d), rows = tensor_size(args->rstd_n);
    int64_t blocks = cpu_blocks(rows, ROW_BLOCK);
    bool want_dw = !tensor_is_null(args->dw_d);
    ArenaMark mark = arena_mark(args->scratch);
    float *part = want_dw ? ARENA_NEW(args->scratch, float, blocks *cols) : NULL;
    int threads = cpu_threads(be, 4 * (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t end = cpu_smaller(rows, (block + 1) * ROW_BLOCK);
        for (int64_t n = block * ROW_BLOCK; n < end; n++)
            BY_DTYPE(args->x_nd.dtype, rmsnorm_backward_row, args, n,
                     want_dw ? part + block * cols : NULL);
    }
    if (want_dw) add_parts(DTYPE_F32, args->dw_d.data, part, 0, blocks, cols);
    arena_rewind(args->scratch, mark);
}

void cpu_bias_backward(const Backend *be, Tensor db_d, Tensor dy_nd, Arena *scratch)
{
    if (!cpu_dtype(dy_nd.dtype) || db_d.dtype != DTYPE_F32) {
        ref_bias_backward(be, db_d, dy_nd, scratch);
        return;
    }
    int64_t cols = tensor_size(db_d), rows = dy_nd.dim[0], blocks = cpu_blocks(rows, ROW_BLOCK);
    ArenaMark mark = arena_mark(scratch);
    float *part = ARENA_NEW(scratch, float, blocks *cols);
    int threads = cpu_threads(be, (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * ROW_BLOCK, n = cpu_smaller(rows - first, ROW_BLOCK);
        BY_DTYPE(dy_nd.dtype, add_parts, part + block * cols, dy_nd.data, first, n, cols);
    }
    add_parts(DTYPE_F32, db_d.data, part, 0, blocks, cols);
    arena_rewind(scratch, mark);
}
