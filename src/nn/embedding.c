#include "nn/embedding.h"

void embedding_declare(Embedding *m, ParamSet *set, int64_t vocab, int64_t hidden)
{
    m->w_vd = paramset_declare(set, "model.embed_tokens.weight", PARAM_INIT_NORMAL, 2,
                               (const int64_t[]){vocab, hidden});
}

void embedding_forward(const Embedding *m, Run *run, Tensor y_td)
{
    run->be->gather_rows(
        run->be, &(GatherRowsArgs){.y_nd = y_td, .x_td = m->w_vd->value, .index_n = run->mb->id_t});
}

void embedding_backward_weight(const Embedding *m, Run *run, Tensor dy_td)
{
    if (tensor_is_null(m->w_vd->grad)) return;
    run->be->scatter_add_rows(
        run->be,
        &(ScatterAddRowsArgs){.dw_vd = m->w_vd->grad, .dy_td = dy_td, .id_t = run->mb->id_t});
}
