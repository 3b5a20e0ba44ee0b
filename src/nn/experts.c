#include "nn/experts.h"
#include "base/text.h"

void experts_declare(Experts *m, ParamSet *set, int layer, int64_t n_experts, int64_t hidden,
                     int64_t ffn)
{
    *m = (Experts){.hidden = hidden, .ffn = ffn};
    m->gate_up_eod = paramset_declare_experts(
        set, text_format(set->arena, "model.layers.%d.mlp.experts.gate_up_proj", layer),
        (const int64_t[]){n_experts, 2 * ffn, hidden});
    m->down_edf = paramset_declare_experts(
        set, text_format(set->arena, "model.layers.%d.mlp.experts.down_proj", layer),
        (const int64_t[]){n_experts, hidden, ffn});
    m->first = m->down_edf->first_row;
    m->n_experts = m->down_edf->value.dim[0];
}

static void product(const Experts *m, Run *run, const Dispatch *d, GroupedKind kind, Tensor c,
                    Tensor a, Tensor b)
{
    run->be->grouped_gemm(run->be, &(GroupedGemmArgs){.kind = kind,
                                                      .c = c,
                                                      .a = a,
                                                      .b = b,
                                                      .offset_e = d->offset_e,
                                                      .n_groups = m->n_experts});
}

void experts_forward(const Experts *m, ExpertsSaved *s, Run *run, const Dispatch *d, Tensor y_rd,
                     Tensor x_rd)
{
    product(m, run, d, GROUPED_FORWARD, s->h_r2f, x_rd, m->gate_up_eod->value);
    run->be->swiglu(run->be, &(SwiGluArgs){.a_nf = s->a_rf, .h_n2f = s->h_r2f});
    product(m, run, d, GROUPED_FORWARD, y_rd, s->a_rf, m->down_edf->value);
}

void experts_backward_input(const Experts *m, ExpertsSaved *s, Run *run, const Dispatch *d,
                            Tensor dx_rd, Tensor dweight_r, Tensor dy_rd, Tensor weight_r)
{
    ArenaMark mark = arena_mark(run->scratch);
    Tensor da_rf = arena_tensor2(run->scratch, run->dtype, d->n_rows, m->ffn);
    product(m, run, d, GROUPED_BACKWARD_INPUT, da_rf, dy_rd, m->down_edf->value);
    run->be->swiglu_backward(run->be, &(SwiGluBackwardArgs){.dh_n2f = s->dh_r2f,
                                                            .dweight_n = dweight_r,
                                                            .da_nf = da_rf,
                                                            .h_n2f = s->h_r2f,
                                                            .a_nf = s->a_rf,
                                                            .weight_n = weight_r});
    product(m, run, d, GROUPED_BACKWARD_INPUT, dx_rd, s->dh_r2f, m->gate_up_eod->value);
    arena_rewind(run->scratch, mark);
}

void experts_backward_weight(const Experts *m, const ExpertsSaved *s, Run *run, const Dispatch *d,
                             Tensor x_rd, Tensor dy_rd)
{
    if (!tensor_is_null(m->gate_up_eod->grad))
        product(m, run, d, GROUPED_BACKWARD_WEIGHT, m->gate_up_eod->grad, s->dh_r2f, x_rd);
    if (!tensor_is_null(m->down_edf->grad))
        product(m, run, d, GROUPED_BACKWARD_WEIGHT, m->down_edf->grad, dy_rd, s->a_rf);
}

bool experts_trainable(const Experts *m)
{
    return !tensor_is_null(m->gate_up_eod->grad) || !tensor_is_null(m->down_edf->grad);
}
