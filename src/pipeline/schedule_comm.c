#include "pipeline/schedule_index.h"

#include <limits.h>
#include <string.h>

/* A receive to be put in front of an action of the receiving rank's list. */
typedef struct Receive {
    struct Receive *next;
    Action action;
} Receive;

/* positions of F and of I or B in their rank's list, by pair */
static void find_consumers(const Schedule *s, int *forward, int *backward)
{
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            size_t pair = pair_of(s, a->stage, a->mb);
            if (a->kind == ACT_F) forward[pair] = k;
            if (a->kind == ACT_I || a->kind == ACT_B) backward[pair] = k;
        }
}

static Status complete_list(const Schedule *s, int rank, Receive *const *before, int n_receives,
                            ActionList *out, Arena *arena)
{
    const ActionList *list = &s->list[rank];
    int n_sends = 0;
    for (int k = 0; k < list->n; k++)
        n_sends += message_rank(s, list->at[k].kind, list->at[k].stage) >= 0;
    TRY(arena_alloc(arena, &out->at, (size_t)(list->n + n_sends + n_receives), sizeof(Action)));
    for (int k = 0; k < list->n; k++) {
        for (const Receive *receive = before[k]; receive; receive = receive->next)
            out->at[out->n++] = receive->action;
        Action action = list->at[k];
        out->at[out->n++] = action;
        action.peer = message_rank(s, action.kind, action.stage);
        if (action.peer < 0) continue;
        action.kind = action.kind == ACT_F ? ACT_SEND_F : ACT_SEND_B;
        out->at[out->n++] = action;
    }
    return OK;
}

Status schedule_add_comm(Schedule *s, Arena *arena)
{
    size_t longest = 0;
    for (int r = 0; r < s->n_ranks; r++)
        if ((size_t)s->list[r].n > longest) longest = (size_t)s->list[r].n;

    int *forward, *backward, *earliest_r, *n_receives_r;
    Receive ***before_r; /* [n_ranks][list.n] */
    TRY(arena_alloc(arena, &forward, n_pairs(s), sizeof(int)));
    TRY(arena_alloc(arena, &backward, n_pairs(s), sizeof(int)));
    TRY(arena_alloc(arena, &earliest_r, (size_t)s->n_ranks, sizeof(int)));
    TRY(arena_alloc(arena, &n_receives_r, (size_t)s->n_ranks, sizeof(int)));
    TRY(arena_alloc(arena, &before_r, (size_t)s->n_ranks, sizeof *before_r));
    for (int r = 0; r < s->n_ranks; r++)
        TRY(arena_alloc(arena, &before_r[r], (size_t)s->list[r].n, sizeof **before_r));
    find_consumers(s, forward, backward);

    for (int from = 0; from < s->n_ranks; from++) {
        for (int r = 0; r < s->n_ranks; r++) earliest_r[r] = INT_MAX;
        /* Backwards over the sends: a receive stands in front of its consumer, and never behind the
         * receive of what the same rank sends later. */
        for (int k = s->list[from].n - 1; k >= 0; k--) {
            const Action *a = &s->list[from].at[k];
            int to = message_rank(s, a->kind, a->stage);
            if (to < 0) continue;
            int stage = consumer_stage(s, a->kind, a->stage);
            int place = (a->kind == ACT_F ? forward : backward)[pair_of(s, stage, a->mb)];
            if (place > earliest_r[to]) place = earliest_r[to];
            earliest_r[to] = place;
            Receive *receive;
            TRY(arena_alloc(arena, &receive, 1, sizeof *receive));
            receive->action = *a;
            receive->action.kind = a->kind == ACT_F ? ACT_RECV_F : ACT_RECV_B;
            receive->action.stage = stage;
            receive->action.peer = from;
            receive->next = before_r[to][place];
            before_r[to][place] = receive;
            n_receives_r[to]++;
        }
    }

    ActionList *list_r;
    TRY(arena_alloc(arena, &list_r, (size_t)s->n_ranks, sizeof *list_r));
    for (int r = 0; r < s->n_ranks; r++)
        TRY(complete_list(s, r, before_r[r], n_receives_r[r], &list_r[r], arena));
    s->list = list_r;
    s->has_comm = true;
    return OK;
}

