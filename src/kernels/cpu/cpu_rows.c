#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

void cpu_gather_rows(const Backend *be, const GatherRowsArgs *args)
{
    bool scaled = !tensor_is_null(args->scale_n);
    if (args->y_nd.dtype != DTYPE_F32 || args->x_td.dtype != DTYPE_F32 ||
        (scaled && args->scale_n.dtype != DTYPE_F32)) {
        ref_gather_rows(be, args);
        return;
    }
    int64_t rows = args->y_nd.dim[0], cols = args->y_nd.dim[1];
    int threads = cpu_threads(be, (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        const float *x = (const float *)args->x_td.data + args->index_n[n] * cols;
        float *y = (float *)args->y_nd.data + n * cols;
        vec scale = vec_set(scaled ? ((const float *)args->scale_n.data)[n] : 1);
        for (int64_t d = 0; d < cols; d += LANES)
            vec_store_to(y + d, scale * vec_load_to(x + d, cols - d), cols - d);
    }
}

void cpu_combine_rows(const Backend *be, const CombineRowsArgs *args)
{
    bool weighted = !tensor_is_null(args->weight_tk);
    if (args->y_td.dtype != DTYPE_F32 || args->x_rd.dtype != DTYPE_F32 ||
        (weighted && args->weight_tk.dtype != DTYPE_F32)) {
        ref_combine_rows(be, args);
        return;
    }
    int64_t rows = args->y_td.dim[0], cols = args->y_td.dim[1], n_slots = args->n_slots;
    int threads = cpu_threads(be, (double)(rows * cols * n_slots));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < rows; t++) {
        float *y = (float *)args->y_td.data + t * cols;
        for (int64_t d = 0; d < cols; d += LANES) {
            vec sum = {0};
            for (int64_t k = t * n_slots; k < (t + 1) * n_slots; k++) {
                const float *x = (const float *)args->x_rd.data + args->row_tk[k] * cols + d;
                vec weight = vec_set(weighted ? ((const float *)args->weight_tk.data)[k] : 1);
                sum = vec_madd(weight, vec_load_to(x, cols - d), sum);
            }
            if (args->beta != 0)
                sum = vec_madd(vec_set((float)args->beta), vec_load_to(y + d, cols - d), sum);
            vec_store_to(y + d, sum, cols - d);
        }
    }
}

/** Shared out by columns: rows with the same id must be added in order. */
void cpu_scatter_add_rows(const Backend *be, const ScatterAddRowsArgs *args)
{
    if (args->dw_vd.dtype != DTYPE_F32 || args->dy_td.dtype != DTYPE_F32) {
        ref_scatter_add_rows(be, args);
        return;
    }
    enum { COLS = 4 * LANES };
    int64_t rows = args->dy_td.dim[0], cols = args->dy_td.dim[1];
    int threads = cpu_threads(be, (double)(rows * cols));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < cols; first += COLS) {
        int64_t end = cpu_smaller(cols, first + COLS);
        for (int64_t t = 0; t < rows; t++) {
            float *dw = (float *)args->dw_vd.data + args->id_t[t] * cols;
            const float *dy = (const float *)args->dy_td.data + t * cols;
            for (int64_t d = first; d < end; d += LANES)
                vec_store_to(dw + d, vec_load_to(dw + d, end - d) + vec_load_to(dy + d, end - d),
                             end - d);
        }
    }
}
