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

void router_backward_input(const Router *m, RouterSaved *s, Run *run, Tensor dx_td,
                           Tensor dweight_tk, double beta)
{
    ArenaMark mark = arena_mark(run->scratch);
    const double n_tokens = (double)s->p_te.dim[0];
    double *balance_e = NULL;
    if (run->mb->balancing_scale != 0) {
        double per_count = run->mb->balancing_scale * (double)m->n_experts /
                           (n_tokens * n_tokens * (double)m->top_k);
        balance_e = ARENA_NEW(run->scratch, double, m->n_experts);
        for (int64_t e = 0; e < m->n_experts; e++) balance_e[e] = per_count * (double)s->count_e[e];
    }
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
