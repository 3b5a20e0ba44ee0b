#include "pipeline/executor.h"

#include "base/clock.h"
#include "pipeline/schedule_text.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

/* One for each direction, consuming stage and microbatch: unique within a step, and steps do not mix since
 * messages of a tag keep their order. */
static uint64_t tag_of(const Schedule *s, bool forward, int stage, int mb)
{
    uint64_t direction = forward ? 0 : 1;
    return (direction * (uint64_t)s->n_stages + (uint64_t)stage) * (uint64_t)s->n_mb + (uint64_t)mb;
}

Status pipeline_create(Pipeline **out, const Schedule *s, Comm *pp, const StageRef *stages,
                       Arena *arena)
{
    assert(s->has_comm && s->has_slots);
    if (pp->size != s->n_ranks)
        return FAIL(ERR_USAGE, "schedule %s: is for %d ranks, found %d", s->name, s->n_ranks,
                    pp->size);
    for (int stage = 0; stage < s->n_stages; stage++)
        if (s->rank_of_stage[stage] == pp->rank && !stages[stage].ops)
            return FAIL(ERR_USAGE, "schedule %s: stage %d is on rank %d, which does not have it",
                        s->name, stage, pp->rank);
    Pipeline *p;
    TRY(arena_alloc(arena, &p, 1, sizeof *p));
    p->schedule = s;
    p->pp = pp;
    p->stages = stages;
    p->rank = pp->rank;
    p->list = s->list[p->rank];
    Slots n = s->n_slots[p->rank];
    TRY(arena_alloc(arena, &p->time, (size_t)p->list.n, sizeof *p->time));
    TRY(arena_alloc(arena, &p->name, (size_t)p->list.n, sizeof *p->name));
    TRY(arena_alloc(arena, &p->x, (size_t)n.f_to_i, sizeof *p->x));
    TRY(arena_alloc(arena, &p->dy, (size_t)n.i_to_w, sizeof *p->dy));
    TRY(arena_alloc(arena, &p->recv_f, (size_t)n.f_to_i, sizeof *p->recv_f));
    TRY(arena_alloc(arena, &p->recv_b, (size_t)n.i_to_w, sizeof *p->recv_b));
    TRY(arena_alloc(arena, &p->sent, (size_t)n.send, sizeof *p->sent));
    TRY(arena_alloc(arena, &p->send_buffer, (size_t)n.send, sizeof *p->send_buffer));
    for (int k = 0; k < p->list.n; k++) {
        const Action *a = &p->list.at[k];
        char text[ACTION_TEXT_MAX];
        snprintf(p->name[k], sizeof p->name[k], "%.15s",
                 action_text(text, a->kind, a->stage, a->mb));
    }
    arena_init(&p->send, "send");
    *out = p;
    return OK;
}

void pipeline_free(Pipeline **pipeline)
{
    if (*pipeline) arena_free(&(*pipeline)->send);
    *pipeline = NULL;
}

/* Every buffer fits the longest message of the step; none is on its way between steps. */
static void grow_send_buffers(Pipeline *p, MicroBatch *const *mb)
{
    const Schedule *s = p->schedule;
    int n = s->n_slots[p->rank].send;
    size_t longest = 0;
    for (int stage = 0; stage < s->n_stages && n > 0; stage++) {
        if (s->rank_of_stage[stage] != p->rank) continue;
        const StageRef *ref = &p->stages[stage];
        for (int i = 0; i < s->n_mb; i++) {
            size_t bytes = handover_bytes(ref->ops->border(ref->self, mb[i]));
            if (bytes > longest) longest = bytes;
        }
    }
    if (longest <= p->send_bytes) return;
    arena_reset(&p->send);
    for (int slot = 0; slot < n; slot++) p->send_buffer[slot] = arena_take(&p->send, longest);
    p->send_bytes = longest;
}

static void wait_for(Pipeline *p, Posted *message, const char *what)
{
    if (!message->request.node) return;
    breadcrumb()->op = what;
    comm_must(comm_wait(p->pp, &message->request));
    breadcrumb()->op = NULL;
    p->time[message->action].end = clock_seconds();
}

static void look_at(Pipeline *p, Posted *message, int n)
{
    for (int i = 0; i < n; i++) {
        bool done = false;
        if (!message[i].request.node) continue;
        comm_must(comm_look(p->pp, &message[i].request, &done));
        if (done) p->time[message[i].action].end = clock_seconds();
    }
}

static void look_at_messages(Pipeline *p)
{
    Slots n = p->schedule->n_slots[p->rank];
    look_at(p, p->recv_f, n.f_to_i);
    look_at(p, p->recv_b, n.i_to_w);
    look_at(p, p->sent, n.send);
}

