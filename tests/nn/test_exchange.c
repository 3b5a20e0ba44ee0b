/**
 * Experts shared out over ranks against all of them on one: the same tokens give the same outputs and gradients, to
 * rounding, wherever the router sends them.
 */
#include "fixture.h"
#include "base/text.h"
#include "comm/world.h"
#include "nn/moe.h"

enum { E = 8, D = 11, F = 4, RANKS = 4, T_MAX = 7 };

/** Where the router sends tokens: scores that random ones are added to. */
typedef enum Routing {
    ROUTE_FREELY,
    ROUTE_TO_FIRST_RANK, /* the others get nothing */
    ROUTE_TO_LAST_RANK,
    ROUTE_APART,     /* each choice on another rank, as far as there are ranks */
    ROUTE_PAST_SOME, /* experts 1 and 6 get nothing */
    ROUTE_COUNT
} Routing;

typedef struct Job {
    int n_ranks; /* of ep */
    DType dtype;
    int64_t top_k;
    Routing routing;
    bool
        split; /* all forwards, then all I, then all W, as schedules with I and W may; else one after the other */
    const int64_t *n_tokens; /* [RANKS] of each rank's microbatch */
} Job;

/** What comes out, as double: by source of the tokens, and of the whole model. */
typedef struct Result {
    double y[RANKS][T_MAX * D], dx[RANKS][T_MAX * D];
    double gate[RANKS][E * D]; /* by rank: the sum over ranks is others' business */
    double gate_up[E * 2 * F * D], down[E * D * F];
    uint64_t bytes[RANKS]; /* sent by each */
} Result;

static double score_of(const Job *job, int64_t e)
{
    int64_t n = E / job->n_ranks;
    switch (job->routing) {
    case ROUTE_TO_FIRST_RANK: return e < n ? 9 : 0;
    case ROUTE_TO_LAST_RANK: return e >= E - n ? 9 : 0;
    case ROUTE_APART: return e % n == 0 ? 9 : 0;
    case ROUTE_PAST_SOME: return e == 1 || e == 6 ? -9 : 0;
    default: return 0;
    }
}

/* A module on one rank, or the whole of it. */
typedef struct Side {
    Fixture f;
    Moe m;
    MoeSaved saved[RANKS]; /* by source of the tokens */
    Tensor x[RANKS], y[RANKS], r[RANKS], dx[RANKS];
} Side;

static void side_open(Side *s, const Job *job, Comm *ep)
{
    fixture_open(&s->f, job->dtype);
    s->f.run.ep = ep;
    s->f.mb.balancing_scale = 0.7;
    s->f.mb.z_scale = 0.05;
    if (ep) s->f.set.ep_rank = ep->rank, s->f.set.ep_size = ep->size;
    moe_declare(&s->m, &s->f.set, 0, D,
                &(MoeConfig){.n_experts = E, .top_k = job->top_k, .ffn = F, .normalise = true});
    if (paramset_layout(&s->f.set, true) != OK) die("no memory");
    for (int i = 0; i < s->f.set.n; i++) {
        Param *p = s->f.set.at[i];
        int64_t n = tensor_size(p->value), first = p->first_row * (n / p->value.dim[0]);
        uint64_t key = rng_key(7, p->name);
        for (int64_t k = 0; k < n; k++)
            store(p->value, k, 0.4 * rng_normal(key, (uint64_t)(first + k)));
    }
    /* Feature e of a token is its score for expert e, nearly. */
    Tensor gate = s->m.router.gate.w_oi->value;
    for (int64_t k = 0; k < tensor_size(gate); k++)
        store(gate, k, (k / D == k % D) + 0.1 * load(gate, k));
}

static Tensor tokens(Side *s, const Job *job, const char *name, int source, bool scored)
{
    Tensor t = fixture_tensor(&s->f, job->n_tokens[source], D);
    fill(t, text_format(&s->f.data, "%s%d", name, source), 0, 1);
    for (int64_t k = 0; k < tensor_size(t) && scored; k++)
        if (k % D < E) store(t, k, load(t, k) + score_of(job, k % D));
    return t;
}

