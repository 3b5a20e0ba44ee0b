#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

enum { COL_BLOCK = 2048 }; /* of these the sums are f32 (lanes apart); beyond it f64 */

/** weight * cross entropy of one row; with want_grad the row becomes its gradient. */
static double row_loss(float *x, int64_t n, int64_t target, double weight, bool want_grad)
{
    vec most = vec_set(-INFINITY);
    for (int64_t v = 0; v < n; v += LANES)
        most = vec_max(most, vec_load_or(x + v, n - v, -INFINITY));
    vec largest = vec_set(vec_largest(most));
    double target_logit = (double)x[target], total = 0;
    for (int64_t first = 0; first < n; first += COL_BLOCK) {
        int64_t end = cpu_smaller(n, first + COL_BLOCK);
        vec sum = {0};
        for (int64_t v = first; v < end; v += LANES) {
            vec p = vec_exp(vec_load_or(x + v, end - v, -INFINITY) - largest);
            sum += p;
            if (want_grad) vec_store_to(x + v, p, end - v);
        }
        total += (double)vec_sum(sum);
    }
    if (want_grad) {
        double p_target = (double)x[target] / total;
        vec factor = vec_set((float)(weight / total));
        for (int64_t v = 0; v < n; v += LANES)
            vec_store_to(x + v, factor * vec_load_to(x + v, n - v), n - v);
        x[target] = (float)(weight * (p_target - 1));
    }
    return weight * ((double)largest[0] - target_logit + log(total));
}

void cpu_cross_entropy(const Backend *be, const CrossEntropyArgs *args)
{
    if (args->logit_nv.dtype != DTYPE_F32) {
        ref_cross_entropy(be, args);
        return;
    }
    int64_t rows = args->logit_nv.dim[0], n_ids = args->logit_nv.dim[1];
    ArenaMark mark = arena_mark(args->scratch);
    double *loss = ARENA_NEW(args->scratch, double, rows);
    int threads = cpu_threads(be, 8 * (double)(rows * n_ids));
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads) if (threads > 1)
    for (int64_t n = 0; n < rows; n++) {
        float *x = (float *)args->logit_nv.data + n * n_ids;
        if (args->target_n[n] >= 0)
            loss[n] = row_loss(x, n_ids, args->target_n[n], args->weight_n[n], args->want_grad);
        else if (args->want_grad)
            memset(x, 0, (size_t)n_ids * sizeof *x);
    }
    double total = 0;
    for (int64_t n = 0; n < rows; n++) total += loss[n];
    *args->loss = total;
    arena_rewind(args->scratch, mark);
}
