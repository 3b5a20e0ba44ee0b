#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

/* Sums over rows: blocks of this many rows, each into a row of its own, then the blocks in order. */
enum { ROW_BLOCK = 32 };

void cpu_rmsnorm(const Backend *be, const RmsNormArgs *args)
{
    if (args->x_nd.dtype != DTYPE_F32) {
        ref_rmsnorm(be, args);
        return;
    }
    int64_t cols = tensor_size(args->w_d), rows = tensor_size(args->rstd_n);
    const float *w = args->w_d.data;
    int threads = cpu_threads(be, 2 * (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        const float *x = (const float *)args->x_nd.data + n * cols;
        float *y = (float *)args->y_nd.data + n * cols;
        vec sum = {0};
        for (int64_t d = 0; d < cols; d += LANES) {
            vec xd = vec_load_to(x + d, cols - d);
            sum = vec_madd(xd, xd, sum);
        }
        double mean = (double)vec_sum(sum) / (double)cols;
        float rstd = (float)(1 / sqrt(mean + args->eps));
        for (int64_t d = 0; d < cols; d += LANES) {
            vec normed = vec_load_to(x + d, cols - d) * vec_set(rstd);
            vec_store_to(y + d, vec_load_to(w + d, cols - d) * normed, cols - d);
        }
        ((float *)args->rstd_n.data)[n] = rstd;
    }
}

/** dx of one row; its share of dw is added to dw_sum (NULL: none). */
static void rmsnorm_backward_row(const RmsNormBackwardArgs *args, int64_t n, float *dw_sum)
{
    int64_t cols = tensor_size(args->w_d);
    const float *x = (const float *)args->x_nd.data + n * cols;
    const float *dy = (const float *)args->dy_nd.data + n * cols;
    const float *w = args->w_d.data;
    float *dx = (float *)args->dx_nd.data + n * cols;
    vec rstd = vec_set(((const float *)args->rstd_n.data)[n]), sum = {0};
    for (int64_t d = 0; d < cols; d += LANES) {
        vec normed = vec_load_to(x + d, cols - d) * rstd, dyd = vec_load_to(dy + d, cols - d);
        sum = vec_madd(normed, vec_load_to(w + d, cols - d) * dyd, sum);
        if (dw_sum)
            vec_store_to(dw_sum + d, vec_madd(dyd, normed, vec_load_to(dw_sum + d, cols - d)),
                         cols - d);
    }
    vec minus_mean = vec_set(-vec_sum(sum) / (float)cols);
    for (int64_t d = 0; d < cols; d += LANES) {
        vec normed = vec_load_to(x + d, cols - d) * rstd;
        vec wdy = vec_load_to(w + d, cols - d) * vec_load_to(dy + d, cols - d);
        vec result = rstd * vec_madd(normed, minus_mean, wdy);
        if (args->beta != 0) result += vec_set((float)args->beta) * vec_load_to(dx + d, cols - d);
        vec_store_to(dx + d, result, cols - d);
    }
}

/** total [cols] += the rows of part [rows, cols], added up in order first. */
static void add_parts(float *total, const float *part, int64_t rows, int64_t cols)
{
    for (int64_t d = 0; d < cols; d += LANES) {
        vec sum = {0};
        for (int64_t r = 0; r < rows; r++) sum += vec_load_to(part + r * cols + d, cols - d);
        vec_store_to(total + d, vec_load_to(total + d, cols - d) + sum, cols - d);
    }
}

void cpu_rmsnorm_backward(const Backend *be, const RmsNormBackwardArgs *args)
{
    if (args->x_nd.dtype != DTYPE_F32) {
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
            rmsnorm_backward_row(args, n, want_dw ? part + block * cols : NULL);
    }
    if (want_dw) add_parts(args->dw_d.data, part, blocks, cols);
    arena_rewind(args->scratch, mark);
}

void cpu_bias_backward(const Backend *be, Tensor db_d, Tensor dy_nd, Arena *scratch)
{
    if (dy_nd.dtype != DTYPE_F32 || db_d.dtype != DTYPE_F32) {
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
        add_parts(part + block * cols, (const float *)dy_nd.data + first * cols, n, cols);
    }
    add_parts(db_d.data, part, blocks, cols);
    arena_rewind(scratch, mark);
}
