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

void moe_route(const Moe *m, MoeSaved *s, Run *run, RouterStats *stats, Tensor x_td)
{
    router_forward(&m->router, &s->router, run, stats, x_td);
    exchange_plan(&s->exchange, run, s->router.id_tk, m->experts.n_experts);
}

/** y_td = beta y + each token's rows, times their weights if given: this rank's experts here, then those of all. */
static void combine(const Moe *m, const MoeSaved *s, Run *run, Tensor y_td, Tensor x_rd,
                    Tensor weight_nk, double beta)
{
    Tensor part_nd = exchange_part(&s->exchange, run, y_td);
    run->be->combine_rows(run->be,
                          &(CombineRowsArgs){.y_td = part_nd,
                                             .x_rd = x_rd,
                                             .weight_tk = weight_nk,
                                             .row_tk = s->dispatch.row_nk,
                                             .n_slots = m->router.top_k,
                                             .beta = part_nd.data == y_td.data ? beta : 0});
    exchange_return(&s->exchange, run, y_td, part_nd, beta);
}

void moe_forward(const Moe *m, MoeSaved *s, Run *run, Tensor y_td, Tensor x_td)
{
    const Exchange *x = &s->exchange;
    const Dispatch *d = &s->dispatch;
    ArenaMark mark = arena_mark(run->scratch);
    Tensor id_nk = exchange_place(x, run->scratch, s->router.id_tk);
    Tensor weight_nk = exchange_place(x, run->scratch, s->router.weight_tk);
    Transfer ids = exchange_start(x, run, id_nk, s->router.id_tk);
    Transfer weights = exchange_start(x, run, weight_nk, s->router.weight_tk);
    Transfer rows = exchange_start(x, run, s->x_nd, x_td);
    exchange_finish(x, run, ids);
    dispatch_sort(&s->dispatch, run, id_nk, m->experts.first, m->experts.n_experts);
    exchange_finish(x, run, weights);
    permute(run, s->weight_r, weight_nk, d->pair_r);
    exchange_finish(x, run, rows);
    Tensor x_rd = take_rows(m, d, run), y_rd = take_rows(m, d, run);
    gather(run, x_rd, s->x_nd, d->token_r, (Tensor){0});
    experts_forward(&m->experts, &s->experts, run, d, y_rd, x_rd);
    combine(m, s, run, y_td, y_rd, weight_nk, 0);
    arena_rewind(run->scratch, mark);
}

void moe_backward_input(const Moe *m, MoeSaved *s, Run *run, Tensor dx_td, Tensor dy_td,
                        double beta)
{
    const Exchange *x = &s->exchange;
    const Dispatch *d = &s->dispatch;
    ArenaMark mark = arena_mark(run->scratch);
    exchange_finish(x, run, exchange_start(x, run, s->dy_nd, dy_td));
    Tensor dy_rd = take_rows(m, d, run), dx_rd = take_rows(m, d, run);
    Tensor dweight_r = arena_tensor1(run->scratch, run->dtype_acc, d->n_rows);
    Tensor dweight_tk = arena_tensor2(run->scratch, run->dtype_acc, dy_td.dim[0], m->router.top_k);
    /* The routing weight is multiplied in behind the down product, where its own gradient falls out. */
    gather(run, dy_rd, s->dy_nd, d->token_r, (Tensor){0});
    experts_backward_input(&m->experts, &s->experts, run, d, dx_rd, dweight_r, dy_rd, s->weight_r);
    combine(m, s, run, dx_td, dx_rd, (Tensor){0}, beta);
    /* Where the expert is another rank's the part is zero: the sum over ranks picks the owner's. */
    Tensor dweight_nk = exchange_part(x, run, dweight_tk);
    permute(run, dweight_nk, dweight_r, d->row_nk);
    exchange_return(x, run, dweight_tk, dweight_nk, 0);
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
    gather(run, x_rd, s->x_nd, d->token_r, (Tensor){0});
    gather(run, dy_rd, s->dy_nd, d->token_r, s->weight_r);
    experts_backward_weight(&m->experts, &s->experts, run, d, x_rd, dy_rd);
    arena_rewind(run->scratch, mark);
}
