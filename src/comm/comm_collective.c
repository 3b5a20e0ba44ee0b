#include "comm/comm.h"

#include "base/clock.h"
#include "base/worker.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* One tag serves all collectives: ranks call them in the same order, and messages of a pair keep theirs. */
#define TAG_COLLECTIVE COMM_TAG_END

/* Both at once, or two ranks that send to each other would wait for ever. Always waits for both, since
 * both still have a hold on the caller's memory. */
static Status exchange(Comm *comm, const void *out, size_t out_bytes, int to, void *in,
                       size_t in_bytes, int from)
{
    CommRequest recv = comm->irecv(comm, in, in_bytes, from, TAG_COLLECTIVE);
    CommRequest send = comm->isend(comm, out, out_bytes, to, TAG_COLLECTIVE);
    Status received = comm_wait(comm, &recv), sent = comm_wait(comm, &send);
    return received != OK ? received : sent;
}

Status comm_barrier(Comm *comm)
{
    /* Dissemination: after round k a rank has heard, directly or not, from the 2^k ranks before it. */
    for (int hop = 1; hop < comm->size; hop *= 2) {
        char out = 0, in;
        TRY(exchange(comm, &out, 1, (comm->rank + hop) % comm->size, &in, 1,
                     (comm->rank - hop + comm->size) % comm->size));
    }
    return OK;
}

enum { CLOCK_ROUNDS = 8 };

static Status answer_clock(Comm *comm, int peer)
{
    for (int k = 0; k < CLOCK_ROUNDS; k++) {
        char asked;
        TRY(comm_receive(comm, &asked, 1, peer, TAG_COLLECTIVE));
        double now = clock_seconds();
        TRY(comm_send(comm, &now, sizeof now, peer, TAG_COLLECTIVE));
    }
    return OK;
}

static Status ask_clock(Comm *comm, double *seconds)
{
    double quickest = INFINITY;
    for (int k = 0; k < CLOCK_ROUNDS; k++) {
        char ask = 0;
        double there, before = clock_seconds();
        TRY(comm_send(comm, &ask, 1, 0, TAG_COLLECTIVE));
        TRY(comm_receive(comm, &there, sizeof there, 0, TAG_COLLECTIVE));
        double took = clock_seconds() - before, offset = there - (before + took / 2);
        if (took >= quickest) continue;
        quickest = took;
        *seconds = fabs(offset) <= took / 2 ? 0 : offset;
    }
    return OK;
}

Status comm_clock_offset(Comm *comm, double *seconds)
{
    *seconds = 0;
    if (comm->rank > 0) return ask_clock(comm, seconds);
    for (int r = 1; r < comm->size; r++) TRY(answer_clock(comm, r));
    return OK;
}

Status comm_broadcast(Comm *comm, void *data, size_t bytes, int root)
{
    /* Binomial tree over ranks counted from root: the parent is the number without its highest bit. */
    int size = comm->size, place = (comm->rank - root + size) % size, top = 1;
    while (top <= place) top *= 2;
    if (place > 0)
        TRY(comm_receive(comm, data, bytes, (place - top / 2 + root) % size, TAG_COLLECTIVE));
    for (; place + top < size; top *= 2)
        TRY(comm_send(comm, data, bytes, (place + top + root) % size, TAG_COLLECTIVE));
    return OK;
}

static Status gather(Comm *comm, char *out, const void *data, const size_t *bytes_r, size_t bytes,
                     int root)
{
    if (comm->rank != root)
        return comm_send(comm, data, bytes_r ? bytes_r[comm->rank] : bytes, root, TAG_COLLECTIVE);
    for (int r = 0; r < comm->size; r++) {
        size_t n = bytes_r ? bytes_r[r] : bytes;
        if (r != root)
            TRY(comm_receive(comm, out, n, r, TAG_COLLECTIVE));
        else if (n)
            memmove(out, data, n);
        out += n;
    }
    return OK;
}

Status comm_gather(Comm *comm, void *out, const void *data, size_t bytes, int root)
{
    return gather(comm, out, data, NULL, bytes, root);
}