/* Slots of a kind in use while each action runs; returns the most. */
static int count_live(const Schedule *s, const ActionList *list, SlotKind kind, int *live)
{
    int now = 0, peak = 0;
    for (int k = 0; k < list->n; k++) {
        SlotEvent event[SLOT_EVENTS_MAX];
        int n = slot_events(s, &list->at[k], event), freed = 0;
        for (int e = 0; e < n; e++) {
            if (event[e].kind != kind) continue;
            now += event[e].what == SLOT_TAKE;
            freed += event[e].what == SLOT_FREE;
        }
        live[k] = now;
        if (now > peak) peak = now;
        now -= freed;
    }
    return peak;
}

/* Where the receive at `place` may go: in front of the compute action before it. */
static int earlier_place(const ActionList *list, int place, const int *live, int peak)
{
    for (int k = place - 1; k >= 0; k--) {
        const Action *passed = &list->at[k];
        bool is_receive = passed->kind == ACT_RECV_F || passed->kind == ACT_RECV_B;
        if (live[k] >= peak) return place;
        if (is_receive && passed->peer == list->at[place].peer) return place;
        if (action_is_compute(passed->kind)) return k;
    }
    return place;
}

static void rotate_right(int *x, int from, int to)
{
    int last = x[to];
    memmove(&x[from + 1], &x[from], (size_t)(to - from) * sizeof *x);
    x[from] = last;
}

Status schedule_hoist_receives(Schedule *s, Arena *arena)
{
    for (int r = 0; r < s->n_ranks; r++) {
        ActionList *list = &s->list[r];
        ArenaMark mark = arena_mark(arena);
        int *live[2], peak[2]; /* of f_to_i and i_to_w, which RECV_F and RECV_B take */
        for (int b = 0; b < 2; b++) {
            TRY(arena_alloc(arena, &live[b], (size_t)list->n, sizeof(int)));
            peak[b] = count_live(s, list, b ? SLOT_I_TO_W : SLOT_F_TO_I, live[b]);
        }
        for (int k = 0; k < list->n; k++) {
            Action receive = list->at[k];
            if (receive.kind != ACT_RECV_F && receive.kind != ACT_RECV_B) continue;
            int b = receive.kind == ACT_RECV_B;
            int place = earlier_place(list, k, live[b], peak[b]);
            if (place == k) continue;
            memmove(&list->at[place + 1], &list->at[place], (size_t)(k - place) * sizeof(Action));
            list->at[place] = receive;
            rotate_right(live[!b], place, k);
            live[!b][place] = place > 0 ? live[!b][place - 1] : 0;
            rotate_right(live[b], place, k);
            for (int j = place + 1; j <= k; j++) live[b][j]++;
            live[b][place] = live[b][place + 1];
        }
        arena_rewind(arena, mark);
    }
    return OK;
}

Status schedule_add_reduce(Schedule *s, Arena *arena)
{
    int *last_s; /* [n_stages] place of the last W or B in its rank's list */
    TRY(arena_alloc(arena, &last_s, (size_t)s->n_stages, sizeof(int)));
    for (int r = 0; r < s->n_ranks; r++) {
        const ActionList *list = &s->list[r];
        for (int k = 0; k < list->n; k++)
            if (list->at[k].kind == ACT_W || list->at[k].kind == ACT_B)
                last_s[list->at[k].stage] = k;
        ActionList longer = {.n = 0};
        TRY(arena_alloc(arena, &longer.at, (size_t)(list->n + s->n_stages), sizeof(Action)));
        for (int k = 0; k < list->n; k++) {
            const Action *a = &list->at[k];
            bool last = (a->kind == ACT_W || a->kind == ACT_B) && last_s[a->stage] == k;
            longer.at[longer.n++] = *a;
            /* Another rank waits for what it made: that goes first. */
            if (last && k + 1 < list->n && list->at[k + 1].kind == ACT_SEND_B)
                longer.at[longer.n++] = list->at[++k];
            if (last) schedule_emit(&longer, ACT_REDUCE, a->stage, a->mb);
        }
        s->list[r] = longer;
    }
    s->has_reduce = true;
    return OK;
}