/* As block.c lays it out. */
static void take_before_route(Side *s, MoeSaved *saved, const Job *job, int64_t n_tokens)
{
    Arena *a = &s->f.data;
    DType acc = s->f.run.dtype_acc;
    saved->router = (RouterSaved){.p_te = arena_tensor2(a, acc, n_tokens, E),
                                  .lse_t = arena_tensor1(a, acc, n_tokens),
                                  .weight_tk = arena_tensor2(a, acc, n_tokens, job->top_k),
                                  .id_tk = arena_tensor2(a, DTYPE_I32, n_tokens, job->top_k),
                                  .count_e = ARENA_NEW(a, int64_t, E),
                                  .dlogit_te = arena_tensor2(a, acc, n_tokens, E)};
    saved->exchange = (Exchange){.n_ranks = s->f.run.ep ? s->f.run.ep->size : 1,
                                 .sent_p = ARENA_NEW(a, int64_t, RANKS),
                                 .received_p = ARENA_NEW(a, int64_t, RANKS),
                                 .token_s = ARENA_NEW(a, int32_t, n_tokens * RANKS),
                                 .place_tp = ARENA_NEW(a, int32_t, n_tokens * RANKS)};
}

static void take_after_route(Side *s, MoeSaved *saved, const Job *job, Tensor x, Tensor dy)
{
    Arena *a = &s->f.data;
    int64_t n_rows = saved->exchange.n_rows;
    saved->experts =
        (ExpertsSaved){fixture_tensor(&s->f, n_rows, 2 * F), fixture_tensor(&s->f, n_rows, F),
                       fixture_tensor(&s->f, n_rows, 2 * F)};
    saved->weight_r = arena_tensor1(a, s->f.run.dtype_acc, n_rows);
    saved->dispatch =
        (Dispatch){.offset_e = ARENA_NEW(a, int32_t, E + 1),
                   .token_r = ARENA_NEW(a, int32_t, n_rows),
                   .pair_r = ARENA_NEW(a, int32_t, n_rows),
                   .row_nk = ARENA_NEW(a, int32_t, saved->exchange.n_received * job->top_k)};
    saved->x_nd = exchange_place(&saved->exchange, a, x);
    saved->dy_nd = exchange_place(&saved->exchange, a, dy);
}

static void forward(Side *s, const Job *job, int source)
{
    MoeSaved *saved = &s->saved[source];
    s->x[source] = tokens(s, job, "x", source, true);
    s->r[source] = tokens(s, job, "r", source, false);
    s->y[source] = fixture_tensor(&s->f, job->n_tokens[source], D);
    s->dx[source] = fixture_tensor(&s->f, job->n_tokens[source], D);
    take_before_route(s, saved, job, job->n_tokens[source]);
    moe_route(&s->m, saved, &s->f.run, NULL, s->x[source]);
    take_after_route(s, saved, job, s->x[source], s->r[source]);
    moe_forward(&s->m, saved, &s->f.run, s->y[source], s->x[source]);
}

static void copy_out(double *to, Tensor from)
{
    for (int64_t i = 0; i < tensor_size(from); i++) to[i] = load(from, i);
}

/* Microbatches in turn: of one source on a rank, of all on the reference. */
static void run(Side *s, const Job *job, int first, int n, Result *out)
{
    for (int r = first; r < first + n; r++) {
        forward(s, job, r);
        if (!job->split) moe_backward_input(&s->m, &s->saved[r], &s->f.run, s->dx[r], s->r[r], 0);
        if (!job->split) moe_backward_weight(&s->m, &s->saved[r], &s->f.run);
    }
    for (int r = first; r < first + n && job->split; r++)
        moe_backward_input(&s->m, &s->saved[r], &s->f.run, s->dx[r], s->r[r], 0);
    for (int r = first; r < first + n && job->split; r++)
        moe_backward_weight(&s->m, &s->saved[r], &s->f.run);
    for (int r = first; r < first + n; r++) {
        copy_out(out->y[r], s->y[r]);
        copy_out(out->dx[r], s->dx[r]);
    }
    const Experts *e = &s->m.experts;
    copy_out(out->gate[first], s->m.router.gate.w_oi->grad);
    copy_out(out->gate_up + e->first * 2 * F * D, e->gate_up_eod->grad);
    copy_out(out->down + e->first * D * F, e->down_edf->grad);
}

typedef struct Shared {
    const Job *job;
    Result *out;
} Shared;

