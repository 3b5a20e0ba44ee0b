#include "model/stage.h"

#include <math.h>
#include <string.h>

/* Numbers of a model's parameters: the same whatever part of it is declared. No layer has more than this many. */
enum { ORDERS_PER_LAYER = 64 };

static BlockConfig block_config(const ModelConfig *c, int64_t layer, const RopeTables *rope)
{
    return (BlockConfig){
        .layer = (int)layer,
        .hidden = c->hidden,
        .norm_eps = c->norm_eps,
        .attention = {.n_heads = c->n_heads,
                      .n_kv_heads = c->n_kv_heads,
                      .head_dim = c->head_dim,
                      .bias = c->attention_bias,
                      .qk_norm = c->family->qk_norm,
                      .norm_eps = c->norm_eps,
                      .scale = 1 / sqrt((double)c->head_dim),
                      .rope = rope},
        .is_moe = model_config_is_moe(c, layer),
        .ffn_dense = c->ffn_dense,
        .moe = {.n_experts = c->n_experts,
                .top_k = c->experts_per_token,
                .ffn = c->ffn_expert,
                .normalise = c->normalise},
    };
}

void model_part_declare(ModelPart *part, ParamSet *set, const ModelConfig *config, LayerRange range,
                        const RopeTables *rope, int64_t chunk)
{
    *part = (ModelPart){.range = range, .block = ARENA_NEW(set->arena, Block, range.n)};
    if (range.has_embedding) {
        set->next_order = 0;
        embedding_declare(&part->embedding, set, config->vocab, config->hidden);
    }
    for (int64_t i = 0; i < range.n; i++) {
        BlockConfig block = block_config(config, range.first + i, rope);
        set->next_order = (range.first + i + 1) * ORDERS_PER_LAYER;
        block_declare(&part->block[i], set, &block);
    }
    if (range.has_head) {
        set->next_order = (config->n_layers + 1) * ORDERS_PER_LAYER;
        rmsnorm_declare(&part->norm, set, "model.norm", config->hidden, config->norm_eps);
        lm_loss_declare(&part->head, set, config->vocab, config->hidden, chunk);
        part->head.w_vd->tied_copy = config->tied;
    }
}

void model_declare_whole(ParamSet *set, const ModelConfig *config)
{
    ModelPart part;
    model_part_declare(&part, set, config, (LayerRange){0, config->n_layers, true, true}, NULL, 0);
}

void model_link_tied(ParamSet *set)
{
    Param *embedding = paramset_find(set, "model.embed_tokens.weight");
    for (int i = 0; i < set->n && embedding; i++) {
        if (!set->at[i]->tied_copy) continue;
        set->at[i]->tied = embedding;
        embedding->tied = set->at[i];
    }
}

Status stage_create(Stage **out, const ModelConfig *config, const ModelPart *part,
                    const StageConfig *setup, StageMemory *memory, const Backend *be, DType dtype,
                    Arena *model)
{
    Stage *s;
    TRY(arena_alloc(model, &s, 1, sizeof *s));
    s->config = config;
    s->part = *part;
    s->setup = *setup;
    s->memory = memory;
    s->run = (Run){.be = be,
                   .scratch = &memory->scratch,
                   .ep = setup->ep,
                   .dtype = dtype,
                   .dtype_acc = dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32};
    size_t n = (size_t)part->range.n, m = (size_t)setup->n_microbatches;
    TRY(arena_alloc(model, &s->saved, (size_t)memory->n_f_to_w, sizeof *s->saved));
    for (int i = 0; i < memory->n_f_to_w; i++)
        TRY(arena_alloc(model, &s->saved[i].block, n, sizeof *s->saved[i].block));
    s->n_recomputed = n_recomputed_layers(config, setup->recompute_ratio);
    TRY(arena_alloc(model, &s->ce_m, m, sizeof *s->ce_m));
    TRY(arena_alloc(model, &s->balancing_raw_ml, m * n, sizeof *s->balancing_raw_ml));
    TRY(arena_alloc(model, &s->balancing_raw_m, m, sizeof *s->balancing_raw_m));
    TRY(arena_alloc(model, &s->z_raw_ml, m * n, sizeof *s->z_raw_ml));
    TRY(arena_alloc(model, &s->count_mle, m * n * (size_t)config->n_experts, sizeof *s->count_mle));
    *out = s;
    return OK;
}

/* ---- the actions ------------------------------------------------------------------------------------------ */

static Tensor hidden(const Stage *s, Arena *arena)
{
    return arena_tensor2(arena, s->run.dtype, s->run.mb->n_tokens, s->config->hidden);
}

