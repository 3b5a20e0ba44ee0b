#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

ALWAYS_INLINE void gather_row(DType dtype, const GatherRowsArgs *args, bool scaled, int64_t n)
{
    int64_t cols = args->y_nd.dim[1], from = args->index_n[n] * cols;
    if (from < 0) {
        memset(tensor_at(args->y_nd, n * cols), 0, (size_t)cols * dtype_bytes(dtype));
        return;
    }
    vec scale = vec_set(scaled ? ((const float *)args->scale_n.data)[n] : 1);
    for (int64_t d = 0; d < cols; d += LANES)
        vec_write(dtype, args->y_nd.data, n * cols + d,
                  scale * vec_read(dtype, args->x_td.data, from + d, cols - d), cols - d);
}

void cpu_gather_rows(const Backend *be, const GatherRowsArgs *args)
{
    bool scaled = !tensor_is_null(args->scale_n);
    DType dtype = args->y_nd.dtype;
    if (!cpu_dtype(dtype) || args->x_td.dtype != dtype ||
        (scaled && args->scale_n.dtype != DTYPE_F32)) {
        ref_gather_rows(be, args);
        return;
    }
    int64_t rows = args->y_nd.dim[0], cols = args->y_nd.dim[1];
    int threads = cpu_threads(be, (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) BY_DTYPE(dtype, gather_row, args, scaled, n);
}

ALWAYS_INLINE void combine_row(DType to, DType from, const CombineRowsArgs *args, bool weighted,
                               int64_t t)
{
    int64_t cols = args->y_td.dim[1], n_slots = args->n_slots;
    void *y = args->y_td.data;
    for (int64_t d = 0; d < cols; d += LANES) {
        int64_t left = cols - d;
        vec sum = {0};
        for (int64_t k = t * n_slots; k < (t + 1) * n_slots; k++) {
            if (args->row_tk[k] < 0) continue;
            vec weight = vec_set(weighted ? ((const float *)args->weight_tk.data)[k] : 1);
            vec x = vec_read(from, args->x_rd.data, args->row_tk[k] * cols + d, left);
            sum = vec_madd(weight, x, sum);
        }
        if (args->beta != 0)
            sum = vec_madd(vec_set((float)args->beta), vec_read(to, y, t * cols + d, left), sum);
        vec_write(to, y, t * cols + d, sum, left);
    }
}

ALWAYS_INLINE void combine_row_of(DType from, const CombineRowsArgs *args, bool weighted, int64_t t)
{
    BY_DTYPE(args->y_td.dtype, combine_row, from, args, weighted, t);
}

void cpu_combine_rows(const Backend *be, const CombineRowsArgs *args)
{
    bool weighted = !tensor_is_null(args->weight_tk);
    DType from = args->x_rd.dtype;
    if (!cpu_dtype(args->y_td.dtype) || !cpu_dtype(from) ||
        (weighted && args->weight_tk.dtype != DTYPE_F32)) {
        ref_combine_rows(be, args);
        return;
    }
    int64_t rows = args->y_td.dim[0];
    int threads = cpu_threads(be, (double)(rows * args->y_td.dim[1] * args->n_slots));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; t++) BY_DTYPE(from, combine_row_of, args, weighted, t);
}

ALWAYS_INLINE void scatter_columns(DType dtype, const ScatterAddRowsArgs *args, int64_t first,
                                   int64_t end)
{
    int64_t rows = args->dy_td.dim[0], cols = args->dy_td.dim[1];
    for (int64_t t = 0; t < rows; t++) {
        float *dw = (float *)args->dw_vd.data + args->id_t[t] * cols;
        for (int64_t d = first; d < end; d += LANES)
            vec_store_to(dw + d,
                         vec_load_to(dw + d, end - d) +
                             vec_read(dtype, args->dy_td.data, t * cols + d, end - d),
                         end - d);
    }
}

/** Shared out by columns: rows with the same id must be added in order. */
void cpu_scatter_add_rows(const Backend *be, const ScatterAddRowsArgs *args)
{
    if (args->dw_vd.dtype != DTYPE_F32 || !cpu_dtype(args->dy_td.dtype)) {
        ref_scatter_add_rows(be, args);
        return;
    }
    enum { COLS = 4 * LANES };
    int64_t rows = args->dy_td.dim[0], cols = args->dy_td.dim[1];
    int threads = cpu_threads(be, (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < cols; first += COLS)
        BY_DTYPE(args->dy_td.dtype, scatter_columns, args, first, cpu_smaller(cols, first + COLS));
}
