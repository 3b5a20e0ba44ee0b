#include "kernels/ref/ref.h"

#include <math.h>

void ref_cross_entropy(const Backend *be, const CrossEntropyArgs *args)
{
    (void)be;
    int64_t rows = args->logit_nv.dim[0], n_ids = args->logit_nv.dim[1];
    double loss = 0;
    for (int64_t n = 0; n < rows; n++) {
        int64_t row = n * n_ids, target = args->target_n[n];
        double lse = 0;
        if (target >= 0) {
            double most = -INFINITY, sum = 0;
            for (int64_t v = 0; v < n_ids; v++)
                if (ref_load(args->logit_nv, row + v) > most)
                    most = ref_load(args->logit_nv, row + v);
            for (int64_t v = 0; v < n_ids; v++)
                sum += exp(ref_load(args->logit_nv, row + v) - most);
            lse = most + log(sum);
            loss += args->weight_n[n] * (lse - ref_load(args->logit_nv, row + target));
        }
        if (!args->want_grad) continue;
        for (int64_t v = 0; v < n_ids; v++) {
            double p = target < 0 ? 0 : exp(ref_load(args->logit_nv, row + v) - lse);
            double d = target < 0 ? 0 : args->weight_n[n] * (p - (v == target ? 1 : 0));
            ref_store(args->logit_nv, row + v, d);
        }
    }
    *args->loss = loss;
}