Status comm_gather_v(Comm *comm, void *out, const void *data, const size_t *bytes_r, int root)
{
    return gather(comm, out, data, bytes_r, 0, root);
}

Status comm_all_gather(Comm *comm, void *out, const void *data, size_t bytes)
{
    char *part_r = out;
    int size = comm->size, rank = comm->rank;
    if (bytes) memmove(part_r + (size_t)rank * bytes, data, bytes);
    /* A ring: in step k each rank passes on what it got in step k-1. */
    for (int k = 0; k + 1 < size; k++) {
        int have = (rank - k + size) % size, want = (rank - k - 1 + size) % size;
        TRY(exchange(comm, part_r + (size_t)have * bytes, bytes, (rank + 1) % size,
                     part_r + (size_t)want * bytes, bytes, (rank - 1 + size) % size));
    }
    return OK;
}

void comm_all_to_all_v(Comm *comm, CommRequest *request_2r, void *in, const size_t *in_bytes_r,
                       const void *out, const size_t *out_bytes_r)
{
    int size = comm->size, rank = comm->rank;
    char *to = in, *own = in;
    const char *from = out;
    for (int r = 0; r < size; to += in_bytes_r[r++]) {
        request_2r[r] = (CommRequest){0};
        if (r == rank)
            own = to;
        else
            request_2r[r] = comm->irecv(comm, to, in_bytes_r[r], r, TAG_COLLECTIVE);
    }
    for (int r = 0; r < size; from += out_bytes_r[r++]) {
        request_2r[size + r] = (CommRequest){0};
        if (r != rank)
            request_2r[size + r] = comm->isend(comm, from, out_bytes_r[r], r, TAG_COLLECTIVE);
        else if (out_bytes_r[r])
            memmove(own, from, out_bytes_r[r]);
    }
}

/* total [n] += x [n] */
static void add(void *total, const void *x, int64_t n, DType dtype)
{
    if (dtype == DTYPE_F64) {
        double *t = total;
        const double *v = x;
        for (int64_t i = 0; i < n; i++) t[i] += v[i];
    } else {
        float *t = total;
        const float *v = x;
        for (int64_t i = 0; i < n; i++) t[i] += v[i];
    }
}

/* Elements [begin, end) of n that rank owns. */
static int64_t slice_begin(int64_t n, int size, int rank)
{
    return n / size * rank + (rank < n % size ? rank : n % size);
}

static Status sum_round(Comm *comm, char *data, int64_t n, DType dtype, char *parts)
{
    int size = comm->size, rank = comm->rank;
    size_t unit = dtype_bytes(dtype);
    int64_t my_begin = slice_begin(n, size, rank), mine = slice_begin(n, size, rank + 1) - my_begin;
    size_t my_bytes = (size_t)mine * unit;
    if (my_bytes) memcpy(parts + (size_t)rank * my_bytes, data + (size_t)my_begin * unit, my_bytes);
    for (int k = 1; k < size; k++) {
        int to = (rank + k) % size, from = (rank - k + size) % size;
        int64_t begin = slice_begin(n, size, to), end = slice_begin(n, size, to + 1);
        TRY(exchange(comm, data + (size_t)begin * unit, (size_t)(end - begin) * unit, to,
                     parts + (size_t)from * my_bytes, my_bytes, from));
    }
    for (int r = 1; r < size; r++) add(parts, parts + (size_t)r * my_bytes, mine, dtype);
    if (my_bytes) memcpy(data + (size_t)my_begin * unit, parts, my_bytes);
    for (int k = 0; k + 1 < size; k++) {
        int have = (rank - k + size) % size, want = (rank - k - 1 + size) % size;
        int64_t a = slice_begin(n, size, have), b = slice_begin(n, size, have + 1);
        int64_t c = slice_begin(n, size, want), d = slice_begin(n, size, want + 1);
        TRY(exchange(comm, data + (size_t)a * unit, (size_t)(b - a) * unit, (rank + 1) % size,
                     data + (size_t)c * unit, (size_t)(d - c) * unit, (rank - 1 + size) % size));
    }
    return OK;
}

