#include "train/memory_plan.h"
#include "model/stage_measure.h"

#include <stdio.h>

/* What each slot of the rank must hold, by kind (send aside), and what all share. */
typedef struct Needs {
    size_t *slot[SLOT_SEND];
    size_t scratch, passing;
} Needs;

static void at_least(size_t *most, size_t bytes)
{
    if (bytes > *most) *most = bytes;
}

/* What the rank's stages take when they run this pass. */
static Status add_pass(Needs *needs, int64_t *messages, const Engine *e, int pass, int64_t longest)
{
    const Schedule *s = e->schedule[pass];
    int rank = e->mesh->coord[AXIS_PP];
    ForwardMode mode = pass == PASS_TRAIN ? FORWARD_TRAIN : FORWARD_LOSS;
    size_t border = 0;
    for (int stage = 0; stage < s->n_stages; stage++) {
        if (s->rank_of_stage[stage] != rank) continue;
        StageBytes bytes;
        TRY(stage_measure(&bytes, e->stage[stage], longest, mode));
        at_least(&needs->scratch, bytes.scratch);
        at_least(&needs->passing, bytes.passing);
        at_least(&border, bytes.border);
        for (int k = 0; k < s->list[rank].n; k++) {
            const Action *a = &s->list[rank].at[k];
            if (!action_is_compute(a->kind) || a->stage != stage) continue;
            if (a->at.f_to_i >= 0) at_least(&needs->slot[SLOT_F_TO_I][a->at.f_to_i], bytes.f_to_i);
            if (a->at.f_to_w >= 0) at_least(&needs->slot[SLOT_F_TO_W][a->at.f_to_w], bytes.f_to_w);
            if (a->at.i_to_w >= 0) at_least(&needs->slot[SLOT_I_TO_W][a->at.i_to_w], bytes.i_to_w);
        }
    }
    *messages += (int64_t)border * s->n_slots[rank].send;
    return OK;
}

static int64_t bytes_of(Tensor t)
{
    return tensor_is_null(t) ? 0 : (int64_t)tensor_bytes(t);
}

static void add_params(MemoryPlan *plan, const ParamSet *set)
{
    for (int i = 0; i < set->n; i++) {
        const Param *p = set->at[i];
        plan->weights += bytes_of(p->value);
        if (p->master.dtype != p->value.dtype) plan->weights += bytes_of(p->master);
        plan->gradients += bytes_of(p->grad);
        plan->moments += bytes_of(p->moment[0]) + bytes_of(p->moment[1]);
    }
}

static Status plan_activations(MemoryPlan *plan, const Engine *e, int64_t longest_train,
                               int64_t longest_eval, Arena *arena)
{
    const StageMemory *memory = &e->memory;
    const int n[SLOT_SEND] = {memory->n_f_to_i, memory->n_f_to_w, memory->n_i_to_w};
    Needs needs = {0};
    for (int kind = 0; kind < SLOT_SEND; kind++)
        TRY(arena_alloc(arena, &needs.slot[kind], (size_t)n[kind], sizeof(size_t)));
    for (int pass = 0; pass < PASS_COUNT; pass++)
        if (e->schedule[pass])
            TRY(add_pass(&needs, &plan->messages, e, pass,
                         pass == PASS_TRAIN ? longest_train : longest_eval));
    plan->activations = (int64_t)(needs.scratch + needs.passing);
    for (int kind = 0; kind < SLOT_SEND; kind++)
        for (int i = 0; i < n[kind]; i++) plan->activations += (int64_t)needs.slot[kind][i];
    return OK;
}

Status memory_plan(MemoryPlan *out, const Engine *e, int64_t longest_train, int64_t longest_eval)
{
    MemoryPlan plan = {0};
    add_params(&plan, &e->set);
    Arena arena;
    arena_init(&arena, "plan");
    Status status = plan_activations(&plan, e, longest_train, longest_eval, &arena);
    arena_free(&arena);
    plan.total =
        (int64_t)(e->arena.high_water + e->step.high_water) + plan.activations + plan.messages;
    *out = plan;
    return status;
}

