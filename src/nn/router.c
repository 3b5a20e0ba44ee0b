#include "nn/router.h"
#include "base/text.h"

#include <assert.h>
#include <string.h>

void router_declare(Router *m, ParamSet *set, int layer, int64_t hidden, int64_t n_experts,
                    int64_t top_k, bool normalise)
{
    assert(top_k >= 1 && top_k <= n_experts);
    *m = (Router){.n_experts = n_experts, .top_k = top_k, .normalise = normalise};
    linear_declare(&m->gate, set, text_format(set->arena, "model.layers.%d.mlp.gate", layer),
                   hidden, n_experts, false);
}

static void take_stats(const Router *m, const RouterSaved *s, Run *run, RouterStats *stats,
                       const double *prob_sum_e)
{
    const double n_tokens = (double)s->p_te.dim[0];
    double sum = 0;
    for (int64_t e = 0; e < m->n_experts; e++) sum += (double)s->count_e[e] * prob_sum_e[e];
    memcpy(stats->count_e, s->count_e, (size_t)m->n_experts * sizeof *s->count_e);
    stats->balancing_raw = (double)m->n_experts / (n_tokens * (double)m->top_k) * (sum / n_tokens);
    stats->z_raw = run->be->sum_squares(run->be, s->lse_t, run->scratch);
    for (int64_t e = 0; e < m->n_experts && stats->routed_2e; e++) {
        stats->routed_2e[e] += (double)s->count_e[e];
        stats->routed_2e[m->n_experts + e] += prob_sum_e[e];
    }
}

void router_forward(const Router *m, RouterSaved *s, Run *run, RouterStats *stats, Tensor x_td)
{
    ArenaMark mark = arena_mark(run->scratch);
    Tensor logit_te = arena_tensor2(run->scratch, run->dtype_acc, x_td.dim[0], m->n_experts);
    double *prob_sum_e = ARENA_NEW(run->scratch, double, m->n_experts);
    linear_forward(&m->gate, &s->gate, run, logit_te, x_td);
    run->be->router(run->be, &(RouterArgs){.p_te = s->p_te,
                                           .lse_t = s->lse_t,
                                           .weight_tk = s->weight_tk,
                                           .id_tk = s->id_tk,
                                           .count_e = s->count_e,
                                           .prob_sum_e = prob_sum_e,
                                           .logit_te = logit_te,
                                           .normalise = m->normalise,
                                           .scratch = run->scratch});
    if (stats) take_stats(m, s, run, stats, prob_sum_e);
    arena_rewind(run->scratch, mark);
}

/* dL/dp_te of the layer's own balancing loss, the same for every t; NULL: it is off. */
static const double *balance(const Router *m, const RouterSaved *s, Run *run)
{
    if (run->mb->balancing_scale == 0) return NULL;
    const double n_tokens = (double)s->p_te.dim[0];
    double per_count =
        run->mb->balancing_scale * (double)m->n_experts / (n_tokens * n_tokens * (double)m->top_k);
    double *balance_e = ARENA_NEW(run->scratch, double, m->n_experts);
    for (int64_t e = 0; e < m->n_experts; e++) balance_e[e] = per_count * (double)s->count_e[e];
    return balance_e;
}

void router_backward_input(const Router *m, RouterSaved *s, Run *run, Tensor dx_td,
                           Tensor dweight_tk, double beta)
{
    ArenaMark mark = arena_mark(run->scratch);
    const double *balance_e = run->dprob_e ? run->dprob_e : balance(m, s, run);
    run->be->router_backward(run->be, &(RouterBackwardArgs){.dlogit_te = s->dlogit_te,
                                                            .dweight_tk = dweight_tk,
                                                            .p_te = s->p_te,
                                                            .lse_t = s->lse_t,
                                                            .weight_tk = s->weight_tk,
                                                            .id_tk = s->id_tk,
                                                            .balance_e = balance_e,
                                                            .z_scale = run->mb->z_scale,
                                                            .normalise = m->normalise});
    linear_backward_input(&m->gate, &s->gate, run, dx_td, s->dlogit_te, beta);
    arena_rewind(run->scratch, mark);
}

void router_backward_weight(const Router *m, const RouterSaved *s, Run *run)
{
    linear_backward_weight(&m->gate, &s->gate, run);
}

double router_balancing(Tensor routed_2e, int64_t n_rows)
{
    const int64_t n_experts = routed_2e.dim[1];
    const double *count_e = routed_2e.data, *prob_sum_e = count_e + n_experts;
    const double n = (double)n_rows;
    double sum = 0;
    for (int64_t e = 0; e < n_experts; e++) sum += count_e[e] / n * (prob_sum_e[e] / n);
    return (double)n_experts * sum;
}

void router_balancing_backward(Tensor drouted_2e, Tensor routed_2e, int64_t n_rows, double scale)
{
    const int64_t n_experts = routed_2e.dim[1];
    const double *count_e = routed_2e.data;
    const double n = (double)n_rows, per_count = scale * (double)n_experts / (n * n);
    double *dcount_e = drouted_2e.data, *dprob_e = dcount_e + n_experts;
    for (int64_t e = 0; e < n_experts; e++) {
        dcount_e[e] = 0;
        dprob_e[e] = per_count * count_e[e];
    }
}
