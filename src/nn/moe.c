#include "nn/moe.h"

void moe_declare(Moe *m, ParamSet *set, int layer, int64_t hidden, const MoeConfig *config)
{
    router_declare(&m->router, set, layer, hidden, config->n_experts, config->top_k,
                   config->normalise);
    experts_declare(&m->experts, set, layer, config->n_experts, hidden, config->ffn);
}

static void gather(Run *run, Tensor y, Tensor x, const int32_t *index, Tensor scale)
{
    run->be->gather_rows(
        run->be, &(GatherRowsArgs){.y_nd = y, .x_td = x, .scale_n = scale, .index_n = index});
}

/** y_n[n] = x_n[index[n]]: routing weights and their gradients between token order and row order. */
static void permute(Run *run, Tensor y_n, Tensor x_n, const int32_t *index)
{
    gather(run, tensor_reshape2(y_n, tensor_size(y_n), 1),
           tensor_reshape2(x_n, tensor_size(x_n), 1), index, (Tensor){0});
}

static Tensor take_rows(const Moe *m, const Dispatch *d, const Run *run)
{
    return arena_tensor2(run->scratch, run->dtype, d->n_rows, m->experts.hidden);
}

void moe_forward(const Moe *m, MoeSaved *s, Run *run, RouterStats *stats, Tensor y_td, Tensor x_td)
{
    const Dispatch *d = &s->dispatch;
    ArenaMark mark = arena_mark(run->scratch);
    s->x_td = x_td;
    router_forward(&m->router, &s->router, run, stats, x_td);
    dispatch_sort(&s->dispatch, run, s->router.id_tk, m->router.n_experts);
    permute(run, s->weight_r, s->router.weight_tk, d->pair_r);
    Tensor x_rd = take_rows(m, d, run), y_rd = take_rows(m, d, run);
    gather(run, x_rd, x_td, d->token_r, (Tensor){0});
    experts_forward(&m->experts, &s->experts, run, d, y_rd, x_rd);
    run->be->combine_rows(run->be, &(CombineRowsArgs){.y_td = y_td,
                                                      .x_rd = y_rd,
                                                      .weight_tk = s->router.weight_tk,
                                                      .row_tk = d->row_tk,
                                                      .n_slots = m->router.top_k});
    arena_rewind(run->scratch, mark);
}

void moe_backward_input(const Moe *m, MoeSaved *s, Run *run, Tensor dx_td, Tensor dy_td,
                        double beta)
{
    const Dispatch *d = &s->dispatch;
    ArenaMark mark = arena_mark(run->scratch);
    s->dy_td = dy_td;
    Tensor dy_rd = take_rows(m, d, run), dx_rd = take_rows(m, d, run);
    Tensor dweight_r = arena_tensor1(run->scratch, run->dtype_acc, d->n_rows);
    Tensor dweight_tk = arena_tensor2(run->scratch, run->dtype_acc, dy_td.dim[0], m->router.top_k);
    /* The routing weight is multiplied in behind the down product, where its own gradient falls out. */
    gather(run, dy_rd, dy_td, d->token_r, (Tensor){0});
    experts_backward_input(&m->experts, &s->experts, run, d, dx_rd, dweight_r, dy_rd, s->weight_r);
    run->be->combine_rows(run->be, &(CombineRowsArgs){.y_td = dx_td,
                                                      .x_rd = dx_rd,
                                                      .row_tk = d->row_tk,
                                                      .n_slots = m->router.top_k,
                                                      .beta = beta});
    permute(run, dweight_tk, dweight_r, d->row_tk);
    router_backward_input(&m->router, &s->router, run, dx_td, dweight_tk, 1);
    arena_rewind(run->scratch, mark);
}

void moe_backward_weight(const Moe *m, const MoeSaved *s, Run *run)
{
    const Dispatch *d = &s->dispatch;
    router_backward_weight(&m->router, &s->router, run);
    if (!experts_trainable(&m->experts)) return;
    ArenaMark mark = arena_mark(run->scratch);
    Tensor x_rd = take_rows(m, d, run), dy_rd = take_rows(m, d, run);
    gather(run, x_rd, s->x_td, d->token_r, (Tensor){0});
    gather(run, dy_rd, s->dy_td, d->token_r, s->weight_r);
    experts_backward_weight(&m->experts, &s->experts, run, d, x_rd, dy_rd);
    arena_rewind(run->scratch, mark);
}
