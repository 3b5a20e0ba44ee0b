/*
 * The executor on thread ranks against the same arithmetic done in one place, bit for bit. The stage is a
 * toy: y = w x + 0.1 (stage + 1), dx = w dy + 0.01 x. Freed slots are filled with NaN, so memory used
 * too long or too early shows in the numbers.
 */
#include "schedule_test.h"

#include "base/clock.h"
#include "base/rng.h"
#include "comm/world.h"
#include "pipeline/timeline.h"

#include <math.h>

enum { D = 3, T_MAX = 64, STAGES_MAX = 16, MB_MAX = 16 };

/* One buffer of a rank's slot, with room for what stands behind the hidden state. */
enum { BUFFER = T_MAX * D + 32 };
typedef float Buffer[BUFFER];

typedef struct Memory {
    Buffer *f_to_i, *f_to_w, *i_to_w; /* by slot */
    Slots n;
} Memory;

typedef struct Toy {
    int stage, n_stages, n_mb;
    float w, dw, db;
    double out[MB_MAX]; /* last stage: sum of y */
    Memory *memory;
    uint64_t delay_key; /* 0: none */
    int fixed_us;       /* F takes this long, I and W too */
} Toy;

static void poison(float *x)
{
    for (int i = 0; i < BUFFER; i++) x[i] = NAN;
}

static HandOver row_of(float *x, const MicroBatch *mb)
{
    HandOver shape = {.hidden_td = tensor2(NULL, DTYPE_F32, mb->n_tokens, D),
                      .routed_2e = tensor2(NULL, DTYPE_F64, 2, 1)};
    return x ? handover_at(shape, x) : shape;
}

/* The second tensor says which stage made it, and of which microbatch. */
static void sign(HandOver out, double stage, const MicroBatch *mb)
{
    double *at = out.routed_2e.data;
    if (at) at[0] = stage, at[1] = mb->index;
}

static void assert_signed(HandOver in, double stage, const MicroBatch *mb)
{
    const double *at = in.routed_2e.data;
    assert_true(at[0] == stage && at[1] == mb->index);
}

static void delay(const Toy *toy, int what, const MicroBatch *mb)
{
    if (toy->fixed_us) clock_sleep_us(toy->fixed_us);
    if (!toy->delay_key) return;
    uint64_t bits = rng_bits(toy->delay_key, (uint64_t)(what * 1000 + toy->stage * 50 + mb->index));
    if (bits % 3 == 0) clock_sleep_us((int)(bits >> 8) & 511);
}

static HandOver toy_open_forward(void *self, Slots at, const MicroBatch *mb)
{
    const Toy *toy = self;
    poison(toy->memory->f_to_i[at.f_to_i]);
    return toy->stage == 0 ? (HandOver){0} : row_of(toy->memory->f_to_i[at.f_to_i], mb);
}

static HandOver toy_open_backward(void *self, Slots at, const MicroBatch *mb)
{
    const Toy *toy = self;
    poison(toy->memory->i_to_w[at.i_to_w]);
    return toy->stage == toy->n_stages - 1 ? (HandOver){0}
                                           : row_of(toy->memory->i_to_w[at.i_to_w], mb);
}

static HandOver toy_border(void *self, const MicroBatch *mb)
{
    (void)self;
    return row_of(NULL, mb);
}

static void toy_forward(void *self, Slots at, const MicroBatch *mb, HandOver y, HandOver x,
                        ForwardMode mode)
{
    Toy *toy = self;
    float *mine = toy->memory->f_to_i[at.f_to_i], *kept = toy->memory->f_to_w[at.f_to_w];
    int64_t n = mb->n_tokens * D;
    delay(toy, 1, mb);
    if (toy->stage == 0)
        for (int64_t i = 0; i < n; i++) mine[i] = (float)(mb->id_t[i / D] + 10 * (i % D)) / 7;
    else
        assert_ptr_equal(x.hidden_td.data, mine), assert_signed(x, toy->stage - 1, mb);
    sign(y, toy->stage, mb);
    assert_int_equal(tensor_is_null(y.hidden_td), toy->stage == toy->n_stages - 1);
    float *out = y.hidden_td.data;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float value = toy->w * mine[i] + 0.1f * (float)(toy->stage + 1);
        if (out)
            out[i] = value;
        else
            sum += value;
        kept[i] = mine[i];
    }
    toy->out[mb->index] = sum;
    if (mode != FORWARD_TRAIN) poison(mine), poison(kept);
}

