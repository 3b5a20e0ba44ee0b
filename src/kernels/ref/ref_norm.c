#include "kernels/ref/ref.h"

#include <math.h>

void ref_rmsnorm(const Backend *be, const RmsNormArgs *args)
{
    (void)be;
    int64_t cols = tensor_size(args->w_d), rows = tensor_size(args->rstd_n);
    for (int64_t n = 0; n < rows; n++) {
        double sum = 0;
        for (int64_t d = 0; d < cols; d++) {
            double x = ref_load(args->x_nd, n * cols + d);
            sum += x * x;
        }
        double rstd = 1 / sqrt(sum / (double)cols + args->eps);
        for (int64_t d = 0; d < cols; d++) {
            int64_t i = n * cols + d;
            ref_store(args->y_nd, i, ref_load(args->x_nd, i) * rstd); /* rounds */
            ref_store(args->y_nd, i, ref_load(args->w_d, d) * ref_load(args->y_nd, i));
        }
        ref_store(args->rstd_n, n, rstd);
    }
}

void ref_rmsnorm_backward(const Backend *be, const RmsNormBackwardArgs *args)
{
    (void)be;
    int64_t cols = tensor_size(args->w_d), rows = tensor_size(args->rstd_n);
    for (int64_t n = 0; n < rows; n++) {
        double rstd = ref_load(args->rstd_n, n), mean = 0;
        for (int64_t d = 0; d < cols; d++) {
            int64_t i = n * cols + d;
            mean +=
                ref_load(args->x_nd, i) * rstd * ref_load(args->w_d, d) * ref_load(args->dy_nd, i);
        }
        mean /= (double)cols;
        for (int64_t d = 0; d < cols; d++) {
            int64_t i = n * cols + d;
            double normed = ref_load(args->x_nd, i) * rstd;
            double wdy = ref_load(args->w_d, d) * ref_load(args->dy_nd, i);
            ref_update(args->dx_nd, i, args->beta, rstd * (wdy - normed * mean));
        }
    }
    if (tensor_is_null(args->dw_d)) return;
    for (int64_t d = 0; d < cols; d++) {
        double sum = 0;
        for (int64_t n = 0; n < rows; n++) {
            int64_t i = n * cols + d;
            sum += ref_load(args->dy_nd, i) * ref_load(args->x_nd, i) * ref_load(args->rstd_n, n);
        }
        ref_update(args->dw_d, d, 1, sum);
    }
}
