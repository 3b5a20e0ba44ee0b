#include "train/grad_sync.h"

#include <assert.h>
#include <string.h>

enum { BUCKET = 1 << 18 /* elements */, LANES = 4 };

/* Some elements of a parameter that belong to the part of one rank. */
typedef struct Piece {
    Param *param;
    ParamRange range;
    int rank; /* of the bucket's comm */
} Piece;

typedef struct Bucket {
    Comm *comm;
    int stage;
    Piece *piece;
    int n;
    int64_t *count_r; /* [comm->size] elements of each rank's part */
} Bucket;

typedef enum Phase { PHASE_SUM, PHASE_SPREAD } Phase;

/* A bucket on its way. What goes to, or comes from, each of the other ranks stands packed by rank. */
typedef struct Lane {
    const Bucket *bucket; /* NULL: free */
    Phase phase;
    char *out, *in;
    CommRequest *send_r, *receive_r;
} Lane;

struct GradSync {
    GradSyncSetup setup;
    Bucket *bucket;
    int n_buckets;
    int *queue; /* [n_buckets] numbers of buckets, in the order started */
    int n_queued, n_launched, n_done;
    bool values; /* what is spread: values, not gradients */
    Lane lane[LANES];
};

/* ---- buckets ---------------------------------------------------------------------------------------------- */

typedef struct Builder {
    GradSync *sync;
    Arena *arena;
    int capacity, piece_capacity; /* of the buckets, of the open one's pieces */
    Bucket *open;
    ParamRange *rest_r; /* [data] of the parameter that is being dealt out */
} Builder;

static void *grown(Arena *arena, const void *at, int n, int *capacity, size_t size)
{
    *capacity = *capacity ? 2 * *capacity : 16;
    void *larger = arena_take_zeroed(arena, size_mul((size_t)*capacity, size));
    if (n) memcpy(larger, at, (size_t)n * size);
    return larger;
}

static Bucket *open_bucket(Builder *b, Comm *comm, int stage)
{
    GradSync *sync = b->sync;
    if (sync->n_buckets == b->capacity)
        sync->bucket =
            grown(b->arena, sync->bucket, sync->n_buckets, &b->capacity, sizeof *sync->bucket);
    b->piece_capacity = 0;
    Bucket *bucket = &sync->bucket[sync->n_buckets++];
    *bucket =
        (Bucket){.comm = comm, .stage = stage, .count_r = ARENA_NEW(b->arena, int64_t, comm->size)};
    return bucket;
}

/* As much of a rank's part as fits into the open bucket; whether any of it is left over. */
static bool add_piece(Builder *b, Param *p, ParamRange *rest, int rank)
{
    Bucket *bucket = b->open;
    int64_t room = BUCKET / bucket->comm->size + 1 - bucket->count_r[rank],
            n = rest->end - rest->begin;
    if (n > room) n = room;
    if (n == 0) return rest->end > rest->begin;
    if (bucket->n == b->piece_capacity)
        bucket->piece =
            grown(b->arena, bucket->piece, bucket->n, &b->piece_capacity, sizeof *bucket->piece);
    bucket->piece[bucket->n++] = (Piece){p, {rest->begin, rest->begin + n}, rank};
    bucket->count_r[rank] += n;
    rest->begin += n;
    return rest->end > rest->begin;
}

static void add_param(Builder *b, Param *p, Comm *comm, int stage)
{
    for (int r = 0; r < comm->size; r++) b->rest_r[r] = param_shard(p, r, comm->size);
    for (bool more = true; more;) {
        more = false;
        if (!b->open) b->open = open_bucket(b, comm, stage);
        for (int r = 0; r < comm->size; r++) more |= add_piece(b, p, &b->rest_r[r], r);
        if (more) b->open = NULL;
    }
}

/* The parameters of a stage that have their copies along one axis. */
static void add_stage(Builder *b, int stage, MeshAxis axis)
{
    const GradSyncSetup *setup = &b->sync->setup;
    Comm *comm = setup->mesh->axis[axis];
    b->open = NULL;
    for (int i = setup->first_s[stage]; i < setup->first_s[stage + 1] && comm->size > 1; i++) {
        Param *p = setup->set->at[i];
        if (p->is_expert == (axis == AXIS_EDP) && !tensor_is_null(p->grad))
            add_param(b, p, comm, stage);
    }
}