static Status rank_body(Comm *world, void *arg)
{
    const Shared *shared = arg;
    Side s;
    side_open(&s, shared->job, world);
    run(&s, shared->job, world->rank, 1, shared->out);
    shared->out->bytes[world->rank] = world->bytes_sent;
    fixture_close(&s.f);
    return OK;
}

/* Tokens of a rank that have chosen experts of another. */
static uint64_t n_crossing(const Side *s, const Job *job, int from, int to)
{
    const int32_t *id_tk = s->saved[from].router.id_tk.data;
    uint64_t n = 0;
    for (int64_t t = 0; t < job->n_tokens[from] && from != to; t++) {
        bool goes = false;
        for (int64_t k = 0; k < job->top_k; k++)
            goes |= id_tk[t * job->top_k + k] / (E / job->n_ranks) == to;
        n += goes;
    }
    return n;
}

/* The formula of docs/parallel.md, for one layer. */
static uint64_t bytes_of(const Side *s, const Job *job, int rank)
{
    const uint64_t b = dtype_bytes(s->f.run.dtype), a = dtype_bytes(s->f.run.dtype_acc),
                   k = (uint64_t)job->top_k, peers = (uint64_t)job->n_ranks - 1;
    uint64_t sent = 0, received = 0;
    for (int r = 0; r < job->n_ranks; r++) {
        sent += n_crossing(s, job, rank, r);
        received += n_crossing(s, job, r, rank);
    }
    uint64_t forward = 16 * peers + sent * (D * b + k * (4 + a)) + received * D * a;
    uint64_t backward = sent * D * b + received * (D + k) * a;
    return forward + backward;
}

static void shared_out(Result *out, const Job *job)
{
    *out = (Result){0};
    Status status = world_run_threads(job->n_ranks, rank_body, &(Shared){job, out});
    if (status != OK) fail_msg("%s", status_message());
}

static void compare(const char *what, const double *a, const double *b, int64_t n, double tolerance)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(b[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(b[i] == 0 ? a[i] == 0 : fabs(a[i] - b[i]) <= tolerance * most))
            fail_msg("%s [%lld]: %.17g, on one rank %.17g", what, (long long)i, a[i], b[i]);
}

static const int64_t n_tokens[RANKS] = {5, 1, T_MAX, 3};

static void check(Job job, double tolerance)
{
    static Result one, many, again;
    Side s;
    job.n_tokens = n_tokens;
    side_open(&s, &job, NULL);
    one = (Result){0};
    run(&s, &job, 0, job.n_ranks, &one);
    shared_out(&many, &job);
    for (int r = 0; r < job.n_ranks; r++) {
        assert_int_equal(many.bytes[r], bytes_of(&s, &job, r));
        compare("y", many.y[r], one.y[r], n_tokens[r] * D, tolerance);
        compare("dx", many.dx[r], one.dx[r], n_tokens[r] * D, tolerance);
    }
    double gate[E * D] = {0};
    for (int r = 0; r < job.n_ranks; r++)
        for (int64_t i = 0; i < E * D; i++) gate[i] += many.gate[r][i];
    compare("dgate", gate, one.gate[0], E * D, tolerance);
    compare("dgate_up", many.gate_up, one.gate_up, E * 2 * F * D, tolerance);
    compare("ddown", many.down, one.down, E * D * F, tolerance);
    fixture_close(&s.f);
    shared_out(&again, &job);
    assert_memory_equal(&again, &many, sizeof many);
}

static void exchange__ranks_that_share_experts_agree_with_one(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= RANKS; n_ranks *= 2)
        for (int64_t top_k = 1; top_k <= E; top_k *= 2)
            for (Routing routing = 0; routing < ROUTE_COUNT; routing++)
                for (int split = 0; split < 2; split++)
                    check((Job){.n_ranks = n_ranks,
                                .dtype = DTYPE_F64,
                                .top_k = top_k,
                                .routing = routing,
                                .split = split},
                          1e-13);
}

/* Parts travel in f32: what is left is one rounding to bf16, which may fall to another side. */
static void exchange__bf16_rounds_once(void **state)
{
    (void)state;
    for (Routing routing = 0; routing < ROUTE_COUNT; routing++)
        check((Job){.n_ranks = RANKS, .dtype = DTYPE_BF16, .top_k = 4, .routing = routing}, 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange__ranks_that_share_experts_agree_with_one),
        cmocka_unit_test(exchange__bf16_rounds_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