static void toy_backward_input(void *self, Slots at, const MicroBatch *mb, HandOver dx, HandOver dy)
{
    Toy *toy = self;
    float *x = toy->memory->f_to_i[at.f_to_i], *mine = toy->memory->i_to_w[at.i_to_w];
    int64_t n = mb->n_tokens * D;
    delay(toy, 2, mb);
    if (toy->stage == toy->n_stages - 1)
        for (int64_t i = 0; i < n; i++) mine[i] = 1 + 0.001f * x[i];
    else
        assert_ptr_equal(dy.hidden_td.data, mine), assert_signed(dy, -(toy->stage + 1), mb);
    sign(dx, -toy->stage, mb);
    assert_int_equal(tensor_is_null(dx.hidden_td), toy->stage == 0);
    float *out = dx.hidden_td.data;
    for (int64_t i = 0; i < n; i++) {
        toy->db += mine[i];
        if (out) out[i] = toy->w * mine[i] + 0.01f * x[i];
    }
    poison(x);
}

static void toy_backward_weight(void *self, Slots at, const MicroBatch *mb)
{
    Toy *toy = self;
    float *x = toy->memory->f_to_w[at.f_to_w], *dy = toy->memory->i_to_w[at.i_to_w];
    delay(toy, 3, mb);
    for (int64_t i = 0; i < mb->n_tokens * D; i++) toy->dw += x[i] * dy[i];
    poison(x), poison(dy);
}

static const StageOps toy_ops = {
    .open_forward = toy_open_forward,
    .open_backward = toy_open_backward,
    .border = toy_border,
    .forward = toy_forward,
    .backward_input = toy_backward_input,
    .backward_weight = toy_backward_weight,
};

static Toy toy_new(int stage, const Schedule *s, Memory *memory)
{
    return (Toy){.stage = stage,
                 .n_stages = s->n_stages,
                 .n_mb = s->n_mb,
                 .w = 0.9f + 0.05f * (float)stage,
                 .memory = memory};
}

static Memory memory_new(Slots n, Arena *own)
{
    return (Memory){.f_to_i = ARENA_NEW(own, Buffer, n.f_to_i + 1),
                    .f_to_w = ARENA_NEW(own, Buffer, n.f_to_w + 1),
                    .i_to_w = ARENA_NEW(own, Buffer, n.i_to_w + 1),
                    .n = n};
}

/* Rows of unequal length; later steps have longer ones. */
static void make_rows(MicroBatch *mb, int32_t (*id)[T_MAX], int n_mb, int step)
{
    for (int i = 0; i < n_mb; i++) {
        mb[i] = (MicroBatch){
            .index = i, .n_tokens = 1 + (i * 7 + step * 5) % 23 + 9 * step, .id_t = id[i]};
        for (int t = 0; t < T_MAX; t++) id[i][t] = (i * 31 + t * 17 + step) % 101;
    }
}

typedef struct Job {
    const Schedule *s;
    ForwardMode mode;
    bool delays;
    int fixed_us;
    Toy toy[STAGES_MAX]; /* as the ranks left them; each written by its rank */
    double bubble;       /* of the last step; written by rank 0 */
} Job;

enum { N_STEPS = 3 };

/* Where in its rank's list stands F (or the I or B) of a pair? */
static int place_of(const Schedule *s, bool forward, int stage, int mb)
{
    const ActionList *list = &s->list[s->rank_of_stage[stage]];
    for (int k = 0; k < list->n; k++) {
        const Action *a = &list->at[k];
        bool kind = forward ? a->kind == ACT_F : a->kind == ACT_I || a->kind == ACT_B;
        if (kind && a->stage == stage && a->mb == mb) return k;
    }
    return -1;
}

/* One thing after the other on a rank, and what passes between ranks arrives between its end and its use. */
static Status check_timeline(const ScheduleReport *report, const Schedule *s)
{
    for (int r = 0; r < s->n_ranks; r++) {
        const RankReport *own = &report->rank[r];
        double before = -INFINITY, busy = 0;
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            bool right = own->wait[k] <= own->start[k] && own->start[k] <= own->end[k];
            if (action_is_compute(a->kind)) {
                right = right && own->wait[k] >= before - 1e-6;
                before = own->end[k];
                busy += own->end[k] - own->start[k];
            } else if (a->kind == ACT_RECV_F || a->kind == ACT_RECV_B) {
                bool forward = a->kind == ACT_RECV_F;
                int from = a->stage + (forward ? -1 : 1), made = place_of(s, forward, from, a->mb),
                    used = place_of(s, forward, a->stage, a->mb);
                right = right && own->end[k] >= report->rank[a->peer].end[made] &&
                        own->end[k] <= own->start[used];
            }
            if (!right)
                return FAIL(ERR_FAILED, "%s: rank %d: action %d: waits %g, begins %g, ends %g",
                            s->name, r, k, own->wait[k], own->start[k], own->end[k]);
        }
        if (fabs(busy - own->busy) > 1e-9 * busy || report->work < own->busy ||
            report->makespan < before - 1e-6)
            return FAIL(ERR_FAILED, "rank %d: busy %g of %g", r, own->busy, report->makespan);
    }
    return OK;
}