/* Elements that go out or come in at most, all other ranks together. */
static int64_t most_elements(const Bucket *bucket)
{
    int64_t all = 0, own = bucket->count_r[bucket->comm->rank];
    for (int r = 0; r < bucket->comm->size; r++) all += bucket->count_r[r];
    int64_t incoming = own * (bucket->comm->size - 1);
    return all - own > incoming ? all - own : incoming;
}

Status grad_sync_create(GradSync **out, const GradSyncSetup *setup, Arena *arena)
{
    GradSync *sync;
    TRY(arena_alloc(arena, &sync, 1, sizeof *sync));
    sync->setup = *setup;
    size_t size = (size_t)setup->mesh->size[AXIS_DATA], unit = dtype_bytes(setup->set->dtype_grad);
    Builder b = {.sync = sync, .arena = arena};
    TRY(arena_alloc(arena, &b.rest_r, size, sizeof *b.rest_r));
    for (int s = 0; s < setup->n_stages; s++) {
        add_stage(&b, s, AXIS_DATA);
        add_stage(&b, s, AXIS_EDP);
    }
    TRY(arena_alloc(arena, &sync->queue, (size_t)sync->n_buckets, sizeof *sync->queue));
    int64_t most = 0;
    for (int i = 0; i < sync->n_buckets; i++) {
        int64_t n = most_elements(&sync->bucket[i]);
        if (n > most) most = n;
    }
    for (int i = 0; i < LANES && i < sync->n_buckets; i++) {
        Lane *lane = &sync->lane[i];
        TRY(arena_alloc(arena, &lane->out, (size_t)most, unit));
        TRY(arena_alloc(arena, &lane->in, (size_t)most, unit));
        TRY(arena_alloc(arena, &lane->send_r, size, sizeof *lane->send_r));
        TRY(arena_alloc(arena, &lane->receive_r, size, sizeof *lane->receive_r));
    }
    *out = sync;
    return OK;
}

/* ---- a bucket's way --------------------------------------------------------------------------------------- */

static Tensor moved(const GradSync *sync, const Param *p)
{
    return sync->values ? p->value : p->grad;
}

/* Copies the part of one rank between the parameters and packed memory; returns its end there. */
static char *pack(const GradSync *sync, const Bucket *bucket, int rank, char *packed, bool back)
{
    for (int i = 0; i < bucket->n; i++) {
        const Piece *piece = &bucket->piece[i];
        if (piece->rank != rank) continue;
        Tensor t = moved(sync, piece->param);
        size_t bytes = (size_t)(piece->range.end - piece->range.begin) * dtype_bytes(t.dtype);
        void *at = tensor_at(t, piece->range.begin);
        memcpy(back ? at : packed, back ? packed : at, bytes);
        packed += bytes;
    }
    return packed;
}

/*
 * One exchange with every other rank. PHASE_SUM: its part of what is here against what it has of ours; PHASE_SPREAD: our part
 * against its part.
 */
static void post(GradSync *sync, Lane *lane, Phase phase)
{
    const Bucket *b = lane->bucket;
    Comm *comm = b->comm;
    size_t unit = dtype_bytes(sync->values ? sync->setup.set->dtype : sync->setup.set->dtype_grad);
    uint64_t tag = 2 * (uint64_t)(b - sync->bucket) + (phase == PHASE_SPREAD);
    lane->phase = phase;
    char *in = lane->in, *out = lane->out;
    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank) continue;
        size_t bytes = (size_t)b->count_r[phase == PHASE_SUM ? comm->rank : r] * unit;
        lane->receive_r[r] = comm->irecv(comm, in, bytes, r, tag);
        in += bytes;
    }
    if (phase == PHASE_SPREAD) pack(sync, b, comm->rank, out, false);
    for (int k = 1; k < comm->size; k++) { /* not all to rank 0 first */
        int r = (comm->rank + k) % comm->size;
        size_t bytes = (size_t)b->count_r[phase == PHASE_SUM ? r : comm->rank] * unit;
        char *end = phase == PHASE_SUM ? pack(sync, b, r, out, false) : out;
        lane->send_r[r] = comm->isend(comm, out, bytes, r, tag);
        out = end;
    }
}

