#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

enum { ROW_BLOCK = 64 }; /* tokens whose statistics are summed together, in f64 */

/** The n_slots largest logits in descending order, equal ones by index: insertion into a short sorted list. */
static void choose(int32_t *id, int64_t n_slots, const float *logit, int64_t n_experts)
{
    int64_t n = 0;
    for (int32_t e = 0; e < n_experts; e++) {
        if (n == n_slots && !(logit[e] > logit[id[n - 1]])) continue;
        int64_t at = n < n_slots ? n++ : n - 1;
        for (; at > 0 && logit[e] > logit[id[at - 1]]; at--) id[at] = id[at - 1];
        id[at] = e;
    }
}

static void route_token(const RouterArgs *args, int64_t t, int64_t *count_e, double *prob_sum_e)
{
    int64_t n_experts = args->p_te.dim[1], n_slots = args->id_tk.dim[1];
    const float *logit = (const float *)args->logit_te.data + t * n_experts;
    float *p = (float *)args->p_te.data + t * n_experts;
    float *weight = (float *)args->weight_tk.data + t * n_slots;
    int32_t *id = (int32_t *)args->id_tk.data + t * n_slots;
    vec most = vec_set(-INFINITY), sum = {0};
    for (int64_t e = 0; e < n_experts; e += LANES)
        most = vec_max(most, vec_load_or(logit + e, n_experts - e, -INFINITY));
    vec largest = vec_set(vec_largest(most));
    for (int64_t e = 0; e < n_experts; e += LANES) {
        vec x = vec_exp(vec_load_or(logit + e, n_experts - e, -INFINITY) - largest);
        sum += x;
        vec_store_to(p + e, x, n_experts - e);
    }
    float total = vec_sum(sum), chosen_sum = 0;
    ((float *)args->lse_t.data)[t] = (float)((double)largest[0] + log((double)total));
    for (int64_t e = 0; e < n_experts; e++) {
        p[e] /= total;
        prob_sum_e[e] += (double)p[e];
    }
    choose(id, n_slots, logit, n_experts);
    for (int64_t k = 0; k < n_slots; k++) {
        count_e[id[k]]++;
        chosen_sum += p[id[k]];
    }
    for (int64_t k = 0; k < n_slots; k++)
        weight[k] = args->normalise ? p[id[k]] / chosen_sum : p[id[k]];
}

void cpu_router(const Backend *be, const RouterArgs *args)
{
    if (args->logit_te.dtype != DTYPE_F32) {
        ref_router(be, args);
        return;
    }
    int64_t n_tokens = args->p_te.dim[0], n_experts = args->p_te.dim[1];
    int64_t blocks = cpu_blocks(n_tokens, ROW_BLOCK);
    ArenaMark mark = arena_mark(args->scratch);
    int64_t *count = ARENA_NEW(args->scratch, int64_t, blocks * n_experts);
    double *prob_sum = ARENA_NEW(args->scratch, double, blocks *n_experts);
    int threads = cpu_threads(be, 16 * (double)(n_tokens * (n_experts + 8)));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t end = cpu_smaller(n_tokens, (block + 1) * ROW_BLOCK);
        for (int64_t t = block * ROW_BLOCK; t < end; t++)
            route_token(args, t, count + block * n_experts, prob_sum + block * n_experts);
    }
    for (int64_t e = 0; e < n_experts; e++) {
        args->count_e[e] = 0;
        args->prob_sum_e[e] = 0;
        for (int64_t block = 0; block < blocks; block++) {
            args->count_e[e] += count[block * n_experts + e];
            args->prob_sum_e[e] += prob_sum[block * n_experts + e];
        }
    }
    arena_rewind(args->scratch, mark);
}

/** dlogit = p (dp - sum p dp + dlse); dp is built in dlogit's row. */
static void router_backward_token(const RouterBackwardArgs *args, int64_t t)
{
    int64_t n_experts = args->p_te.dim[1], n_slots = args->id_tk.dim[1];
    const float *p = (const float *)args->p_te.data + t * n_experts;
    const float *weight = (const float *)args->weight_tk.data + t * n_slots;
    const float *dweight = (const float *)args->dweight_tk.data + t * n_slots;
    const int32_t *id = (const int32_t *)args->id_tk.data + t * n_slots;
    float *dlogit = (float *)args->dlogit_te.data + t * n_experts;
    for (int64_t e = 0; e < n_experts; e++)
        dlogit[e] = args->balance_e ? (float)args->balance_e[e] : 0;
    float chosen_sum = 0, mean_dw = 0;
    for (int64_t k = 0; k < n_slots; k++) {
        chosen_sum += p[id[k]];
        mean_dw += weight[k] * dweight[k];
    }
    for (int64_t k = 0; k < n_slots; k++)
        dlogit[id[k]] += args->normalise ? (dweight[k] - mean_dw) / chosen_sum : dweight[k];
    vec sum = {0};
    for (int64_t e = 0; e < n_experts; e += LANES)
        sum = vec_madd(vec_load_to(p + e, n_experts - e), vec_load_to(dlogit + e, n_experts - e),
                       sum);
    float lse = ((const float *)args->lse_t.data)[t];
    float shift = (float)(2 * args->z_scale * (double)lse) - vec_sum(sum);
    for (int64_t e = 0; e < n_experts; e++) dlogit[e] = p[e] * (dlogit[e] + shift);
}

void cpu_router_backward(const Backend *be, const RouterBackwardArgs *args)
{
    if (args->p_te.dtype != DTYPE_F32) {
        ref_router_backward(be, args);
        return;
    }
    int64_t n_tokens = args->p_te.dim[0];
    int threads = cpu_threads(be, 4 * (double)(n_tokens * (args->p_te.dim[1] + 8)));
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t t = 0; t < n_tokens; t++) router_backward_token(args, t);
}
