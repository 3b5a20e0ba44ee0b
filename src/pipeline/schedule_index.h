#pragma once
/** What the passes share: places of actions, and what passes the borders of a stage. Internal to pipeline. */
#include "pipeline/schedule.h"

static inline size_t pair_of(const Schedule *s, int stage, int mb)
{
    return (size_t)stage * (size_t)s->n_mb + (size_t)mb;
}

static inline size_t n_pairs(const Schedule *s)
{
    return (size_t)s->n_stages * (size_t)s->n_mb;
}

/** The stage that gets what this compute action makes (y of F, dx of I and B); -1: none. */
static inline int consumer_stage(const Schedule *s, ActionKind kind, int stage)
{
    if (kind == ACT_F) return stage + 1 < s->n_stages ? stage + 1 : -1;
    return kind == ACT_I || kind == ACT_B ? stage - 1 : -1;
}

/** The rank that a message of this action goes to; -1: no message. */
static inline int message_rank(const Schedule *s, ActionKind kind, int stage)
{
    int to = consumer_stage(s, kind, stage);
    if (to < 0 || s->rank_of_stage[to] == s->rank_of_stage[stage]) return -1;
    return s->rank_of_stage[to];
}

/** What an action does to a slot. Takes come before frees: input and output never share memory. */
typedef struct SlotEvent {
    enum { SLOT_TAKE, SLOT_USE, SLOT_FREE } what;
    SlotKind kind;
    int stage,
        mb; /* whose slot; another stage than the action's: written on its behalf (Action.to) */
} SlotEvent;

enum { SLOT_EVENTS_MAX = 12 };
/** The events of an action of a schedule with communication; returns their number. A send slot is freed by its SEND. */
int slot_events(const Schedule *s, const Action *action, SlotEvent event[SLOT_EVENTS_MAX]);
