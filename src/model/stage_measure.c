#include "model/stage_measure.h"

#include <string.h>

/* ---- a backend that computes nothing; what takes scratch stays as it is ------------------------------------ */

#define NOTHING(name, Args) \
    static void no_##name(const Backend *be, const Args *args) \
    { \
        (void)be, (void)args; \
    }
NOTHING(gemm, GemmArgs)
NOTHING(grouped_gemm, GroupedGemmArgs)
NOTHING(rmsnorm, RmsNormArgs)
NOTHING(rope, RopeArgs)
NOTHING(router_backward, RouterBackwardArgs)
NOTHING(swiglu, SwiGluArgs)
NOTHING(swiglu_backward, SwiGluBackwardArgs)
NOTHING(gather_rows, GatherRowsArgs)
NOTHING(combine_rows, CombineRowsArgs)
NOTHING(scatter_add_rows, ScatterAddRowsArgs)

static void no_cross_entropy(const Backend *be, const CrossEntropyArgs *args)
{
    (void)be;
    *args->loss = 0;
}

static void no_add(const Backend *be, Tensor y, Tensor a, Tensor b)
{
    (void)be, (void)y, (void)a, (void)b;
}

static void no_pair(const Backend *be, Tensor y, Tensor x)
{
    (void)be, (void)y, (void)x;
}

/* Dispatch counts on ids. All experts get as much; those of a token lie far apart, so that it goes to as many ranks as it can. */
static void even_experts(const Backend *be, const RouterArgs *args)
{
    (void)be;
    int32_t *id = args->id_tk.data;
    int64_t n_experts = args->p_te.dim[1], top_k = args->id_tk.dim[1], apart = n_experts / top_k;
    for (int64_t i = 0; i < tensor_size(args->id_tk); i++)
        id[i] = (int32_t)((i / top_k + i % top_k * apart) % n_experts);
    for (int64_t e = 0; e < n_experts; e++) args->count_e[e] = 0, args->prob_sum_e[e] = 0;
}

static Backend measuring(const Backend *be)
{
    Backend m = *be;
    m.gemm = no_gemm;
    m.grouped_gemm = no_grouped_gemm;
    m.rmsnorm = no_rmsnorm;
    m.rope = no_rope;
    m.router = even_experts;
    m.router_backward = no_router_backward;
    m.swiglu = no_swiglu;
    m.swiglu_backward = no_swiglu_backward;
    m.gather_rows = no_gather_rows;
    m.combine_rows = no_combine_rows;
    m.scatter_add_rows = no_scatter_add_rows;
    m.cross_entropy = no_cross_entropy;
    m.add = no_add;
    m.add_bias = no_pair;
    m.convert = no_pair;
    return m;
}

/* ---- one microbatch ------------------------------------------------------------------------------------------ */

static MicroBatch any_row(int64_t n_tokens, Arena *arena)
{
    enum { SAMPLE = 256 };
    int n_segments = (int)((n_tokens + SAMPLE - 1) / SAMPLE);
    int32_t *cu = ARENA_NEW(arena, int32_t, n_segments + 1),
            *zero = ARENA_NEW(arena, int32_t, n_tokens);
    for (int s = 0; s < n_segments; s++) cu[s] = s * SAMPLE;
    cu[n_segments] = (int32_t)n_tokens;
    return (MicroBatch){.n_tokens = n_tokens,
                        .n_segments = n_segments,
                        .cu_seqlens = cu,
                        .id_t = zero,
                        .position_t = zero,
                        .target_t = zero,
                        .weight_t = ARENA_NEW(arena, double, n_tokens)};
}

static HandOver room_for(HandOver border, bool wanted, Arena *arena)
{
    if (!wanted) return (HandOver){0};
    size_t bytes = handover_bytes(border);
    return handover_at(border, arena_take(arena, bytes));
}

static void run_microbatch(Stage *s, const MicroBatch *mb, ForwardMode mode, Arena *arena)
{
    const Slots at = {.send = -1};
    const LayerRange *range = &s->part.range;
    HandOver border = stage_ops.border(s, mb);
    HandOver y = room_for(border, !range->has_head, arena),
             dx = room_for(border, !range->has_embedding, arena);
    HandOver x = stage_ops.open_forward(s, at, mb);
    if (x.routed_2e.data) memset(x.routed_2e.data, 0, tensor_bytes(x.routed_2e));
    stage_ops.forward(s, at, mb, y, x, mode);
    if (mode != FORWARD_TRAIN) return;
    HandOver dy = stage_ops.open_backward(s, at, mb);
    if (dy.routed_2e.data) memset(dy.routed_2e.data, 0, tensor_bytes(dy.routed_2e));
    stage_ops.backward_input(s, at, mb, dx, dy);
    stage_ops.backward_weight(s, at, mb);
}

Status stage_measure(StageBytes *out, const Stage *stage, int64_t n_tokens, ForwardMode mode)
{
    Arena arena;
    arena_init(&arena, "measure");
    StageMemory memory = {0};
    Status status = stage_memory_create(&memory, 1, 1, 1, &arena);
    if (status == OK) {
        Stage probe = *stage;
        Backend be = measuring(stage->run.be);
        probe.memory = &memory;
        probe.run.be = &be;
        probe.run.scratch = &memory.scratch;
        MicroBatch mb = any_row(n_tokens, &arena);
        run_microbatch(&probe, &mb, mode, &arena);
        *out = (StageBytes){.f_to_i = memory.f_to_i[0].high_water,
                            .f_to_w = memory.f_to_w[0].high_water,
                            .i_to_w = memory.i_to_w[0].high_water,
                            .scratch = memory.scratch.high_water,
                            .passing = memory.passing.high_water,
                            .border = handover_bytes(stage_ops.border(&probe, &mb))};
    }
    stage_memory_free(&memory);
    arena_free(&arena);
    return status;
}
