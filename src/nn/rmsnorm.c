#include "nn/rmsnorm.h"
#include "base/text.h"

void rmsnorm_declare(RmsNorm *m, ParamSet *set, const char *name, int64_t dim, double eps)
{
    m->w_d =
        paramset_declare(set, text_format(set->arena, "%s.weight", name), PARAM_INIT_ONES, 1, &dim);
    m->eps = eps;
}

void rmsnorm_forward(const RmsNorm *m, RmsNormSaved *s, Run *run, Tensor y_nd, Tensor x_nd)
{
    s->x_nd = x_nd;
    run->be->rmsnorm(
        run->be,
        &(RmsNormArgs){
            .y_nd = y_nd, .rstd_n = s->rstd_n, .x_nd = x_nd, .w_d = m->w_d->value, .eps = m->eps});
}

void rmsnorm_backward_input(const RmsNorm *m, const RmsNormSaved *s, Run *run, Tensor dx_nd,
                            Tensor dy_nd, double beta)
{
    run->be->rmsnorm_backward(run->be, &(RmsNormBackwardArgs){.dx_nd = dx_nd,
                                                              .dw_d = m->w_d->grad,
                                                              .dy_nd = dy_nd,
                                                              .x_nd = s->x_nd,
                                                              .w_d = m->w_d->value,
                                                              .rstd_n = s->rstd_n,
                                                              .beta = beta,
                                                              .scratch = run->scratch});
}
