#include "nn/block.h"
#include "base/text.h"

#include <assert.h>

void block_declare(Block *b, ParamSet *set, const BlockConfig *config)
{
    *b = (Block){.config = *config};
    const int layer = config->layer;
    const int64_t hidden = config->hidden;
    rmsnorm_declare(&b->norm1, set,
                    text_format(set->arena, "model.layers.%d.input_layernorm", layer), hidden,
                    config->norm_eps);
    attention_declare(&b->attention, set, layer, hidden, &config->attention);
    rmsnorm_declare(&b->norm2, set,
                    text_format(set->arena, "model.layers.%d.post_attention_layernorm", layer),
                    hidden, config->norm_eps);
    if (config->is_moe)
        moe_declare(&b->moe, set, layer, hidden, &config->moe);
    else
        dense_ffn_declare(&b->dense, set, layer, hidden, config->ffn_dense);
}

/* ---- lifetimes: what each part keeps, and until when ------------------------------------------------------------- */

static void take_attention(const Block *b, AttentionSaved *s, const Run *run, int64_t n_tokens,
                           Arena *f_to_i, Arena *f_to_w)
{
    const AttentionConfig *c = &b->config.attention;
    const int64_t q_size = c->n_heads * c->head_dim, kv_size = c->n_kv_heads * c->head_dim;
    s->q_tq = arena_tensor2(f_to_i, run->dtype, n_tokens, q_size);
    if (!run->kv) {
        s->k_tk = arena_tensor2(f_to_i, run->dtype, n_tokens, kv_size);
        s->v_tk = arena_tensor2(f_to_i, run->dtype, n_tokens, kv_size);
    }
    if (c->qk_norm) {
        s->q_raw_tq = arena_tensor2(f_to_i, run->dtype, n_tokens, q_size);
        s->k_raw_tk = arena_tensor2(f_to_i, run->dtype, n_tokens, kv_size);
        s->q_norm.rstd_n = arena_tensor1(f_to_i, run->dtype_acc, n_tokens * c->n_heads);
        s->k_norm.rstd_n = arena_tensor1(f_to_i, run->dtype_acc, n_tokens * c->n_kv_heads);
    }
    s->lse_ht = arena_tensor2(f_to_i, run->dtype_acc, c->n_heads, n_tokens);
    s->o_tq = arena_tensor2(f_to_w, run->dtype, n_tokens, q_size);
}

static void take_dense(const Block *b, DenseFfnSaved *s, const Run *run, int64_t n_tokens,
                       Arena *f_to_i, Arena *f_to_w)
{
    s->h_t2f = arena_tensor2(f_to_i, run->dtype, n_tokens, 2 * b->config.ffn_dense);
    s->a_tf = arena_tensor2(f_to_w, run->dtype, n_tokens, b->config.ffn_dense);
}

static int32_t *take_i32(Arena *arena, int64_t n)
{
    return arena_take(arena, size_mul((size_t)n, sizeof(int32_t)));
}

static void take_exchange(const Block *b, Exchange *x, const Run *run, int64_t n_tokens,
                          Arena *f_to_i)
{
    const int64_t top_k = b->config.moe.top_k;
    x->n_ranks = run->ep ? run->ep->size : 1;
    if (x->n_ranks == 1) return;
    x->sent_p = ARENA_NEW(f_to_i, int64_t, x->n_ranks);
    x->received_p = ARENA_NEW(f_to_i, int64_t, x->n_ranks);
    x->token_s = take_i32(f_to_i, n_tokens * (x->n_ranks < top_k ? x->n_ranks : top_k));
    x->place_tp = take_i32(f_to_i, n_tokens * x->n_ranks);
}

static void take_router(const Block *b, MoeSaved *s, const Run *run, int64_t n_tokens,
                        Arena *f_to_i)
{
    const MoeConfig *c = &b->config.moe;
    s->router.p_te = arena_tensor2(f_to_i, run->dtype_acc, n_tokens, c->n_experts);
    s->router.lse_t = arena_tensor1(f_to_i, run->dtype_acc, n_tokens);
    s->router.weight_tk = arena_tensor2(f_to_i, run->dtype_acc, n_tokens, c->top_k);
    s->router.id_tk = arena_tensor2(f_to_i, DTYPE_I32, n_tokens, c->top_k);
    s->router.count_e = ARENA_NEW(f_to_i, int64_t, c->n_experts);
    take_exchange(b, &s->exchange, run, n_tokens, f_to_i);
}

/* By what the router sent here, which may be more than T*K rows or none. */
static void take_experts(const Block *b, MoeSaved *s, const Run *run, Tensor x_td, Arena *f_to_i,
                         Arena *f_to_w)
{
    const MoeConfig *c = &b->config.moe;
    const int64_t n_rows = s->exchange.n_rows;
    s->experts.h_r2f = arena_tensor2(f_to_i, run->dtype, n_rows, 2 * c->ffn);
    s->experts.a_rf = arena_tensor2(f_to_w, run->dtype, n_rows, c->ffn);
    s->weight_r = arena_tensor1(f_to_w, run->dtype_acc, n_rows);
    s->dispatch.offset_e = take_i32(f_to_w, b->moe.experts.n_experts + 1);
    s->dispatch.token_r = take_i32(f_to_w, n_rows);
    s->dispatch.pair_r = take_i32(f_to_w, n_rows);
    s->dispatch.row_nk = take_i32(f_to_w, s->exchange.n_received * c->top_k);
    s->x_nd = exchange_place(&s->exchange, f_to_w, x_td);
}