static Status rank_body(Comm *world, void *arg)
{
    Job *job = arg;
    const Schedule *s = job->s;
    Arena own;
    arena_init(&own, "rank");
    Memory memory = memory_new(s->n_slots[world->rank], &own);
    StageRef *stages = ARENA_NEW(&own, StageRef, s->n_stages);
    for (int stage = 0; stage < s->n_stages; stage++) {
        if (s->rank_of_stage[stage] != world->rank) continue;
        job->toy[stage] = toy_new(stage, s, &memory);
        job->toy[stage].delay_key = job->delays ? rng_key(5, "delays") : 0;
        job->toy[stage].fixed_us = job->fixed_us;
        stages[stage] = (StageRef){&toy_ops, &job->toy[stage]};
    }
    Pipeline *pipeline;
    TRY(pipeline_create(&pipeline, s, world, stages, &own));
    MicroBatch mb[MB_MAX], *pointer[MB_MAX];
    int32_t(*id)[T_MAX] = arena_take(&own, MB_MAX * sizeof *id);
    int growths = 0;
    for (int step = 0; step < N_STEPS; step++) {
        make_rows(mb, id, s->n_mb, step);
        for (int i = 0; i < s->n_mb; i++) pointer[i] = &mb[i];
        pipeline_step(pipeline, pointer, job->mode);
        if (step == N_STEPS - 1) growths = own.growths + pipeline->send.growths;
    }
    /* Once more the same: nothing may be allocated. */
    Toy kept[STAGES_MAX];
    memcpy(kept, job->toy, sizeof kept);
    Status status = comm_barrier(world);
    pipeline->watch_messages = true;
    pipeline_step(pipeline, pointer, job->mode);
    if (own.growths + pipeline->send.growths != growths)
        status = FAIL(ERR_FAILED, "rank %d: a step that was seen before allocates", world->rank);
    ScheduleReport report;
    TRY(timeline_gather(&report, pipeline, &own));
    if (world->rank == 0) {
        TRY(check_timeline(&report, s));
        job->bubble = report.bubble;
    }
    if (breadcrumb()->action || breadcrumb()->op)
        status = FAIL(ERR_FAILED, "rank %d: breadcrumb left behind", world->rank);
    for (int stage = 0; stage < s->n_stages; stage++)
        if (s->rank_of_stage[stage] == world->rank) job->toy[stage] = kept[stage];
    pipeline_free(&pipeline);
    arena_free(&own);
    return status;
}

/* The same arithmetic: microbatch after microbatch, all stages in one place. */
static void run_alone(const Schedule *s, ForwardMode mode, Toy *toy)
{
    static const Slots zero = {0, 0, 0, 0};
    Arena own;
    arena_init(&own, "alone");
    Memory *memory = ARENA_NEW(&own, Memory, s->n_stages);
    for (int stage = 0; stage < s->n_stages; stage++) {
        memory[stage] = memory_new(zero, &own);
        toy[stage] = toy_new(stage, s, &memory[stage]);
    }
    MicroBatch mb[MB_MAX];
    int32_t(*id)[T_MAX] = arena_take(&own, MB_MAX * sizeof *id);
    int last = s->n_stages - 1;
    for (int step = 0; step < N_STEPS; step++) {
        make_rows(mb, id, s->n_mb, step);
        for (int i = 0; i < s->n_mb; i++) {
            HandOver x = toy_open_forward(&toy[0], zero, &mb[i]);
            for (int stage = 0; stage <= last; stage++) {
                HandOver y = {0};
                if (stage < last) y = toy_open_forward(&toy[stage + 1], zero, &mb[i]);
                toy_forward(&toy[stage], zero, &mb[i], y, x, mode);
                x = y;
            }
            if (mode != FORWARD_TRAIN) continue;
            HandOver dy = toy_open_backward(&toy[last], zero, &mb[i]);
            for (int stage = last; stage >= 0; stage--) {
                HandOver dx = {0};
                if (stage > 0) dx = toy_open_backward(&toy[stage - 1], zero, &mb[i]);
                toy_backward_input(&toy[stage], zero, &mb[i], dx, dy);
                toy_backward_weight(&toy[stage], zero, &mb[i]);
                dy = dx;
            }
        }
    }
    arena_free(&own);
}