static HandOver border(void *self, const MicroBatch *mb)
{
    const Stage *s = self;
    HandOver shape = {.hidden_td = tensor2(NULL, s->run.dtype, mb->n_tokens, s->config->hidden)};
    if (s->setup.balancing_together)
        shape.routed_2e = tensor2(NULL, DTYPE_F64, 2, s->config->n_experts);
    return shape;
}

static HandOver open_border(Stage *s, Arena *arena)
{
    HandOver shape = border(s, s->run.mb);
    return handover_at(shape, arena_take(arena, handover_bytes(shape)));
}

static HandOver open_forward(void *self, Slots at, const MicroBatch *mb)
{
    Stage *s = self;
    s->run.mb = mb;
    arena_reset(&s->memory->f_to_i[at.f_to_i]);
    if (s->part.range.has_embedding) return (HandOver){0};
    return open_border(s, &s->memory->f_to_i[at.f_to_i]);
}

static HandOver open_backward(void *self, Slots at, const MicroBatch *mb)
{
    Stage *s = self;
    s->run.mb = mb;
    arena_reset(&s->memory->i_to_w[at.i_to_w]);
    if (s->part.range.has_head) return (HandOver){0};
    return open_border(s, &s->memory->i_to_w[at.i_to_w]);
}

static RouterStats *stats_of(Stage *s, int64_t i, Tensor routed_2e, RouterStats *stats)
{
    int64_t n = s->part.range.n, at = s->run.mb->index * n + i;
    *stats = (RouterStats){.count_e = s->count_mle + at * s->config->n_experts,
                           .routed_2e = routed_2e.data};
    return s->part.block[i].config.is_moe ? stats : NULL;
}

static void keep_stats(Stage *s, int64_t i, const RouterStats *stats)
{
    int64_t at = s->run.mb->index * s->part.range.n + i;
    if (!s->setup.balancing_together && !s->setup.scope)
        s->balancing_raw_ml[at] = stats->balancing_raw;
    s->z_raw_ml[at] = stats->z_raw;
}

/* Where the stage adds its layers' routing to that of the stages before; null unless wanted. */
static Tensor open_routed(const Stage *s, Arena *f_to_i, HandOver y, HandOver x)
{
    if (!s->setup.balancing_together) return (Tensor){0};
    const LayerRange *range = &s->part.range;
    Tensor sum_2e =
        range->has_head ? arena_tensor2(f_to_i, DTYPE_F64, 2, s->config->n_experts) : y.routed_2e;
    if (range->has_embedding)
        memset(sum_2e.data, 0, tensor_bytes(sum_2e));
    else
        memcpy(sum_2e.data, x.routed_2e.data, tensor_bytes(sum_2e));
    return sum_2e;
}

static int64_t n_routed_rows(const Stage *s)
{
    const MicroBatch *mb = s->run.mb;
    return model_config_n_moe_layers(s->config) *
           (s->setup.scope ? mb->scope_tokens : mb->n_tokens);
}

/* Each layer's routing by itself, where other ranks' rows are to be counted with it; null unless wanted. */
static Tensor open_scope(const Stage *s, Arena *f_to_i)
{
    if (!s->setup.scope || s->setup.balancing_together) return (Tensor){0};
    Tensor t = arena_tensor3(f_to_i, DTYPE_F64, s->part.range.n, 2, s->config->n_experts);
    memset(t.data, 0, tensor_bytes(t));
    return t;
}

static Tensor layer_of(Tensor routed_l2e, int64_t i)
{
    return tensor_reshape2(tensor_rows(routed_l2e, i, 1), 2, routed_l2e.dim[2]);
}

/* The statistics of a microbatch, on their way to the other ranks of the scope. */
static void start_scope(Stage *s, StageSaved *saved, Arena *f_to_i)
{
    bool whole = s->setup.balancing_together;
    if (!s->setup.scope || (whole && !s->part.range.has_head)) return;
    uint64_t tag = (uint64_t)s->part.range.first * (uint64_t)s->setup.n_microbatches +
                   (uint64_t)s->run.mb->index;
    routing_scope_start(&saved->scope, s->setup.scope, whole ? saved->routed_2e : saved->routed_l2e,
                        tag, f_to_i);
}

/* Those of all its ranks, before the gradient; the value is one rank's to report. */
static void finish_scope(Stage *s, StageSaved *saved)
{
    const MicroBatch *mb = s->run.mb;
    Comm *scope = s->setup.scope;
    bool whole = s->setup.balancing_together;
    if (!scope || (whole && !s->part.range.has_head)) return;
    routing_scope_sum(&saved->scope, scope);
    if (whole) {
        s->balancing_raw_m[mb->index] =
            scope->rank == 0 ? router_balancing(saved->routed_2e, n_routed_rows(s)) : 0;
        return;
    }
    for (int64_t i = 0; i < s->part.range.n; i++) {
        double value = router_balancing(layer_of(saved->routed_l2e, i), mb->scope_tokens) /
                       (double)s->config->experts_per_token;
        s->balancing_raw_ml[mb->index * s->part.range.n + i] = scope->rank == 0 ? value : 0;
    }
}

