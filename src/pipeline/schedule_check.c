#include "pipeline/schedule_index.h"
#include "pipeline/schedule_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Positions (from 1; 0: not there) of each kind of action by pair, in the list of the pair's rank. */
typedef struct Places {
    int *of[ACT_COUNT];
} Places;

static Status refuse(const Schedule *s, int rank, int k, const char *format, ...) PRINTF_LIKE(4, 5);
static Status refuse(const Schedule *s, int rank, int k, const char *format, ...)
{
    char reason[256], text[ACTION_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    const Action *a = &s->list[rank].at[k];
    return FAIL(ERR_FORMAT, "schedule %s: rank %d position %d (%s): %s", s->name, rank, k + 1,
                action_text(text, a->kind, a->stage, a->mb), reason);
}

/* What belongs to the end of a rank's list: an action that is not in it. */
static Status missing(const Schedule *s, int rank, const char *format, ...) PRINTF_LIKE(3, 4);
static Status missing(const Schedule *s, int rank, const char *format, ...)
{
    char reason[256];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return FAIL(ERR_FORMAT, "schedule %s: rank %d position %d (end): %s", s->name, rank,
                s->list[rank].n + 1, reason);
}

static Status check_placement(const Schedule *s)
{
    if (s->n_ranks < 1 || s->n_stages < 1 || s->n_mb < 1)
        return FAIL(ERR_FORMAT, "schedule %s: %d ranks, %d stages, %d microbatches", s->name,
                    s->n_ranks, s->n_stages, s->n_mb);
    for (int stage = 0; stage < s->n_stages; stage++)
        if (s->rank_of_stage[stage] < 0 || s->rank_of_stage[stage] >= s->n_ranks)
            return FAIL(ERR_FORMAT, "schedule %s: stage %d is on rank %d of %d", s->name, stage,
                        s->rank_of_stage[stage], s->n_ranks);
    for (int r = 0; r < s->n_ranks; r++)
        if (s->list[r].n == 0)
            return FAIL(ERR_FORMAT, "schedule %s: rank %d position 1 (end): has nothing to do",
                        s->name, r);
    return OK;
}

/* A message action: there is a border, and the peer is the rank behind it. */
static Status check_message(const Schedule *s, int rank, int k)
{
    const Action *a = &s->list[rank].at[k];
    if (!s->has_comm) return refuse(s, rank, k, "a message in a list of compute actions");
    int to_next = a->kind == ACT_SEND_F || a->kind == ACT_RECV_B;
    int other = a->stage + (to_next ? 1 : -1);
    if (other < 0 || other >= s->n_stages) return refuse(s, rank, k, "there is no such stage");
    if (s->rank_of_stage[other] == rank)
        return refuse(s, rank, k, "stage %d is on the same rank: nothing to send", other);
    if (a->peer != s->rank_of_stage[other])
        return refuse(s, rank, k, "goes to rank %d, but stage %d is on rank %d", a->peer, other,
                      s->rank_of_stage[other]);
    return OK;
}

static Status index_actions(const Schedule *s, const Places *places)
{
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            if ((unsigned)a->kind >= ACT_COUNT || a->stage < 0 || a->stage >= s->n_stages ||
                a->mb < 0 || a->mb >= s->n_mb)
                return FAIL(ERR_FORMAT,
                            "schedule %s: rank %d position %d: kind %d, stage %d of %d, microbatch "
                            "%d of %d",
                            s->name, r, k + 1, (int)a->kind, a->stage, s->n_stages, a->mb, s->n_mb);
            if (s->rank_of_stage[a->stage] != r)
                return refuse(s, r, k, "stage %d belongs to rank %d", a->stage,
                              s->rank_of_stage[a->stage]);
            if (s->forward_only && action_is_compute(a->kind) && a->kind != ACT_F)
                return refuse(s, r, k, "a backward in a forward-only schedule");
            if (action_is_message(a->kind)) TRY(check_message(s, r, k));
            int *place = &places->of[a->kind][pair_of(s, a->stage, a->mb)];
            if (*place) return refuse(s, r, k, "comes twice (first at position %d)", *place);
            *place = k + 1;
        }
    return OK;
}

