#include "nn/lm_loss.h"

void lm_loss_declare(LmLoss *m, ParamSet *set, int64_t vocab, int64_t hidden, int64_t chunk)
{
    m->w_vd = paramset_declare(set, "lm_head.weight", PARAM_INIT_NORMAL, 2,
                               (const int64_t[]){vocab, hidden});
    m->chunk = chunk;
}

void lm_loss_logits(const LmLoss *m, Run *run, Tensor logit_nv, Tensor h_nd)
{
    run->be->gemm(run->be,
                  &(GemmArgs){.c = logit_nv, .a = h_nd, .b = m->w_vd->value, .trans_b = true});
}

/** One chunk's loss; with want_grad its dh, and dw added. */
static double chunk_loss(const LmLoss *m, Run *run, int64_t first, Tensor dh_nd, Tensor h_nd,
                         bool want_grad)
{
    ArenaMark mark = arena_mark(run->scratch);
    double loss = 0;
    Tensor logit_nv =
        arena_tensor2(run->scratch, run->dtype_acc, h_nd.dim[0], m->w_vd->value.dim[0]);
    lm_loss_logits(m, run, logit_nv, h_nd);
    run->be->cross_entropy(run->be, &(CrossEntropyArgs){.logit_nv = logit_nv,
                                                        .target_n = run->mb->target_t + first,
                                                        .weight_n = run->mb->weight_t + first,
                                                        .loss = &loss,
                                                        .want_grad = want_grad,
                                                        .scratch = run->scratch});
    if (want_grad) {
        Tensor dlogit_nv = logit_nv;
        run->be->gemm(run->be, &(GemmArgs){.c = dh_nd, .a = dlogit_nv, .b = m->w_vd->value});
        if (!tensor_is_null(m->w_vd->grad))
            run->be->gemm(
                run->be,
                &(GemmArgs){
                    .c = m->w_vd->grad, .a = dlogit_nv, .trans_a = true, .b = h_nd, .beta = 1});
    }
    arena_rewind(run->scratch, mark);
    return loss;
}

static double row_loss(const LmLoss *m, Run *run, Tensor dh_td, Tensor h_td, bool want_grad)
{
    const int64_t n_tokens = h_td.dim[0];
    const int64_t chunk = m->chunk > 0 ? m->chunk : n_tokens;
    double loss = 0;
    breadcrumb()->op = "lm_loss";
    for (int64_t first = 0; first < n_tokens; first += chunk) {
        int64_t n = chunk < n_tokens - first ? chunk : n_tokens - first;
        Tensor dh_nd = want_grad ? tensor_rows(dh_td, first, n) : dh_td;
        loss += chunk_loss(m, run, first, dh_nd, tensor_rows(h_td, first, n), want_grad);
    }
    breadcrumb()->op = NULL;
    return loss;
}

double lm_loss_train(const LmLoss *m, Run *run, Tensor dh_td, Tensor h_td)
{
    return row_loss(m, run, dh_td, h_td, true);
}

double lm_loss_eval(const LmLoss *m, Run *run, Tensor h_td)
{
    return row_loss(m, run, (Tensor){0}, h_td, false);
}
