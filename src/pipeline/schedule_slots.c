#include "pipeline/schedule_index.h"

#include <string.h>

int slot_events(const Schedule *s, const Action *a, SlotEvent event[SLOT_EVENTS_MAX])
{
    int n = 0;
#define EVENT(what, kind, stage) \
    event[n++] = (SlotEvent) \
    { \
        what, kind, stage, a->mb \
    }
    int next = consumer_stage(s, a->kind, a->stage);
    bool sends = message_rank(s, a->kind, a->stage) >= 0;
    switch (a->kind) {
    case ACT_F:
        if (a->stage == 0) EVENT(SLOT_TAKE, SLOT_F_TO_I, a->stage);
        EVENT(SLOT_TAKE, SLOT_F_TO_W, a->stage);
        if (next >= 0 && !sends) EVENT(SLOT_TAKE, SLOT_F_TO_I, next);
        if (sends) EVENT(SLOT_TAKE, SLOT_SEND, a->stage);
        EVENT(SLOT_USE, SLOT_F_TO_I, a->stage);
        if (s->forward_only) {
            EVENT(SLOT_FREE, SLOT_F_TO_I, a->stage);
            EVENT(SLOT_FREE, SLOT_F_TO_W, a->stage);
        }
        break;
    case ACT_I:
    case ACT_B:
        if (a->stage == s->n_stages - 1) EVENT(SLOT_TAKE, SLOT_I_TO_W, a->stage);
        if (next >= 0 && !sends) EVENT(SLOT_TAKE, SLOT_I_TO_W, next);
        if (sends) EVENT(SLOT_TAKE, SLOT_SEND, a->stage);
        EVENT(SLOT_USE, SLOT_F_TO_W, a->stage);
        EVENT(SLOT_USE, SLOT_I_TO_W, a->stage);
        EVENT(SLOT_FREE, SLOT_F_TO_I, a->stage);
        if (a->kind == ACT_I) break;
        EVENT(SLOT_FREE, SLOT_F_TO_W, a->stage);
        EVENT(SLOT_FREE, SLOT_I_TO_W, a->stage);
        break;
    case ACT_W:
        EVENT(SLOT_FREE, SLOT_F_TO_W, a->stage);
        EVENT(SLOT_FREE, SLOT_I_TO_W, a->stage);
        break;
    case ACT_RECV_F: EVENT(SLOT_TAKE, SLOT_F_TO_I, a->stage); break;
    case ACT_RECV_B: EVENT(SLOT_TAKE, SLOT_I_TO_W, a->stage); break;
    case ACT_SEND_F:
    case ACT_SEND_B: EVENT(SLOT_FREE, SLOT_SEND, a->stage); break;
    case ACT_REDUCE:
    case ACT_COUNT: break;
    }
#undef EVENT
    return n;
}

/* Numbers of one kind on one rank. The last one freed is given out first: its memory is still in the cache. */
typedef struct Numbers {
    int *free;
    int n_free, n_all;
} Numbers;

static int number_take(Numbers *numbers)
{
    return numbers->n_free ? numbers->free[--numbers->n_free] : numbers->n_all++;
}

static Status assign_kept(Schedule *s, int rank, Slots *slots_of_pair, Arena *arena)
{
    const ActionList *list = &s->list[rank];
    Numbers numbers[SLOT_SEND] = {{0}};
    for (int kind = 0; kind < SLOT_SEND; kind++)
        TRY(arena_alloc(arena, &numbers[kind].free, (size_t)list->n, sizeof(int)));
    for (int k = 0; k < list->n; k++) {
        SlotEvent event[SLOT_EVENTS_MAX];
        int n = slot_events(s, &list->at[k], event);
        for (int e = 0; e < n; e++) {
            if (event[e].kind == SLOT_SEND) continue;
            Numbers *of = &numbers[event[e].kind];
            int *slot =
                slots_field(&slots_of_pair[pair_of(s, event[e].stage, event[e].mb)], event[e].kind);
            if (event[e].what == SLOT_TAKE) *slot = number_take(of);
            if (event[e].what == SLOT_FREE) of->free[of->n_free++] = *slot;
        }
    }
    for (int kind = 0; kind < SLOT_SEND; kind++)
        *slots_field(&s->n_slots[rank], (SlotKind)kind) = numbers[kind].n_all;
    return OK;
}