/* One F and either B, or I and W; and messages at borders. */
static Status check_counts(const Schedule *s, const Places *places)
{
    for (int stage = 0; stage < s->n_stages; stage++)
        for (int mb = 0; mb < s->n_mb; mb++) {
            size_t pair = pair_of(s, stage, mb);
            int r = s->rank_of_stage[stage], f = places->of[ACT_F][pair];
            int b = places->of[ACT_B][pair], i = places->of[ACT_I][pair];
            int w = places->of[ACT_W][pair];
            if (!f) return missing(s, r, "%dF%d is missing", stage, mb);
            if (b && (i || w))
                return refuse(s, r, (i ? i : w) - 1, "besides a B at position %d", b);
            if (!s->forward_only && !b && !i)
                return missing(s, r, "%dB%d (or I and W) is missing", stage, mb);
            if (i && !w) return missing(s, r, "%dW%d is missing", stage, mb);
            for (int kind = ACT_SEND_F; s->has_comm && kind <= ACT_RECV_B; kind++) {
                bool forward = kind == ACT_SEND_F || kind == ACT_RECV_F;
                int other = stage + (kind == ACT_SEND_F || kind == ACT_RECV_B ? 1 : -1);
                if (other < 0 || other >= s->n_stages || s->rank_of_stage[other] == r ||
                    (s->forward_only && !forward))
                    continue;
                int place = places->of[kind][pair], own = forward ? f : b ? b : i;
                if (!place)
                    return missing(s, r, "%d%s%d is missing", stage, action_names[kind], mb);
                bool send = kind == ACT_SEND_F || kind == ACT_SEND_B;
                if (send && place < own)
                    return refuse(s, r, place - 1, "before %s at position %d makes what it sends",
                                  forward ? "the F" : "the backward", own);
                if (!send && place > own)
                    return refuse(s, r, place - 1, "after %s at position %d, which needs it",
                                  forward ? "the F" : "the backward", own);
            }
        }
    return OK;
}

/* A stage's gradients are summed once, when they are complete. */
static Status check_reduce(const Schedule *s, const Places *places)
{
    for (int stage = 0; stage < s->n_stages; stage++) {
        int r = s->rank_of_stage[stage], last = 0, n = 0;
        for (int mb = 0; mb < s->n_mb; mb++) {
            size_t pair = pair_of(s, stage, mb);
            int w = places->of[ACT_W][pair], b = places->of[ACT_B][pair];
            last = w > last ? w : b > last ? b : last;
        }
        for (int mb = 0; mb < s->n_mb; mb++) {
            int place = places->of[ACT_REDUCE][pair_of(s, stage, mb)];
            if (!place) continue;
            if (place < last)
                return refuse(s, r, place - 1, "before the weight gradient at position %d", last);
            if (n++ || !s->has_reduce) return refuse(s, r, place - 1, "once too often");
        }
        if (s->has_reduce && !n) return missing(s, r, "%dREDUCE_GRAD is missing", stage);
    }
    return OK;
}

/* For each ordered pair of ranks: the k-th send is the k-th receive. */
static Status check_message_order(const Schedule *s, Arena *scratch)
{
    int *seen_r; /* [n_ranks] how far the receiver's list was looked through */
    TRY(arena_alloc(scratch, &seen_r, (size_t)s->n_ranks, sizeof(int)));
    for (int from = 0; from < s->n_ranks; from++) {
        memset(seen_r, 0, (size_t)s->n_ranks * sizeof(int));
        for (int k = 0; k < s->list[from].n; k++) {
            const Action *send = &s->list[from].at[k], *receive = NULL;
            if (send->kind != ACT_SEND_F && send->kind != ACT_SEND_B) continue;
            const ActionList *list = &s->list[send->peer];
            int *seen = &seen_r[send->peer];
            while (*seen < list->n && !receive) {
                const Action *a = &list->at[(*seen)++];
                if ((a->kind == ACT_RECV_F || a->kind == ACT_RECV_B) && a->peer == from)
                    receive = a;
            }
            bool forward = send->kind == ACT_SEND_F;
            int stage = send->stage + (forward ? 1 : -1);
            if (!receive || receive->kind != (forward ? ACT_RECV_F : ACT_RECV_B) ||
                receive->stage != stage || receive->mb != send->mb)
                return refuse(s, send->peer, *seen - 1,
                              "rank %d sends %d%s%d first: receives must stand in the order of the "
                              "sends",
                              from, stage, forward ? "F" : "B", send->mb);
        }
    }
    return OK;
}