/* Of one layer's balancing loss at its probabilities, counted over the scope; NULL: what is set already. */
static const double *scope_gradient(const Stage *s, const StageSaved *saved, int64_t i,
                                    Arena *i_to_w)
{
    const MicroBatch *mb = s->run.mb;
    if (!s->setup.scope || s->setup.balancing_together) return s->run.dprob_e;
    Tensor d_2e = arena_tensor2(i_to_w, DTYPE_F64, 2, s->config->n_experts);
    router_balancing_backward(d_2e, layer_of(saved->routed_l2e, i), mb->scope_tokens,
                              mb->balancing_scale / (double)s->config->experts_per_token);
    return tensor_at(d_2e, s->config->n_experts);
}

/* The gradient at the routing of the whole row: made by the last stage, handed down as it is. */
static Tensor routed_gradient(const Stage *s, const StageSaved *saved, Arena *i_to_w, HandOver dx,
                              HandOver dy)
{
    if (!s->setup.balancing_together) return (Tensor){0};
    Tensor d_2e = dy.routed_2e;
    if (s->part.range.has_head) {
        d_2e = arena_tensor2(i_to_w, DTYPE_F64, 2, s->config->n_experts);
        router_balancing_backward(d_2e, saved->routed_2e, n_routed_rows(s),
                                  s->run.mb->balancing_scale);
    }
    if (!s->part.range.has_embedding) memcpy(dx.routed_2e.data, d_2e.data, tensor_bytes(d_2e));
    return tensor_rows(d_2e, 1, 1);
}

/* Norm, head and loss of the last stage on the last layer's output. */
static void finish_forward(Stage *s, StageSaved *saved, Arena *f_to_i, Tensor y_td,
                           ForwardMode mode)
{
    Run *run = &s->run;
    const MicroBatch *mb = run->mb;
    if (s->setup.balancing_together && !s->setup.scope)
        s->balancing_raw_m[mb->index] = router_balancing(saved->routed_2e, n_routed_rows(s));
    saved->norm.rstd_n = arena_tensor1(f_to_i, run->dtype_acc, mb->n_tokens);
    if (mode == FORWARD_TRAIN) saved->dh_td = hidden(s, f_to_i);
    ArenaMark mark = arena_mark(run->scratch);
    Tensor h_td = hidden(s, run->scratch);
    rmsnorm_forward(&s->part.norm, &saved->norm, run, h_td, y_td);
    if (mode == FORWARD_TRAIN)
        s->ce_m[mb->index] = lm_loss_train(&s->part.head, run, saved->dh_td, h_td);
    if (mode == FORWARD_LOSS) s->ce_m[mb->index] = lm_loss_eval(&s->part.head, run, h_td);
    if (s->logits_m) lm_loss_logits(&s->part.head, run, s->logits_m[mb->index], h_td);
    arena_rewind(run->scratch, mark);
}

static void forward(void *self, Slots at, const MicroBatch *mb, HandOver y, HandOver x,
                    ForwardMode mode)
{
    Stage *s = self;
    Run *run = &s->run;
    run->mb = mb;
    bool train = mode == FORWARD_TRAIN;
    int64_t n = s->part.range.n;
    Arena *f_to_i = &s->memory->f_to_i[at.f_to_i];
    Arena *f_to_w = train ? &s->memory->f_to_w[at.f_to_w] : &s->memory->passing;
    StageSaved *saved = &s->saved[train ? at.f_to_w : 0];
    if (train) arena_reset(f_to_w);
    Tensor x_td = x.hidden_td;
    if (s->part.range.has_embedding) {
        x_td = hidden(s, f_to_i);
        embedding_forward(&s->part.embedding, run, x_td);
    }
    saved->x_td = x_td;
    Tensor routed_2e = open_routed(s, f_to_i, y, x);
    saved->routed_l2e = open_scope(s, f_to_i);
    /* Forward only, nothing is kept: two buffers take turns. */
    Tensor turn[2] = {{0}};
    if (!train)
        for (int i = 0; i < 2; i++) turn[i] = hidden(s, f_to_i);
    for (int64_t i = 0; i < n; i++) {
        bool recomputed = s->part.block[i].config.layer < s->n_recomputed;
        bool hand_over = i == n - 1 && !s->part.range.has_head;
        Tensor y_td = hand_over ? y.hidden_td : train ? hidden(s, f_to_i) : turn[i % 2];
        breadcrumb()->layer = s->part.block[i].config.layer;
        Arena *kept_i = train && !recomputed ? f_to_i : &s->memory->passing;
        Arena *kept_w = train && !recomputed ? f_to_w : &s->memory->passing;
        if (saved->routed_l2e.data) routed_2e = layer_of(saved->routed_l2e, i);
        RouterStats memory, *stats = stats_of(s, i, routed_2e, &memory);
        block_forward(&s->part.block[i], &saved->block[i], run, kept_i, kept_w, stats, y_td, x_td);
        if (stats) keep_stats(s, i, stats);
        arena_reset(&s->memory->passing);
        saved->block[i].x_td = x_td;
        x_td = y_td;
    }
    breadcrumb()->layer = -1;
    saved->routed_2e = routed_2e;
    if (train) start_scope(s, saved, f_to_i);
    if (!s->part.range.has_head) return;
    finish_forward(s, saved, f_to_i, x_td, mode);
}