/* ---- for people ---------------------------------------------------------------------------------------------- */

/* "15.5 MiB", four digits at most. */
static const char *bytes_text(char text[16], int64_t bytes)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int k = 0;
    for (; value >= 1000 && k < 4; k++) value /= 1024;
    snprintf(text, 16, "%.*f %s", k == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2, value, unit[k]);
    return text;
}

/* "0-3, 8-11", the embedding and the head where they are. */
static void layers_text(TextBuffer *out, const Engine *e, int rank)
{
    for (int s = 0; s < e->n_stages; s++) {
        const LayerRange *range = &e->range[s];
        if (e->rank_of_stage[s] != rank) continue;
        if (out->length) text_append(out, ", ", 2);
        if (range->has_embedding) text_append_format(out, "embedding ");
        text_append_format(out, "%lld", (long long)range->first);
        if (range->n > 1)
            text_append_format(out, "-%lld", (long long)(range->first + range->n - 1));
        if (range->has_head) text_append_format(out, " head");
    }
}

static double time_of(const Engine *e, int rank)
{
    double sum = 0;
    for (int s = 0; s < e->n_stages; s++)
        if (rank < 0 || e->rank_of_stage[s] == rank)
            sum += stage_cost_sum(range_cost(&e->cost, e->range[s]));
    return sum;
}

typedef struct RankRow {
    int64_t n_params;
    MemoryPlan plan;
} RankRow;

static void log_table(const Engine *e, const RankRow *row_r, Log *log, Arena *arena)
{
    int n = e->mesh->size[AXIS_PP], width = 6;
    const char **layers_r = ARENA_NEW(arena, const char *, n);
    for (int r = 0; r < n; r++) {
        TextBuffer layers;
        text_buffer_init(&layers, arena);
        layers_text(&layers, e, r);
        layers_r[r] = layers.text;
        if ((int)layers.length > width) width = (int)layers.length;
    }
    log_line(log,
             "rank  %-*s   time  parameters   weights  gradients   moments      copy  activations  "
             "messages     total",
             width, "layers");
    for (int r = 0; r < n; r++) {
        const MemoryPlan *plan = &row_r[r].plan;
        char text[7][16];
        log_line(log, "%4d  %-*s  %3.0f %%  %10lld  %8s  %9s  %8s  %8s  %11s  %8s  %8s", r, width,
                 layers_r[r], 100 * time_of(e, r) / time_of(e, -1), (long long)row_r[r].n_params,
                 bytes_text(text[0], plan->weights), bytes_text(text[1], plan->gradients),
                 bytes_text(text[2], plan->moments), bytes_text(text[3], plan->copy),
                 bytes_text(text[4], plan->activations), bytes_text(text[5], plan->messages),
                 bytes_text(text[6], plan->total));
    }
}

Status memory_plan_log(Engine *e, int64_t longest_train, int64_t longest_eval, int64_t copy_bytes,
                       Log *log)
{
    Comm *pp = e->mesh->axis[AXIS_PP];
    RankRow own = {0};
    for (int i = 0; i < e->set.n; i++)
        if (!e->set.at[i]->tied_copy) own.n_params += tensor_size(e->set.at[i]->value);
    TRY(comm_agree(pp, memory_plan(&own.plan, e, longest_train, longest_eval)));
    own.plan.copy = copy_bytes;
    Arena arena;
    arena_init(&arena, "table");
    RankRow *row_r = ARENA_NEW(&arena, RankRow, pp->size);
    Status status = comm_gather(pp, row_r, &own, sizeof own, 0);
    if (status == OK && pp->rank == 0) log_table(e, row_r, log, &arena);
    arena_free(&arena);
    return status;
}
