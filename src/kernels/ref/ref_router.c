#include "kernels/ref/ref.h"

#include <math.h>
#include <string.h>

/* The largest logit not among the n chosen ones; of equal ones the first. Logits and probabilities have the same order. */
static int32_t next_largest(Tensor logit_te, int64_t row, int64_t n_experts, const int32_t *chosen,
                            int64_t n)
{
    int32_t best = -1;
    for (int32_t e = 0; e < n_experts; e++) {
        bool taken = false;
        for (int64_t k = 0; k < n; k++) taken = taken || chosen[k] == e;
        if (!taken && (best < 0 || ref_load(logit_te, row + e) > ref_load(logit_te, row + best)))
            best = e;
    }
    return best;
}

void ref_router(const Backend *be, const RouterArgs *args)
{
    (void)be;
    int64_t n_tokens = args->p_te.dim[0], n_experts = args->p_te.dim[1],
            n_slots = args->id_tk.dim[1];
    ArenaMark mark = arena_mark(args->scratch);
    double *p = ARENA_NEW(args->scratch, double, n_experts);
    memset(args->count_e, 0, (size_t)n_experts * sizeof *args->count_e);
    memset(args->prob_sum_e, 0, (size_t)n_experts * sizeof *args->prob_sum_e);
    for (int64_t t = 0; t < n_tokens; t++) {
        int64_t row = t * n_experts;
        double most = -INFINITY, sum = 0, chosen_sum = 0;
        for (int64_t e = 0; e < n_experts; e++) {
            p[e] = ref_load(args->logit_te, row + e);
            if (p[e] > most) most = p[e];
        }
        for (int64_t e = 0; e < n_experts; e++) sum += p[e] = exp(p[e] - most);
        for (int64_t e = 0; e < n_experts; e++) {
            p[e] /= sum;
            ref_store(args->p_te, row + e, p[e]);
            args->prob_sum_e[e] += p[e];
        }
        ref_store(args->lse_t, t, most + log(sum));
        int32_t *id = (int32_t *)args->id_tk.data + t * n_slots;
        for (int64_t k = 0; k < n_slots; k++) {
            id[k] = next_largest(args->logit_te, row, n_experts, id, k);
            args->count_e[id[k]]++;
            chosen_sum += p[id[k]];
        }
        for (int64_t k = 0; k < n_slots; k++)
            ref_store(args->weight_tk, t * n_slots + k,
                      p[id[k]] / (args->normalise ? chosen_sum : 1));
    }
    arena_rewind(args->scratch, mark);
}

void ref_router_backward(const Backend *be, const RouterBackwardArgs *args)
{
    (void)be;
    int64_t n_tokens = args->p_te.dim[0], n_experts = args->p_te.dim[1],
            n_slots = args->id_tk.dim[1];
    for (int64_t t = 0; t < n_tokens; t++) {
        const int32_t *id = (const int32_t *)args->id_tk.data + t * n_slots;
        double chosen_sum = 0, mean_dw = 0, mean_dp = 0;
        for (int64_t k = 0; k < n_slots; k++) {
            double weight = ref_load(args->weight_tk, t * n_slots + k);
            chosen_sum += ref_load(args->p_te, t * n_experts + id[k]);
            mean_dw += weight * ref_load(args->dweight_tk, t * n_slots + k);
        }
        /* twice the same dp: first for its mean under p, then for dlogit = p (dp - mean) */
        for (int pass = 0; pass < 2; pass++)
            for (int64_t e = 0; e < n_experts; e++) {
                double p = ref_load(args->p_te, t * n_experts + e);
                double dp = args->balance_e ? args->balance_e[e] : 0;
                for (int64_t k = 0; k < n_slots; k++) {
                    double dw = ref_load(args->dweight_tk, t * n_slots + k);
                    if (id[k] == e) dp += args->normalise ? (dw - mean_dw) / chosen_sum : dw;
                }
                if (pass == 0) {
                    mean_dp += p * dp;
                } else {
                    double dlse = 2 * args->z_scale * ref_load(args->lse_t, t);
                    ref_store(args->dlogit_te, t * n_experts + e, p * (dp - mean_dp + dlse));
                }
            }
    }
}
