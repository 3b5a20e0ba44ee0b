#include "nn/linear.h"
#include "base/text.h"

void linear_declare(Linear *m, ParamSet *set, const char *name, int64_t in, int64_t out, bool bias)
{
    *m = (Linear){0};
    m->w_oi = paramset_declare(set, text_format(set->arena, "%s.weight", name), PARAM_INIT_NORMAL,
                               2, (const int64_t[]){out, in});
    if (bias)
        m->b_o = paramset_declare(set, text_format(set->arena, "%s.bias", name), PARAM_INIT_ZEROS,
                                  1, (const int64_t[]){out});
}

void linear_forward(const Linear *m, LinearSaved *s, Run *run, Tensor y_to, Tensor x_ti)
{
    s->x_ti = x_ti;
    run->be->gemm(run->be, &(GemmArgs){.c = y_to, .a = x_ti, .b = m->w_oi->value, .trans_b = true});
    if (m->b_o) run->be->add_bias(run->be, y_to, m->b_o->value);
}

void linear_backward_input(const Linear *m, LinearSaved *s, Run *run, Tensor dx_ti, Tensor dy_to,
                           double beta)
{
    s->dy_to = dy_to;
    run->be->gemm(run->be, &(GemmArgs){.c = dx_ti, .a = dy_to, .b = m->w_oi->value, .beta = beta});
    if (m->b_o && !tensor_is_null(m->b_o->grad))
        run->be->bias_backward(run->be, m->b_o->grad, dy_to, run->scratch);
}

void linear_backward_weight(const Linear *m, const LinearSaved *s, Run *run)
{
    if (tensor_is_null(m->w_oi->grad)) return;
    run->be->gemm(
        run->be,
        &(GemmArgs){.c = m->w_oi->grad, .a = s->dy_to, .trans_a = true, .b = s->x_ti, .beta = 1});
}