static void compare(const Schedule *s, ForwardMode mode, bool delays)
{
    Job job = {.s = s, .mode = mode, .delays = delays};
    Toy alone[STAGES_MAX];
    run_alone(s, mode, alone);
    Status status = world_run_threads(s->n_ranks, rank_body, &job);
    if (status != OK) fail_msg("%s: %s", s->name, status_message());
    for (int stage = 0; stage < s->n_stages; stage++) {
        const Toy *a = &alone[stage], *b = &job.toy[stage];
        assert_true(isfinite(a->dw) && (mode != FORWARD_TRAIN || a->dw != 0));
        if (memcmp(&a->dw, &b->dw, sizeof a->dw) || memcmp(&a->db, &b->db, sizeof a->db) ||
            memcmp(a->out, b->out, sizeof a->out))
            fail_msg("%s p=%d m=%d stage %d: dw %.9g db %.9g out %.9g, alone %.9g %.9g %.9g",
                     s->name, s->n_ranks, s->n_mb, stage, (double)b->dw, (double)b->db, b->out[0],
                     (double)a->dw, (double)a->db, a->out[0]);
    }
}

static void pipeline_step__equals_one_process_bit_for_bit(void **state)
{
    (void)state;
    static const int m_list[] = {1, 2, 5, 12};
    for (int p = 1; p <= 8; p += p < 4 ? 1 : 4)
        for (size_t k = 0; k < 4; k++) {
            compare(build("1f1b", p, m_list[k]), FORWARD_TRAIN, true);
            compare(build("gpipe", p, m_list[k]), FORWARD_TRAIN, true);
        }
    compare(build("1f1b", 8, 16), FORWARD_TRAIN, false);
}

static void pipeline_step__runs_split_backward_and_several_stages_per_rank(void **state)
{
    (void)state;
    for (int m = 1; m <= 8; m += 7) {
        compare(build("zb_h1", 3, m), FORWARD_TRAIN, true);
        compare(build("zbv", 1, m), FORWARD_TRAIN, true);
        compare(build("zbv", 2, m), FORWARD_TRAIN, true);
        compare(build("zbv", 4, m), FORWARD_TRAIN, true);
    }
    compare(build_virtual("interleaved", 2, 8, 3), FORWARD_TRAIN, true);
    compare(build_virtual("interleaved", 4, 8, 2), FORWARD_TRAIN, true);
}

static void pipeline_step__runs_forward_alone(void **state)
{
    (void)state;
    Schedule *like[] = {build("1f1b", 1, 1), build("1f1b", 4, 2), build("zbv", 2, 4)};
    for (size_t k = 0; k < 3; k++)
        for (int m = 1; m <= 9; m += 4) {
            Schedule *s = NULL;
            ok(schedule_build_forward(&s, like[k], m, &arena));
            compare(s, FORWARD_LOSS, true);
            compare(s, FORWARD_LOGITS, false);
        }
}

/* Sleeping stages need no core: the measured bubble is the schedule's however few there are. */
static void pipeline_step__measures_the_bubble_of_the_schedule(void **state)
{
    (void)state;
    Schedule *s = build("1f1b", 4, 8);
    double best = 1;
    for (int attempt = 0; attempt < 5 && fabs(best - 9.0 / 33) > 0.03; attempt++) {
        Job job = {.s = s, .mode = FORWARD_TRAIN, .fixed_us = 1500};
        ok(world_run_threads(4, rank_body, &job));
        if (fabs(job.bubble - 9.0 / 33) < fabs(best - 9.0 / 33)) best = job.bubble;
    }
    print_message("bubble measured %.3f, formula %.3f\n", best, 9.0 / 33);
    assert_true(fabs(best - 9.0 / 33) < 0.06); /* sleeps overshoot by some 60 µs in 1500 */
}

static Status wrong_body(Comm *world, void *arg)
{
    const Schedule *s = arg;
    Pipeline *pipeline = NULL;
    StageRef none[4] = {{0}};
    Arena mine;
    arena_init(&mine, "rank");
    Status status = pipeline_create(&pipeline, s, world, none, &mine);
    arena_free(&mine);
    return status;
}

static void pipeline_create__refuses_missing_ranks_and_stages(void **state)
{
    (void)state;
    assert_int_equal(world_run_threads(2, wrong_body, build("1f1b", 3, 2)), ERR_USAGE);
    assert_non_null(strstr(status_message(), "is for 3 ranks, found 2"));
    assert_int_equal(world_run_threads(2, wrong_body, build("1f1b", 2, 2)), ERR_USAGE);
    assert_non_null(strstr(status_message(), "stage 0 is on rank 0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(pipeline_step__equals_one_process_bit_for_bit),
        ARENA_TEST(pipeline_step__runs_split_backward_and_several_stages_per_rank),
        ARENA_TEST(pipeline_step__runs_forward_alone),
        ARENA_TEST(pipeline_step__measures_the_bubble_of_the_schedule),
        ARENA_TEST(pipeline_create__refuses_missing_ranks_and_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
