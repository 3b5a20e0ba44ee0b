#include "nn/dense_ffn.h"
#include "base/text.h"

void dense_ffn_declare(DenseFfn *m, ParamSet *set, int layer, int64_t hidden, int64_t ffn)
{
    linear_declare(&m->gate_up, set,
                   text_format(set->arena, "model.layers.%d.mlp.gate_up_proj", layer), hidden,
                   2 * ffn, false);
    linear_declare(&m->down, set, text_format(set->arena, "model.layers.%d.mlp.down_proj", layer),
                   ffn, hidden, false);
}

void dense_ffn_forward(const DenseFfn *m, DenseFfnSaved *s, Run *run, Tensor y_td, Tensor x_td)
{
    linear_forward(&m->gate_up, &s->gate_up, run, s->h_t2f, x_td);
    run->be->swiglu(run->be, &(SwiGluArgs){.a_nf = s->a_tf, .h_n2f = s->h_t2f});
    linear_forward(&m->down, &s->down, run, y_td, s->a_tf);
}

void dense_ffn_backward_input(const DenseFfn *m, DenseFfnSaved *s, Run *run, Tensor dx_td,
                              Tensor dy_td, double beta)
{
    ArenaMark mark = arena_mark(run->scratch);
    Tensor da_tf = arena_tensor2(run->scratch, run->dtype, s->a_tf.dim[0], s->a_tf.dim[1]);
    linear_backward_input(&m->down, &s->down, run, da_tf, dy_td, 0);
    run->be->swiglu_backward(
        run->be, &(SwiGluBackwardArgs){
                     .dh_n2f = s->dh_t2f, .da_nf = da_tf, .h_n2f = s->h_t2f, .a_nf = s->a_tf});
    linear_backward_input(&m->gate_up, &s->gate_up, run, dx_td, s->dh_t2f, beta);
    arena_rewind(run->scratch, mark);
}

void dense_ffn_backward_weight(const DenseFfn *m, const DenseFfnSaved *s, Run *run)
{
    linear_backward_weight(&m->gate_up, &s->gate_up, run);
    linear_backward_weight(&m->down, &s->down, run);
}
