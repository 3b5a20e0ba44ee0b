#pragma once
/**
 * Room `comm`: messages between ranks. It knows bytes, ranks and tags, nothing of tensors' meaning,
 * models or schedules. Read this file first, then comm_threads.c, then mesh.h and world.h.
 *
 * A Comm is a table of functions with a state. Only isend, irecv, test, hangs and free differ between
 * transports (comm_self, comm_threads, comm_mpi); waiting, splitting and all collectives are written
 * once on top of them, and so give the same bits over each.
 *
 * Failure. A rank that ended (its body in world_run returned) can answer no more: a wait for
 * it is lost and returns ERR_PEER. The rank that sees this returns too, and so on, so that nobody
 * hangs. Setup code passes these up with TRY; inside a step comm_must ends the process.
 * One Comm belongs to one rank, and only that rank's thread calls it.
 */
#include "base/worker.h"
#include "core/tensor.h"

/** Tags of messages are below this; what is above belongs to collectives and to splits. */
#define COMM_TAG_END ((uint64_t)1 << 40)

/** A message on its way. Zeroed: none (waiting for it is done at once). */
typedef struct CommRequest {
    void *node; /* of the transport */
    int peer;
} CommRequest;

typedef enum CommState {
    COMM_PENDING,
    COMM_DONE,
    COMM_LOST /* the peer ended before it sent the message or, between threads, took it */
} CommState;

typedef struct Comm Comm;
struct Comm {
    const char *name; /* of the transport, for messages */
    int rank, size;
    int n_cpus; /* of a world's comm: this rank's share of its machine's processors, at least 1 */
    const char
        *placement;      /* of a world's comm: where its machine's ranks run, a line; NULL, empty */
    uint64_t bytes_sent; /* by isend of this comm; a split's count in what carries them too */
    double hang_timeout; /* seconds a wait may last (comm_wait); 0: for ever. Splits inherit it */
    /**
     * Start to send; `data` must stay as it is until the request is done. Never blocks. Messages of one
     * (sender, receiver, tag) arrive in the order sent; those of other tags may overtake them.
     */
    CommRequest (*isend)(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag);
    /** Start to receive; `data` is undefined until the request is done. Never blocks. Dies if the sender sent another number of bytes. */
    CommRequest (*irecv)(Comm *comm, void *data, size_t bytes, int from, uint64_t tag);
    /** Once DONE or LOST the request is cleared and `data` is the caller's again. */
    CommState (*test)(Comm *comm, CommRequest *request);
    /** Whether a rank has declared that nothing moves any more; with `declare` this one does. */
    bool (*hangs)(Comm *comm, bool declare);
    /** Releases what the comm holds, not the struct; no request may be pending. */
    void (*free)(Comm *comm);
    void *state;
    uint32_t next_split; /* number of the next split made of this comm or of its splits */
    Comm *root;          /* of a split: the comm that carries its messages; else NULL */
};

/** A comm of one rank: every collective does nothing. Sending is a mistake and dies. */
void comm_self_init(Comm *comm);

/**
 * Wait for one message.
 * Polls shortly, then gives the processor away (sleeps of at most 50 µs): ranks may outnumber cores.
 *
 * A wait that lasts longer than hang_timeout ends the run with exit code 1, whatever other ranks do
 * meanwhile: the timeout must be longer than any rank may rightly work alone. Before that each rank that
 * waits says on a line what for, from whom and since when. Time in which this process itself was stopped
 * does not count.
 * Errors: ERR_PEER if the peer ended.
 */
Status comm_wait(Comm *comm, CommRequest *request) MUST_USE;
/** Wait for all n, done or lost, since all have a hold on the caller's memory. Errors as comm_wait. */
Status comm_wait_all(Comm *comm, CommRequest *request, int n) MUST_USE;
/** One look: *done, or still on its way. Errors as comm_wait. */
Status comm_look(Comm *comm, CommRequest *request, bool *done) MUST_USE;
/** Inside a step: end the process with the recorded message unless status is OK. */
void comm_must(Status status);

