#include "kernels/ref/ref.h"

void ref_gather_rows(const Backend *be, const GatherRowsArgs *args)
{
    (void)be;
    int64_t cols = args->y_nd.dim[1];
    for (int64_t n = 0; n < args->y_nd.dim[0]; n++) {
        double scale = tensor_is_null(args->scale_n) ? 1 : ref_load(args->scale_n, n);
        for (int64_t d = 0; d < cols; d++) {
            int64_t from = args->index_n[n];
            double x = from < 0 ? 0 : ref_load(args->x_td, from * cols + d);
            ref_store(args->y_nd, n * cols + d, scale * x);
        }
    }
}

void ref_combine_rows(const Backend *be, const CombineRowsArgs *args)
{
    (void)be;
    int64_t cols = args->y_td.dim[1], n_slots = args->n_slots;
    for (int64_t t = 0; t < args->y_td.dim[0]; t++)
        for (int64_t d = 0; d < cols; d++) {
            double sum = 0;
            for (int64_t k = t * n_slots; k < (t + 1) * n_slots; k++) {
                if (args->row_tk[k] < 0) continue;
                double weight = tensor_is_null(args->weight_tk) ? 1 : ref_load(args->weight_tk, k);
                sum += weight * ref_load(args->x_rd, args->row_tk[k] * cols + d);
            }
            ref_update(args->y_td, t * cols + d, args->beta, sum);
        }
}

void ref_scatter_add_rows(const Backend *be, const ScatterAddRowsArgs *args)
{
    (void)be;
    int64_t cols = args->dy_td.dim[1];
    for (int64_t t = 0; t < args->dy_td.dim[0]; t++)
        for (int64_t d = 0; d < cols; d++)
            ref_update(args->dw_vd, args->id_t[t] * cols + d, 1,
                       ref_load(args->dy_td, t * cols + d));
}