static Status check_slots(const Schedule *s, Arena *scratch)
{
    static const char *const names[SLOT_COUNT] = {"f_to_i", "f_to_w", "i_to_w", "send"};
    for (int r = 0; r < s->n_ranks; r++) {
        const ActionList *list = &s->list[r];
        Slots counts = s->n_slots[r];
        size_t *holder[SLOT_COUNT]; /* pair + 1 of each slot; 0: free */
        for (int kind = 0; kind < SLOT_COUNT; kind++) {
            int n = *slots_field(&counts, (SlotKind)kind);
            TRY(arena_alloc(scratch, &holder[kind], n > 0 ? (size_t)n : 0, sizeof(size_t)));
        }
        for (int k = 0; k < list->n; k++) {
            const Action *a = &list->at[k];
            SlotEvent event[SLOT_EVENTS_MAX];
            int n = slot_events(s, a, event);
            for (int e = 0; e < n; e++) {
                SlotKind kind = event[e].kind;
                Slots slots = event[e].stage == a->stage ? a->at : a->to;
                int slot = *slots_field(&slots, kind);
                if (slot < 0 || slot >= *slots_field(&counts, kind))
                    return refuse(s, r, k, "%s slot %d of %d", names[kind], slot,
                                  *slots_field(&counts, kind));
                size_t pair = pair_of(s, event[e].stage, event[e].mb) + 1;
                size_t *held = &holder[kind][slot];
                if (*held != (event[e].what == SLOT_TAKE ? 0 : pair)) {
                    if (!*held)
                        return refuse(s, r, k, "%s slot %d holds nothing", names[kind], slot);
                    int by = (int)(*held - 1);
                    return refuse(s, r, k, "%s slot %d is in use by stage %d microbatch %d",
                                  names[kind], slot, by / s->n_mb, by % s->n_mb);
                }
                if (event[e].what == SLOT_TAKE) *held = pair;
                if (event[e].what == SLOT_FREE) *held = 0;
            }
        }
    }
    return OK;
}

/* Running all lists against each other. `done` has a bit for each kind of action of a pair. */
typedef struct Run {
    const Schedule *s;
    uint16_t *done; /* [pairs] */
    int *next;      /* [n_ranks] place in the list */
    int **last_use; /* [n_ranks][send slots] place + 1 of the action that wrote it last */
} Run;

static bool is_done(const Run *run, ActionKind kind, int stage, int mb)
{
    return run->done[pair_of(run->s, stage, mb)] >> kind & 1;
}

/* The kind, stage and (same) microbatch of what an action still waits for; ACT_COUNT: nothing. */
static ActionKind waits_for(const Run *run, int rank, const Action *a, int *stage, int *mb)
{
    const Schedule *s = run->s;
    *stage = a->stage;
    *mb = a->mb;
    bool backward = a->kind == ACT_I || a->kind == ACT_B;
    if ((backward || a->kind == ACT_SEND_F) && !is_done(run, ACT_F, a->stage, a->mb)) return ACT_F;
    if ((a->kind == ACT_W || a->kind == ACT_SEND_B) && !is_done(run, ACT_I, a->stage, a->mb))
        return ACT_I;
    int from = a->kind == ACT_F ? a->stage - 1 : backward ? a->stage + 1 : -1;
    if (from >= 0 && from < s->n_stages) {
        bool message = s->has_comm && s->rank_of_stage[from] != rank;
        ActionKind kind =
            a->kind == ACT_F ? (message ? ACT_SEND_F : ACT_F) : (message ? ACT_SEND_B : ACT_I);
        if (message && !is_done(run, a->kind == ACT_F ? ACT_RECV_F : ACT_RECV_B, a->stage, a->mb))
            return a->kind == ACT_F ? ACT_RECV_F : ACT_RECV_B;
        *stage = from;
        if (!is_done(run, kind, from, a->mb)) return kind;
    }
    if (s->has_slots && message_rank(s, a->kind, a->stage) >= 0) {
        int last = run->last_use[rank][a->at.send];
        if (last == 0) return ACT_COUNT;
        /* The buffer is free again once the peer has posted its receive. */
        const Action *user = &s->list[rank].at[last - 1];
        *stage = consumer_stage(s, user->kind, user->stage);
        *mb = user->mb;
        ActionKind receive = user->kind == ACT_F ? ACT_RECV_F : ACT_RECV_B;
        if (!is_done(run, receive, *stage, *mb)) return receive;
    }
    return ACT_COUNT;
}

