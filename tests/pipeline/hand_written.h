#pragma once
/*
 * Orders with virtual stages, V placement and split backward, written out for the tests: they show
 * that passes, check, simulation and executor carry more than what one stage per rank needs.
 */
#include "pipeline/schedule.h"

typedef struct Hand {
    int p, m, v;
    bool vee; /* V placement */
} Hand;

static inline int hand_min(int a, int b)
{
    return a < b ? a : b;
}

/* ZB-H1: rank r keeps r weight gradients in stock. */
static inline void hand_zb_h1(const Hand *h, int r, ActionList *out)
{
    int w = hand_min(h->p - 1 - r, h->m), pending = 0;
    for (int i = 0; i < w; i++) schedule_emit(out, ACT_F, r, i);
    for (int k = 0; k < h->m; k++) {
        if (w + k < h->m) schedule_emit(out, ACT_F, r, w + k);
        schedule_emit(out, ACT_I, r, k);
        if (k >= r) schedule_emit(out, ACT_W, r, pending++);
    }
    while (pending < h->m) schedule_emit(out, ACT_W, r, pending++);
}

/* Interleaved 1F1B for m divisible by p: groups of p microbatches, chunk after chunk. */
static inline void hand_interleaved(const Hand *h, int r, ActionList *out)
{
    int p = h->p, v = h->v, n = h->m * v, w = hand_min(2 * (p - 1 - r) + (v - 1) * p, n);
    for (int k = 0; k < n + w; k++) {
        for (int backward = 0; backward < 2; backward++) {
            int step = backward ? k - w : k;
            if (step < 0 || step >= n) continue;
            int group = step / (p * v), chunk = step / p % v, mb = group * p + step % p;
            if (backward) chunk = v - 1 - chunk;
            schedule_emit(out, backward ? ACT_B : ACT_F, chunk * p + r, mb);
        }
    }
}

typedef struct HandCounters {
    int f[2], i[2], w[2], m;
} HandCounters;

static inline void hand_next(ActionList *out, ActionKind kind, int *counter, int stage, int m)
{
    int mb = (*counter)++;
    if (mb < m) schedule_emit(out, kind, stage, mb);
}

/* ZBV: a = r going down the V, b = 2p-1-r coming back. */
static inline void hand_zbv(const Hand *h, int r, ActionList *out)
{
    int p = h->p, m = h->m, n = m > 2 * p - 1 ? m : 2 * p - 1, stage[2] = {r, 2 * p - 1 - r};
    HandCounters c = {{0}, {0}, {0}, m};
#define NEXT(kind, letter, x) hand_next(out, kind, &c.letter[x], stage[x], m)
    for (int k = 0; k < 2 * (p - r) - 1; k++) NEXT(ACT_F, f, 0);
    for (int k = 0; k < r; k++) {
        NEXT(ACT_F, f, 1);
        NEXT(ACT_F, f, 0);
    }
    for (int k = 0; k < p - r; k++) {
        NEXT(ACT_F, f, 1);
        NEXT(ACT_I, i, 1);
        NEXT(ACT_W, w, 1);
    }
    while (c.f[1] < c.f[0] || c.f[0] < n) {
        if (c.f[0] < n) NEXT(ACT_F, f, 0);
        NEXT(ACT_I, i, 0);
        NEXT(ACT_W, w, 0);
        NEXT(ACT_F, f, 1);
        NEXT(ACT_I, i, 1);
        NEXT(ACT_W, w, 1);
    }
    for (int k = 0; k < r; k++) {
        NEXT(ACT_I, i, 0);
        NEXT(ACT_I, i, 1);
    }
    for (int k = 0; k < p - r; k++) {
        NEXT(ACT_I, i, 0);
        NEXT(ACT_W, w, 0);
    }
    while (c.w[1] < n) NEXT(ACT_W, w, 1);
    while (c.w[0] < n) NEXT(ACT_W, w, 0);
#undef NEXT
}

/* Compute actions only. */
static inline Status hand_make(Schedule **out, const char *name, Hand h,
                               void (*order)(const Hand *h, int rank, ActionList *out),
                               Arena *arena)
{
    Schedule *s;
    TRY(schedule_new(&s, h.p, h.p * h.v, h.m, 3 * h.m * h.v, arena));
    s->name = name;
    for (int stage = 0; stage < s->n_stages; stage++)
        s->rank_of_stage[stage] = h.vee && stage >= h.p ? 2 * h.p - 1 - stage : stage % h.p;
    for (int r = 0; r < h.p; r++) order(&h, r, &s->list[r]);
    *out = s;
    return OK;
}

static inline Status hand_complete(Schedule *s, Arena *arena)
{
    TRY(schedule_check(s, &s->ascending, arena));
    TRY(schedule_add_comm(s, arena));
    TRY(schedule_check(s, NULL, arena));
    TRY(schedule_hoist_receives(s, arena));
    TRY(schedule_check(s, NULL, arena));
    TRY(schedule_assign_slots(s, arena));
    return schedule_check(s, NULL, arena);
}
