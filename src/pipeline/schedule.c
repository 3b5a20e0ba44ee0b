#include "pipeline/schedule.h"

#include "pipeline/schedule_text.h"

#include <string.h>

const char *const action_names[ACT_COUNT] = {
    [ACT_F] = "F",           [ACT_I] = "I",           [ACT_W] = "W",
    [ACT_B] = "B",           [ACT_SEND_F] = "SEND_F", [ACT_RECV_F] = "RECV_F",
    [ACT_SEND_B] = "SEND_B", [ACT_RECV_B] = "RECV_B", [ACT_REDUCE] = "REDUCE_GRAD",
};

const Slots slots_none = {-1, -1, -1, -1};

int *slots_field(Slots *slots, SlotKind kind)
{
    switch (kind) {
    case SLOT_F_TO_I: return &slots->f_to_i;
    case SLOT_F_TO_W: return &slots->f_to_w;
    case SLOT_I_TO_W: return &slots->i_to_w;
    default: return &slots->send;
    }
}

Status schedule_new(Schedule **out, int n_ranks, int n_stages, int n_mb, int capacity, Arena *arena)
{
    Schedule *s;
    TRY(arena_alloc(arena, &s, 1, sizeof *s));
    s->n_ranks = n_ranks;
    s->n_stages = n_stages;
    s->n_mb = n_mb;
    TRY(arena_alloc(arena, &s->rank_of_stage, (size_t)n_stages, sizeof(int)));
    TRY(arena_alloc(arena, &s->list, (size_t)n_ranks, sizeof(ActionList)));
    for (int r = 0; r < n_ranks; r++)
        TRY(arena_alloc(arena, &s->list[r].at, (size_t)capacity, sizeof(Action)));
    *out = s;
    return OK;
}

void schedule_emit(ActionList *list, ActionKind kind, int stage, int mb)
{
    list->at[list->n++] = (Action){
        .kind = kind, .stage = stage, .mb = mb, .peer = -1, .at = slots_none, .to = slots_none};
}

/* From compute actions to what the executor runs. Checked before the passes, which trust the order, and after. */
static Status complete(Schedule *s, Arena *arena)
{
    TRY(schedule_check(s, &s->ascending, arena));
    if (!s->has_comm) {
        TRY(schedule_add_comm(s, arena));
        TRY(schedule_hoist_receives(s, arena));
    }
    TRY(schedule_assign_slots(s, arena));
    return schedule_check(s, NULL, arena);
}

static int owner(Placement placement, int n_ranks, int stage)
{
    int c = stage / n_ranks, r = stage % n_ranks;
    return placement == PLACE_V && c % 2 ? n_ranks - 1 - r : r;
}

/* Longer lists than this are a slip of the keyboard; it also keeps all counts far inside int. */
static Status check_size(int n_ranks, int n_virtual, int n_mb)
{
    enum { PAIRS_MAX = 1 << 22, RANKS_MAX = 4096 };
    if (n_ranks < 1 || n_ranks > RANKS_MAX)
        return FAIL(ERR_USAGE, "pp_size: found %d, expected 1 to %d", n_ranks, RANKS_MAX);
    if (n_mb < 1) return FAIL(ERR_USAGE, "microbatches: found %d, expected at least 1", n_mb);
    if ((int64_t)n_ranks * n_virtual * n_mb > PAIRS_MAX)
        return FAIL(ERR_USAGE,
                    "pp_size %d x num_virtual_stages %d x microbatches %d: more than %d forwards",
                    n_ranks, n_virtual, n_mb, PAIRS_MAX);
    return OK;
}