/* end_f, end_b: when F, and I or B, of each pair have run */
static void find_ends(const Schedule *s, const ScheduleReport *report, double *end_f, double *end_b)
{
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            size_t pair = pair_of(s, a->stage, a->mb);
            if (a->kind == ACT_F) end_f[pair] = report->rank[r].end[k];
            if (a->kind == ACT_I || a->kind == ACT_B) end_b[pair] = report->rank[r].end[k];
        }
}

/* Deadlock-free: the simulated run is an order in which every buffer is free when it is written again. */
static Status assign_sends(Schedule *s, Arena *arena)
{
    ScheduleReport report;
    Costs unit = costs_uniform(s->n_stages, 1, 1, 1, 0, arena);
    TRY(schedule_simulate(&report, s, &unit, 1, arena));
    double *end_f, *end_b, *free_at;
    TRY(arena_alloc(arena, &end_f, n_pairs(s), sizeof(double)));
    TRY(arena_alloc(arena, &end_b, n_pairs(s), sizeof(double)));
    find_ends(s, &report, end_f, end_b);
    for (int r = 0; r < s->n_ranks; r++) {
        ActionList *list = &s->list[r];
        TRY(arena_alloc(arena, &free_at, (size_t)list->n, sizeof(double)));
        int n = 0;
        for (int k = 0; k < list->n; k++) {
            Action *a = &list->at[k];
            if (message_rank(s, a->kind, a->stage) < 0) continue;
            int slot = 0, to = consumer_stage(s, a->kind, a->stage);
            while (slot < n && free_at[slot] > report.rank[r].start[k]) slot++;
            if (slot == n) n++;
            free_at[slot] = (a->kind == ACT_F ? end_f : end_b)[pair_of(s, to, a->mb)];
            a->at.send = slot;
        }
        s->n_slots[r].send = n;
    }
    return OK;
}

/* Every action gets the slots of its pair; a SEND the buffer of its producer. */
static void write_slots(Schedule *s, const Slots *slots_of_pair, int *send_f, int *send_b)
{
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            Action *a = &s->list[r].at[k];
            size_t pair = pair_of(s, a->stage, a->mb);
            int send = a->at.send, to = consumer_stage(s, a->kind, a->stage);
            a->at = slots_of_pair[pair];
            a->at.send = send;
            a->to = slots_none;
            if (to >= 0 && message_rank(s, a->kind, a->stage) < 0)
                a->to = slots_of_pair[pair_of(s, to, a->mb)];
            if (a->kind == ACT_F) send_f[pair] = send;
            if (a->kind == ACT_I || a->kind == ACT_B) send_b[pair] = send;
            if (a->kind == ACT_SEND_F) a->at.send = send_f[pair];
            if (a->kind == ACT_SEND_B) a->at.send = send_b[pair];
        }
}

Status schedule_assign_slots(Schedule *s, Arena *arena)
{
    TRY(arena_alloc(arena, &s->n_slots, (size_t)s->n_ranks, sizeof(Slots)));
    ArenaMark mark = arena_mark(arena);
    Slots *slots_of_pair;
    int *send_f, *send_b;
    TRY(arena_alloc(arena, &slots_of_pair, n_pairs(s), sizeof(Slots)));
    TRY(arena_alloc(arena, &send_f, n_pairs(s), sizeof(int)));
    TRY(arena_alloc(arena, &send_b, n_pairs(s), sizeof(int)));
    for (size_t i = 0; i < n_pairs(s); i++) slots_of_pair[i] = slots_none;
    for (int r = 0; r < s->n_ranks; r++) {
        for (int k = 0; k < s->list[r].n; k++) s->list[r].at[k].at = slots_none;
        TRY(assign_kept(s, r, slots_of_pair, arena));
    }
    TRY(assign_sends(s, arena));
    write_slots(s, slots_of_pair, send_f, send_b);
    s->has_slots = true;
    arena_rewind(arena, mark);
    return OK;
}