static void take_backward(const Block *b, BlockSaved *s, const Run *run, Tensor dy_td,
                          Arena *i_to_w)
{
    const BlockConfig *c = &b->config;
    const int64_t n_tokens = dy_td.dim[0];
    const int64_t q_size = c->attention.n_heads * c->attention.head_dim;
    const int64_t kv_size = c->attention.n_kv_heads * c->attention.head_dim;
    s->attention.dq_tq = arena_tensor2(i_to_w, run->dtype, n_tokens, q_size);
    s->attention.dk_tk = arena_tensor2(i_to_w, run->dtype, n_tokens, kv_size);
    s->attention.dv_tk = arena_tensor2(i_to_w, run->dtype, n_tokens, kv_size);
    if (c->is_moe) {
        s->moe.router.dlogit_te = arena_tensor2(i_to_w, run->dtype_acc, n_tokens, c->moe.n_experts);
        s->moe.experts.dh_r2f =
            arena_tensor2(i_to_w, run->dtype, s->moe.exchange.n_rows, 2 * c->moe.ffn);
        s->moe.dy_nd = exchange_place(&s->moe.exchange, i_to_w, dy_td);
    } else {
        s->dense.dh_t2f = arena_tensor2(i_to_w, run->dtype, n_tokens, 2 * c->ffn_dense);
    }
}

/* ---- the layer --------------------------------------------------------------------------------------------------- */

static void at(int layer, const char *op)
{
    breadcrumb()->layer = layer;
    breadcrumb()->op = op;
}

void block_forward(const Block *b, BlockSaved *saved, Run *run, Arena *f_to_i, Arena *f_to_w,
                   RouterStats *stats, Tensor y_td, Tensor x_td)
{
    const BlockConfig *c = &b->config;
    const int64_t n_tokens = x_td.dim[0];
    assert(run->scratch != f_to_i && run->scratch != f_to_w);
    *saved = (BlockSaved){.x_td = x_td};
    saved->x2_td = arena_tensor2(f_to_i, run->dtype, n_tokens, c->hidden);
    saved->norm1.rstd_n = arena_tensor1(f_to_i, run->dtype_acc, n_tokens);
    saved->norm2.rstd_n = arena_tensor1(f_to_i, run->dtype_acc, n_tokens);
    Tensor h1_td = arena_tensor2(f_to_w, run->dtype, n_tokens, c->hidden);
    Tensor h2_td = arena_tensor2(f_to_w, run->dtype, n_tokens, c->hidden);

    at(c->layer, "attention");
    take_attention(b, &saved->attention, run, n_tokens, f_to_i, f_to_w);
    rmsnorm_forward(&b->norm1, &saved->norm1, run, h1_td, x_td);
    attention_forward(&b->attention, &saved->attention, run, saved->x2_td, h1_td);
    run->be->add(run->be, saved->x2_td, saved->x2_td, x_td);

    rmsnorm_forward(&b->norm2, &saved->norm2, run, h2_td, saved->x2_td);
    if (c->is_moe) {
        at(c->layer, "moe");
        take_router(b, &saved->moe, run, n_tokens, f_to_i);
        moe_route(&b->moe, &saved->moe, run, stats, h2_td);
        take_experts(b, &saved->moe, run, h2_td, f_to_i, f_to_w);
        moe_forward(&b->moe, &saved->moe, run, y_td, h2_td);
    } else {
        at(c->layer, "dense_ffn");
        take_dense(b, &saved->dense, run, n_tokens, f_to_i, f_to_w);
        dense_ffn_forward(&b->dense, &saved->dense, run, y_td, h2_td);
    }
    run->be->add(run->be, y_td, y_td, saved->x2_td);
    at(-1, NULL);
}

void block_backward_input(const Block *b, BlockSaved *saved, Run *run, Arena *i_to_w, Tensor dx_td,
                          Tensor dy_td)
{
    const BlockConfig *c = &b->config;
    const int64_t n_tokens = dy_td.dim[0];
    assert(run->scratch != i_to_w);
    ArenaMark mark = arena_mark(run->scratch);
    Tensor dh_td = arena_tensor2(run->scratch, run->dtype, n_tokens, c->hidden);
    /* Output gradient of o_proj, hence kept. */
    Tensor dx2_td = arena_tensor2(i_to_w, run->dtype, n_tokens, c->hidden);
    take_backward(b, saved, run, dy_td, i_to_w);

    at(c->layer, c->is_moe ? "moe" : "dense_ffn");
    if (c->is_moe)
        moe_backward_input(&b->moe, &saved->moe, run, dh_td, dy_td, 0);
    else
        dense_ffn_backward_input(&b->dense, &saved->dense, run, dh_td, dy_td, 0);
    rmsnorm_backward_input(&b->norm2, &saved->norm2, run, dx2_td, dh_td, 0);
    run->be->add(run->be, dx2_td, dx2_td, dy_td);

    at(c->layer, "attention");
    attention_backward_input(&b->attention, &saved->attention, run, dh_td, dx2_td, 0);
    rmsnorm_backward_input(&b->norm1, &saved->norm1, run, dx_td, dh_td, 0);
    run->be->add(run->be, dx_td, dx_td, dx2_td);
    at(-1, NULL);
    arena_rewind(run->scratch, mark);
}

void block_backward_weight(const Block *b, const BlockSaved *saved, Run *run)
{
    at(b->config.layer, "weights");
    attention_backward_weight(&b->attention, &saved->attention, run);
    if (b->config.is_moe)
        moe_backward_weight(&b->moe, &saved->moe, run);
    else
        dense_ffn_backward_weight(&b->dense, &saved->dense, run);
    at(-1, NULL);
}