static void mark_done(Run *run, int rank, int k)
{
    const Action *a = &run->s->list[rank].at[k];
    unsigned bits = a->kind == ACT_B ? 1u << ACT_B | 1u << ACT_I | 1u << ACT_W : 1u << a->kind;
    run->done[pair_of(run->s, a->stage, a->mb)] |= (uint16_t)bits;
    if (run->s->has_slots && message_rank(run->s, a->kind, a->stage) >= 0)
        run->last_use[rank][a->at.send] = k + 1;
}

static Status check_run(const Schedule *s, Arena *scratch)
{
    Run run = {.s = s};
    TRY(arena_alloc(scratch, &run.done, n_pairs(s), sizeof *run.done));
    TRY(arena_alloc(scratch, &run.next, (size_t)s->n_ranks, sizeof(int)));
    TRY(arena_alloc(scratch, &run.last_use, (size_t)s->n_ranks, sizeof(int *)));
    for (int r = 0; s->has_slots && r < s->n_ranks; r++)
        TRY(arena_alloc(scratch, &run.last_use[r], (size_t)s->n_slots[r].send, sizeof(int)));
    int stage, mb;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->n_ranks; r++)
            for (int *k = &run.next[r]; *k < s->list[r].n; moved = true) {
                if (waits_for(&run, r, &s->list[r].at[*k], &stage, &mb) != ACT_COUNT) break;
                mark_done(&run, r, (*k)++);
            }
    }
    /* The reason is found on the rank that waits for something of its own list, or for all in a ring. */
    int stuck = -1;
    bool own_fault = false;
    for (int r = 0; r < s->n_ranks && !own_fault; r++) {
        if (run.next[r] >= s->list[r].n) continue;
        waits_for(&run, r, &s->list[r].at[run.next[r]], &stage, &mb);
        own_fault = s->rank_of_stage[stage] == r;
        if (own_fault || stuck < 0) stuck = r;
    }
    if (stuck < 0) return OK;
    int k = run.next[stuck];
    ActionKind kind = waits_for(&run, stuck, &s->list[stuck].at[k], &stage, &mb);
    char text[ACTION_TEXT_MAX];
    action_text(text, kind, stage, mb);
    if (own_fault) return refuse(s, stuck, k, "stands before %s on the same rank", text);
    return refuse(s, stuck, k, "deadlock: waits for %s of rank %d, which does not get there", text,
                  s->rank_of_stage[stage]);
}

static Status find_order(const Schedule *s, bool *ascending, Arena *scratch)
{
    int(*last_s)[ACT_COUNT]; /* [n_stages] microbatch + 1 */
    TRY(arena_alloc(scratch, &last_s, (size_t)s->n_stages, sizeof *last_s));
    *ascending = true;
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            if (!action_is_compute(a->kind)) continue;
            /* B counts as both its parts: where I, W and B are mixed, the sums are formed in their common order. */
            for (int kind = 0; kind < ACT_B; kind++) {
                if (kind != (int)a->kind && !(a->kind == ACT_B && kind != ACT_F)) continue;
                int *last = &last_s[a->stage][kind];
                if (a->mb < *last) *ascending = false;
                *last = a->mb + 1;
            }
        }
    return OK;
}

static Status check(const Schedule *s, bool *ascending, Arena *scratch)
{
    Places places;
    TRY(check_placement(s));
    for (int kind = 0; kind < ACT_COUNT; kind++)
        TRY(arena_alloc(scratch, &places.of[kind], n_pairs(s), sizeof(int)));
    TRY(index_actions(s, &places));
    TRY(check_counts(s, &places));
    TRY(check_reduce(s, &places));
    if (s->has_comm) TRY(check_message_order(s, scratch));
    if (s->has_slots) TRY(check_slots(s, scratch));
    TRY(check_run(s, scratch));
    return ascending ? find_order(s, ascending, scratch) : OK;
}

Status schedule_check(const Schedule *s, bool *ascending, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    Status status = check(s, ascending, scratch);
    arena_rewind(scratch, mark);
    return status;
}