Status comm_sum_ordered(Comm *comm, void *data, int64_t n, DType dtype, Arena *scratch)
{
    enum { ROUND = 1 << 20 }; /* elements at a time: bounds scratch, long enough to hide latency */
    assert(dtype == DTYPE_F32 || dtype == DTYPE_F64);
    if (comm->size == 1 || n <= 0) return OK;
    size_t unit = dtype_bytes(dtype);
    int64_t round = n < ROUND ? n : ROUND;
    ArenaMark mark = arena_mark(scratch);
    /* Slices differ by one element at most: size * (round / size + 1) covers all parts of any rank. */
    char *parts = arena_take(scratch, ((size_t)round + (size_t)comm->size) * unit);
    Status status = OK;
    for (int64_t begin = 0; begin < n && status == OK; begin += round) {
        int64_t count = n - begin < round ? n - begin : round;
        status = sum_round(comm, (char *)data + (size_t)begin * unit, count, dtype, parts);
    }
    arena_rewind(scratch, mark);
    return status;
}

typedef enum Fold { FOLD_SUM, FOLD_MAX, FOLD_MIN } Fold;

static void fold_into(int64_t *total, const int64_t *x, int64_t n, Fold fold)
{
    for (int64_t i = 0; i < n; i++) switch (fold) {
        case FOLD_SUM: total[i] += x[i]; break;
        case FOLD_MAX: total[i] = x[i] > total[i] ? x[i] : total[i]; break;
        case FOLD_MIN: total[i] = x[i] < total[i] ? x[i] : total[i]; break;
        }
}

/* A binomial tree to rank 0 and back; needs no memory but a small buffer. */
static Status fold_i64(Comm *comm, int64_t *value, int64_t n, Fold fold)
{
    enum { ROUND = 256 };
    int64_t part[ROUND];
    for (int64_t begin = 0; begin < n; begin += ROUND) {
        int64_t count = n - begin < ROUND ? n - begin : ROUND;
        size_t bytes = (size_t)count * sizeof *value;
        int64_t *v = value + begin;
        for (int hop = 1; hop < comm->size; hop *= 2) {
            if (comm->rank & hop) {
                TRY(comm_send(comm, v, bytes, comm->rank - hop, TAG_COLLECTIVE));
                break;
            }
            if (comm->rank + hop >= comm->size) continue;
            TRY(comm_receive(comm, part, bytes, comm->rank + hop, TAG_COLLECTIVE));
            fold_into(v, part, count, fold);
        }
        TRY(comm_broadcast(comm, v, bytes, 0));
    }
    return OK;
}

Status comm_sum_i64(Comm *comm, int64_t *value, int64_t n)
{
    return fold_i64(comm, value, n, FOLD_SUM);
}

Status comm_max_i64(Comm *comm, int64_t *value, int64_t n)
{
    return fold_i64(comm, value, n, FOLD_MAX);
}

Status comm_min_i64(Comm *comm, int64_t *value, int64_t n)
{
    return fold_i64(comm, value, n, FOLD_MIN);
}

Status comm_agree(Comm *comm, Status status)
{
    /* Errors of one's own come before those that only report a peer's. */
    int64_t size = comm->size, mine = comm->rank + (status == ERR_PEER ? size : 0);
    int64_t lowest = status == OK ? 2 * size : mine;
    Status told = comm_min_i64(comm, &lowest, 1);
    if (status != OK && (told != OK || lowest == mine)) return status;
    TRY(told);
    if (lowest == 2 * size) return OK;
    return FAIL(ERR_PEER, "rank %d failed", (int)(lowest % size));
}

Status comm_agree_on_work(Comm *comm, Worker *worker)
{
    const double often = comm->hang_timeout > 0 ? fmin(0.25, comm->hang_timeout / 8) : 0.25;
    int64_t busy = comm->size > 1;
    Status told = OK;
    while (told == OK && busy) {
        busy = !worker_wait_for(worker, often);
        told = comm_sum_i64(comm, &busy, 1);
    }
    Status own = worker_wait(worker);
    return told == OK ? comm_agree(comm, own) : own != OK ? own : told;
}
