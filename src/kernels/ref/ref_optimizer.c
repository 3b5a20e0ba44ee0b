#include "kernels/ref/ref.h"

#include <math.h>

enum { BLOCK = 4096 };

double ref_sum_squares(const Backend *be, Tensor x, Arena *scratch)
{
    (void)be, (void)scratch;
    double total = 0;
    for (int64_t first = 0, n = tensor_size(x); first < n; first += BLOCK) {
        double sum = 0;
        for (int64_t i = first; i < n && i < first + BLOCK; i++)
            sum += ref_load(x, i) * ref_load(x, i);
        total += sum;
    }
    return total;
}

void ref_adamw(const Backend *be, const AdamWArgs *args)
{
    (void)be;
    double step = args->lr / (1 - pow(args->beta1, (double)args->t));
    double root_correction = sqrt(1 - pow(args->beta2, (double)args->t));
    for (int64_t i = 0; i < tensor_size(args->w); i++) {
        double g = ref_load(args->g, i) * args->grad_scale;
        double m = args->beta1 * ref_load(args->m, i) + (1 - args->beta1) * g;
        double v = args->beta2 * ref_load(args->v, i) + (1 - args->beta2) * g * g;
        double w = ref_load(args->w, i) * (1 - args->lr * args->weight_decay);
        ref_store(args->w, i, w - step * m / (sqrt(v) / root_correction + args->eps));
        ref_store(args->m, i, m);
        ref_store(args->v, i, v);
    }
}

void ref_sgd(const Backend *be, const SgdArgs *args)
{
    (void)be;
    for (int64_t i = 0; i < tensor_size(args->w); i++) {
        double w = ref_load(args->w, i), g = ref_load(args->g, i) * args->grad_scale;
        ref_store(args->w, i, w - args->lr * (g + args->weight_decay * w));
    }
}