/* Blocking pairs, for setup and for building collectives. Not collective themselves. */
Status comm_send(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag) MUST_USE;
Status comm_receive(Comm *comm, void *data, size_t bytes, int from, uint64_t tag) MUST_USE;

/*
 * Collectives: all ranks of the comm call them in the same order with the same sizes. They return
 * ERR_PEER on a rank whose wait was lost; the contents of outputs are then undefined.
 */

/** Nobody leaves before everybody came. */
Status comm_barrier(Comm *comm) MUST_USE;
/**
 * *seconds to add to this rank's clock_seconds() for that of rank 0: from the quickest of some questions
 * and answers. 0 when both clocks may be the same, as on one machine they are.
 */
Status comm_clock_offset(Comm *comm, double *seconds) MUST_USE;
/** data [bytes] of root to all. */
Status comm_broadcast(Comm *comm, void *data, size_t bytes, int root) MUST_USE;
/** out [size][bytes] on root, by rank; elsewhere out is not touched and may be NULL. */
Status comm_gather(Comm *comm, void *out, const void *data, size_t bytes, int root) MUST_USE;
/** The same with bytes_r[size] known to all (or to root and, for its own entry, to each rank); out is packed by rank. */
Status comm_gather_v(Comm *comm, void *out, const void *data, const size_t *bytes_r,
                     int root) MUST_USE;
/** out [size][bytes] on all, by rank. data may be out's own part. */
Status comm_all_gather(Comm *comm, void *out, const void *data, size_t bytes) MUST_USE;

/**
 * Start to bring each rank its part: out_bytes_r[r] bytes of out go to rank r, in_bytes_r[r] bytes of in come from it,
 * both packed by rank. A rank's own part is copied at once. Every pair of ranks has its message each way, empty ones too,
 * so that ranks need not know who has nothing to say.
 *
 * Shapes: request_2r [2*size], overwritten: what to wait for, comm_wait_all. Several may be under way if all ranks
 *         start them in the same order.
 * Owner:  in and out are the caller's again once all requests are done.
 */
void comm_all_to_all_v(Comm *comm, CommRequest *request_2r, void *in, const size_t *in_bytes_r,
                       const void *out, const size_t *out_bytes_r);

/**
 * Sum over ranks, in place, in rank order: ((x_0 + x_1) + x_2) + … in dtype, the same bits on all.
 *
 * All-to-all of slices, ordered local sum, all-gather; in rounds, so that scratch stays below 9 MiB.
 * Shapes:  data [n] f32 or f64
 * Owner:   scratch is rewound before return; NULL is allowed when the comm has size 1.
 */
Status comm_sum_ordered(Comm *comm, void *data, int64_t n, DType dtype, Arena *scratch) MUST_USE;

/** In place, element by element. For integers no order matters. */
Status comm_sum_i64(Comm *comm, int64_t *value, int64_t n) MUST_USE;
Status comm_max_i64(Comm *comm, int64_t *value, int64_t n) MUST_USE;
Status comm_min_i64(Comm *comm, int64_t *value, int64_t n) MUST_USE;

/**
 * Nobody goes on alone: after local work that may fail, before the next collective.
 *
 * OK on all if all are OK. Else the lowest rank with an error of its own keeps status and message, all
 * others get ERR_PEER and a message that names this rank (an error of their own is dropped).
 */
Status comm_agree(Comm *comm, Status status) MUST_USE;
/**
 * comm_agree on the jobs of all ranks' workers, which communicate with nobody and may take long: meanwhile ranks tell one
 * another that they are there, so hang_timeout is about silence, not about work. The own job is at its end afterwards.
 */
Status comm_agree_on_work(Comm *comm, Worker *worker) MUST_USE;

/**
 * A comm of the ranks with the same color, numbered by (key, rank of parent). Its messages travel
 * through the parent's transport with tags of their own; the parent must outlive it.
 *
 * Collective: over parent. Owner: *out lives in arena; comm->free before the arena goes.
 */
Status comm_split(Comm **out, Comm *parent, int color, int key, Arena *arena) MUST_USE;