/* Our part, over all ranks, in rank order; the sum ends up in the gradient. */
static void add_up(const GradSync *sync, const Lane *lane)
{
    const Backend *be = sync->setup.be;
    const Bucket *b = lane->bucket;
    const int rank = b->comm->rank;
    int64_t at = 0;
    for (int i = 0; i < b->n; i++) {
        const Piece *piece = &b->piece[i];
        if (piece->rank != rank) continue;
        Tensor grad = piece->param->grad;
        int64_t n = piece->range.end - piece->range.begin;
        Tensor own = tensor1(tensor_at(grad, piece->range.begin), grad.dtype, n), sum = own;
        for (int r = 0; r < b->comm->size; r++) {
            Tensor next = own;
            if (r != rank)
                next.data = lane->in + (size_t)((r - (r > rank)) * b->count_r[rank] + at) *
                                           dtype_bytes(grad.dtype);
            Tensor into = r >= rank ? own : sum;
            if (r > 0) be->add(be, into, sum, next);
            sum = r > 0 ? into : next;
        }
        at += n;
    }
}

/* All of the lane's messages are done: go on. */
static void arrive(GradSync *sync, Lane *lane)
{
    const Bucket *b = lane->bucket;
    if (lane->phase == PHASE_SUM) {
        add_up(sync, lane);
        if (!sync->setup.own_only) {
            post(sync, lane, PHASE_SPREAD);
            return;
        }
    } else {
        char *in = lane->in;
        for (int r = 0; r < b->comm->size; r++)
            if (r != b->comm->rank) in = pack(sync, b, r, in, true);
    }
    lane->bucket = NULL;
}

static bool is_there(const Lane *lane)
{
    Comm *comm = lane->bucket->comm;
    bool all = true, done;
    for (int r = 0; r < comm->size; r++) {
        comm_must(comm_look(comm, &lane->receive_r[r], &done));
        all = all && done;
        comm_must(comm_look(comm, &lane->send_r[r], &done));
        all = all && done;
    }
    return all;
}

static void await(const Lane *lane)
{
    Comm *comm = lane->bucket->comm;
    for (int r = 0; r < comm->size; r++) {
        comm_must(comm_wait(comm, &lane->receive_r[r]));
        comm_must(comm_wait(comm, &lane->send_r[r]));
    }
}

/* ---- all buckets ------------------------------------------------------------------------------------------ */

static void launch(GradSync *sync)
{
    for (; sync->n_launched < sync->n_queued; sync->n_launched++) {
        Lane *lane = &sync->lane[sync->n_launched % LANES];
        if (lane->bucket) return;
        lane->bucket = &sync->bucket[sync->queue[sync->n_launched]];
        post(sync, lane, sync->values ? PHASE_SPREAD : PHASE_SUM);
    }
}

static void enqueue(GradSync *sync, int bucket)
{
    assert(sync->n_queued < sync->n_buckets);
    sync->queue[sync->n_queued++] = bucket;
}

void grad_sync_start(GradSync *sync, int stage)
{
    for (int i = 0; i < sync->n_buckets; i++)
        if (sync->bucket[i].stage == stage) enqueue(sync, i);
    launch(sync);
}

void grad_sync_advance(GradSync *sync)
{
    if (sync->n_done == sync->n_queued) return;
    for (int i = 0; i < LANES; i++) {
        Lane *lane = &sync->lane[i];
        if (lane->bucket && is_there(lane)) arrive(sync, lane);
    }
    while (sync->n_done < sync->n_launched && !sync->lane[sync->n_done % LANES].bucket)
        sync->n_done++;
    launch(sync);
}

void grad_sync_finish(GradSync *sync)
{
    for (; sync->n_done < sync->n_queued; grad_sync_advance(sync))
        if (sync->n_done < sync->n_launched) {
            const Lane *oldest = &sync->lane[sync->n_done % LANES];
            if (oldest->bucket) await(oldest);
        }
    sync->n_queued = sync->n_launched = sync->n_done = 0;
}

void grad_sync_spread_values(GradSync *sync)
{
    sync->values = true;
    for (int i = 0; i < sync->n_buckets; i++) enqueue(sync, i);
    launch(sync);
    grad_sync_finish(sync);
    sync->values = false;
}