/* Where an F writes y, and an I dx: a send buffer, the neighbour's memory on this rank, or nowhere. */
static HandOver output_of(Pipeline *p, const Action *a, MicroBatch *const *mb)
{
    const StageRef *self = &p->stages[a->stage];
    if (a->at.send >= 0) {
        wait_for(p, &p->sent[a->at.send], "send");
        return handover_at(self->ops->border(self->self, mb[a->mb]), p->send_buffer[a->at.send]);
    }
    if (a->kind == ACT_F && a->to.f_to_i >= 0) {
        const StageRef *next = &p->stages[a->stage + 1];
        return p->x[a->to.f_to_i] = next->ops->open_forward(next->self, a->to, mb[a->mb]);
    }
    if (a->kind != ACT_F && a->to.i_to_w >= 0) {
        const StageRef *before = &p->stages[a->stage - 1];
        return p->dy[a->to.i_to_w] = before->ops->open_backward(before->self, a->to, mb[a->mb]);
    }
    return (HandOver){0};
}

static void run_forward(Pipeline *p, const Action *a, MicroBatch *const *mb, ForwardMode mode,
                        ActionTime *time)
{
    const StageRef *self = &p->stages[a->stage];
    HandOver *x = &p->x[a->at.f_to_i];
    wait_for(p, &p->recv_f[a->at.f_to_i], "receive");
    HandOver y = output_of(p, a, mb);
    time->begin = clock_seconds();
    if (a->stage == 0) *x = self->ops->open_forward(self->self, a->at, mb[a->mb]);
    self->ops->forward(self->self, a->at, mb[a->mb], y, *x, mode);
}

static void run_backward_input(Pipeline *p, const Action *a, MicroBatch *const *mb,
                               ActionTime *time)
{
    const StageRef *self = &p->stages[a->stage];
    HandOver *dy = &p->dy[a->at.i_to_w];
    wait_for(p, &p->recv_b[a->at.i_to_w], "receive");
    HandOver dx = output_of(p, a, mb);
    time->begin = clock_seconds();
    if (a->stage == p->schedule->n_stages - 1)
        *dy = self->ops->open_backward(self->self, a->at, mb[a->mb]);
    self->ops->backward_input(self->self, a->at, mb[a->mb], dx, *dy);
}

static void send(Pipeline *p, int k, MicroBatch *const *mb)
{
    const Action *a = &p->list.at[k];
    const StageRef *self = &p->stages[a->stage];
    bool forward = a->kind == ACT_SEND_F;
    size_t bytes = handover_bytes(self->ops->border(self->self, mb[a->mb]));
    CommRequest request =
        p->pp->isend(p->pp, p->send_buffer[a->at.send], bytes, a->peer,
                     tag_of(p->schedule, forward, a->stage + (forward ? 1 : -1), a->mb));
    p->sent[a->at.send] = (Posted){request, k};
}

static void receive(Pipeline *p, int k, MicroBatch *const *mb)
{
    const Action *a = &p->list.at[k];
    const StageRef *self = &p->stages[a->stage];
    bool forward = a->kind == ACT_RECV_F;
    HandOver *into = forward ? &p->x[a->at.f_to_i] : &p->dy[a->at.i_to_w];
    Posted *message = forward ? &p->recv_f[a->at.f_to_i] : &p->recv_b[a->at.i_to_w];
    *into = (forward ? self->ops->open_forward : self->ops->open_backward)(self->self, a->at,
                                                                           mb[a->mb]);
    CommRequest request = p->pp->irecv(p->pp, into->hidden_td.data, handover_bytes(*into), a->peer,
                                       tag_of(p->schedule, forward, a->stage, a->mb));
    *message = (Posted){request, k};
}

static void run_action(Pipeline *p, int k, MicroBatch *const *mb, ForwardMode mode)
{
    const Action *a = &p->list.at[k];
    const StageRef *self = &p->stages[a->stage];
    ActionTime *time = &p->time[k];
    breadcrumb()->action = p->name[k];
    time->wait = time->begin = clock_seconds();
    switch (a->kind) {
    case ACT_F: run_forward(p, a, mb, mode, time); break;
    case ACT_I: run_backward_input(p, a, mb, time); break;
    case ACT_W: self->ops->backward_weight(self->self, a->at, mb[a->mb]); break;
    case ACT_B:
        run_backward_input(p, a, mb, time);
        self->ops->backward_weight(self->self, a->at, mb[a->mb]);
        break;
    case ACT_SEND_F:
    case ACT_SEND_B: send(p, k, mb); break;
    case ACT_RECV_F:
    case ACT_RECV_B: receive(p, k, mb); break;
    case ACT_REDUCE: p->reduce.start(p->reduce.self, a->stage); break;
    case ACT_COUNT: break;
    }
    if (!action_is_compute(a->kind)) return;
    time->end = clock_seconds();
    p->busy += time->end - time->begin;
    p->first = fmin(p->first, time->begin);
    p->last = time->end;
}

void pipeline_step(Pipeline *p, MicroBatch *const *mb, ForwardMode mode)
{
    assert((mode != FORWARD_TRAIN) == p->schedule->forward_only);
    p->busy = 0;
    p->first = INFINITY;
    grow_send_buffers(p, mb);
    for (int k = 0; k < p->list.n; k++) {
        if (p->schedule->has_reduce) p->reduce.advance(p->reduce.self);
        run_action(p, k, mb, mode);
        if (p->watch_messages) look_at_messages(p);
    }
    for (int slot = 0; slot < p->schedule->n_slots[p->rank].send; slot++)
        wait_for(p, &p->sent[slot], "send");
    breadcrumb()->action = NULL;
}