static void backward_input(void *self, Slots at, const MicroBatch *mb, HandOver dx, HandOver dy)
{
    Stage *s = self;
    Run *run = &s->run;
    run->mb = mb;
    StageSaved *saved = &s->saved[at.f_to_w];
    Arena *i_to_w = &s->memory->i_to_w[at.i_to_w];
    Tensor dy_td = dy.hidden_td;
    finish_scope(s, saved);
    run->dprob_e = routed_gradient(s, saved, i_to_w, dx, dy).data;
    if (s->part.range.has_head) {
        dy_td = hidden(s, i_to_w);
        rmsnorm_backward_input(&s->part.norm, &saved->norm, run, dy_td, saved->dh_td, 0);
    }
    for (int64_t i = s->part.range.n - 1; i >= 0; i--) {
        const Block *block = &s->part.block[i];
        BlockSaved *b = &saved->block[i];
        breadcrumb()->layer = block->config.layer;
        bool hand_over = i == 0 && !s->part.range.has_embedding;
        Tensor dx_td = hand_over ? dx.hidden_td : hidden(s, i_to_w);
        if (block->config.layer < s->n_recomputed) {
            Tensor y_td = hidden(s, &s->memory->passing);
            block_forward(block, b, run, i_to_w, i_to_w, NULL, y_td, b->x_td);
            arena_reset(&s->memory->passing);
        }
        run->dprob_e = scope_gradient(s, saved, i, i_to_w);
        block_backward_input(block, b, run, i_to_w, dx_td, dy_td);
        dy_td = dx_td;
    }
    breadcrumb()->layer = -1;
    saved->dx_td = dy_td;
}

static void backward_weight(void *self, Slots at, const MicroBatch *mb)
{
    Stage *s = self;
    s->run.mb = mb;
    const StageSaved *saved = &s->saved[at.f_to_w];
    for (int64_t i = s->part.range.n - 1; i >= 0; i--) {
        breadcrumb()->layer = s->part.block[i].config.layer;
        block_backward_weight(&s->part.block[i], &saved->block[i], &s->run);
    }
    breadcrumb()->layer = -1;
    if (s->part.range.has_embedding)
        embedding_backward_weight(&s->part.embedding, &s->run, saved->dx_td);
}

const StageOps stage_ops = {
    .open_forward = open_forward,
    .open_backward = open_backward,
    .border = border,
    .forward = forward,
    .backward_input = backward_input,
    .backward_weight = backward_weight,
};

void stage_decode(Stage *s, const MicroBatch *mb, KvCache *kv, Tensor logit_1v)
{
    Run *run = &s->run;
    run->mb = mb;
    run->kv = kv;
    arena_reset(&s->memory->f_to_i[0]);
    Tensor turn[2] = {hidden(s, &s->memory->f_to_i[0]), hidden(s, &s->memory->f_to_i[0])};
    StageSaved *saved = &s->saved[0];
    embedding_forward(&s->part.embedding, run, turn[0]);
    int64_t n = s->part.range.n;
    for (int64_t i = 0; i < n; i++) {
        block_forward(&s->part.block[i], &saved->block[i], run, &s->memory->passing,
                      &s->memory->passing, NULL, turn[(i + 1) % 2], turn[i % 2]);
        arena_reset(&s->memory->passing);
    }
    kv->length += mb->n_tokens;
    run->kv = NULL;
    Tensor last_1d = tensor_rows(turn[n % 2], mb->n_tokens - 1, 1),
           h_1d = tensor_rows(turn[(n + 1) % 2], 0, 1);
    saved->norm.rstd_n = arena_tensor1(&s->memory->f_to_i[0], run->dtype_acc, 1);
    rmsnorm_forward(&s->part.norm, &saved->norm, run, h_1d, last_1d);
    lm_loss_logits(&s->part.head, run, logit_1v, h_1d);
}