static Status generate(Schedule **out, const ScheduleRequest *request, Arena *arena)
{
    const ScheduleKind *kind;
    TRY(schedule_find(&kind, request->name));
    if (!kind->generate) return FAIL(ERR_UNSUPPORTED, "schedule %s: not available yet", kind->name);
    int v = request->n_virtual ? request->n_virtual : kind->n_virtual_default;
    if (v < kind->n_virtual_min || v > kind->n_virtual_max) {
        if (kind->n_virtual_min == kind->n_virtual_max)
            return FAIL(ERR_USAGE, "num_virtual_stages: found %d, schedule %s has %d", v,
                        kind->name, kind->n_virtual_min);
        return FAIL(ERR_USAGE, "num_virtual_stages: found %d, schedule %s takes %d to %d", v,
                    kind->name, kind->n_virtual_min, kind->n_virtual_max);
    }
    int64_t fewest = (int64_t)kind->n_mb_per_rank_min * request->n_ranks;
    int m = request->n_mb ? request->n_mb : fewest ? (int)fewest : 1;
    TRY(check_size(request->n_ranks, v, m));
    if (m < fewest)
        return FAIL(ERR_USAGE,
                    "microbatches: found %d, schedule %s takes at least %d = %d x pp_size %d", m,
                    kind->name, (int)fewest, kind->n_mb_per_rank_min, request->n_ranks);
    Layout layout = {request->n_ranks, m, v};
    Schedule *s;
    TRY(schedule_new(&s, layout.n_ranks, layout.n_ranks * v, layout.n_mb, 3 * v * layout.n_mb,
                     arena));
    s->name = kind->name;
    for (int stage = 0; stage < s->n_stages; stage++)
        s->rank_of_stage[stage] = owner(kind->placement, s->n_ranks, stage);
    for (int r = 0; r < s->n_ranks; r++) kind->generate(&layout, r, &s->list[r]);
    *out = s;
    return OK;
}

static Status contradiction(const char *path, const char *key, int asked, int found)
{
    if (asked == 0 || asked == found) return OK;
    return FAIL(ERR_USAGE, "%s: has %s %d, asked for %d", path, key, found, asked);
}

static Status read_file(Schedule **out, const ScheduleRequest *request, Arena *arena)
{
    Schedule *s;
    TRY(schedule_read_csv(&s, request->name, arena));
    TRY(contradiction(request->name, "pp_size", request->n_ranks, s->n_ranks));
    TRY(contradiction(request->name, "microbatches", request->n_mb, s->n_mb));
    if (request->n_virtual && s->n_stages != request->n_virtual * s->n_ranks)
        return FAIL(ERR_USAGE, "%s: has %d stages on %d ranks, asked for num_virtual_stages %d",
                    request->name, s->n_stages, s->n_ranks, request->n_virtual);
    *out = s;
    return OK;
}

bool schedule_is_file(const char *name)
{
    size_t n = strlen(name);
    return n >= 4 && strcmp(name + n - 4, ".csv") == 0;
}

Status schedule_build(Schedule **out, const ScheduleRequest *request, Arena *arena)
{
    Schedule *s = NULL;
    if (schedule_is_file(request->name))
        TRY(read_file(&s, request, arena));
    else
        TRY(generate(&s, request, arena));
    TRY(complete(s, arena));
    *out = s;
    return OK;
}

Status schedule_build_forward(Schedule **out, const Schedule *like, int n_mb, Arena *arena)
{
    int p = like->n_ranks;
    TRY(check_size(p, (like->n_stages + p - 1) / p, n_mb));
    Schedule *s;
    TRY(schedule_new(&s, p, like->n_stages, n_mb, 0, arena));
    s->name = like->name;
    s->forward_only = true;
    memcpy(s->rank_of_stage, like->rank_of_stage, (size_t)s->n_stages * sizeof(int));
    for (int r = 0; r < p; r++) {
        int n_own = 0;
        for (int stage = 0; stage < s->n_stages; stage++) n_own += s->rank_of_stage[stage] == r;
        TRY(arena_alloc(arena, &s->list[r].at, (size_t)n_own * (size_t)n_mb, sizeof(Action)));
    }
    /* All ranks follow one global order: groups of p microbatches fill the pipe, stage by stage. */
    for (int first = 0; first < n_mb; first += p)
        for (int stage = 0; stage < s->n_stages; stage++)
            for (int mb = first; mb < n_mb && mb < first + p; mb++)
                schedule_emit(&s->list[s->rank_of_stage[stage]], ACT_F, stage, mb);
    TRY(complete(s, arena));
    *out = s;
    return OK;
}
