#include "comm/comm.h"

#include "base/clock.h"
#include "base/fault.h"

static CommRequest self_isend(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag)
{
    (void)data;
    die("comm %s: a send of %zu bytes to rank %d (tag %llu): there is no other rank", comm->name,
        bytes, to, (unsigned long long)tag);
}

static CommRequest self_irecv(Comm *comm, void *data, size_t bytes, int from, uint64_t tag)
{
    (void)data;
    die("comm %s: a receive of %zu bytes from rank %d (tag %llu): there is no other rank",
        comm->name, bytes, from, (unsigned long long)tag);
}

static CommState self_test(Comm *comm, CommRequest *request)
{
    (void)comm, (void)request;
    return COMM_DONE;
}

static bool self_hangs(Comm *comm, bool declare)
{
    (void)comm;
    return declare;
}

static void self_free(Comm *comm)
{
    (void)comm;
}

void comm_self_init(Comm *comm)
{
    *comm = (Comm){.name = "self",
                   .size = 1,
                   .isend = self_isend,
                   .irecv = self_irecv,
                   .test = self_test,
                   .hangs = self_hangs,
                   .free = self_free};
}

/* Long waits give the processor away: with more ranks than cores the peer needs it to get on. */
static void back_off(int tries)
{
    enum { POLLS = 16, YIELDS = 48, SLEEP_US_MAX = 50 };
    if (tries < POLLS) return;
    if (tries < YIELDS)
        clock_sleep_us(0);
    else
        clock_sleep_us(tries < YIELDS + SLEEP_US_MAX ? tries - YIELDS + 1 : SLEEP_US_MAX);
}

/* The others get a second to see it and to say what they wait for. */
static _Noreturn void hang(Comm *comm, int peer, double waited)
{
    die_line("waits for rank %d, %.1f s so far; the run hangs (train.hang_timeout %g s)", peer,
             waited, comm->hang_timeout);
    comm->hangs(comm, true);
    double begin = clock_seconds();
    while (clock_seconds() - begin < 1) {
        comm->hangs(comm, false);
        clock_sleep_us(1000);
    }
    die_now();
}

/* Seconds since *last, which moves on; at most 1, since in a longer gap between two looks this process was stopped. */
static double seconds_since(double *last)
{
    double now = clock_seconds(), gap = now - *last;
    *last = now;
    return gap < 1 ? gap : 1;
}

/*
 * A lost message (base/fault.h) cuts this rank off: what it posts from now on goes nowhere, and the others learn of it
 * when it ends. What was posted before still holds memory and is waited for as ever. One fault a process, one transport.
 */
static char lost_node;
static CommState (*intact_test)(Comm *comm, CommRequest *request);

static CommRequest lost_isend(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag)
{
    (void)comm, (void)data, (void)bytes, (void)tag;
    return (CommRequest){&lost_node, to};
}

static CommRequest lost_irecv(Comm *comm, void *data, size_t bytes, int from, uint64_t tag)
{
    (void)comm, (void)data, (void)bytes, (void)tag;
    return (CommRequest){&lost_node, from};
}

static CommState lost_test(Comm *comm, CommRequest *request)
{
    if (request->node != &lost_node) return intact_test(comm, request);
    *request = (CommRequest){0};
    return COMM_LOST;
}

static void cut_off(Comm *comm)
{
    Comm *root = comm->root ? comm->root : comm;
    intact_test = root->test;
    root->isend = lost_isend;
    root->irecv = lost_irecv;
    root->test = lost_test;
}

Status comm_look(Comm *comm, CommRequest *request, bool *done)
{
    int peer = request->peer;
    CommState state = request->node ? comm->test(comm, request) : COMM_DONE;
    if (state == COMM_LOST)
        return FAIL(ERR_PEER, "rank %d ended while rank %d waited for it", peer, comm->rank);
    if (state == COMM_DONE && fault_here(FAULT_MESSAGE)) {
        cut_off(comm);
        return FAIL(ERR_IO, "rank %d: a message from or to rank %d is lost", comm->rank, peer);
    }
    *done = state == COMM_DONE;
    return OK;
}

Status comm_wait(Comm *comm, CommRequest *request)
{
    if (!request->node) return OK;
    int peer = request->peer;
    double waited = 0, last = comm->hang_timeout > 0 ? clock_seconds() : 0;
    for (int tries = 0;; tries += tries < 1000) {
        bool done;
        TRY(comm_look(comm, request, &done));
        if (done) return OK;
        back_off(tries);
        if (comm->hang_timeout <= 0) continue;
        waited += seconds_since(&last);
        if (waited > comm->hang_timeout || comm->hangs(comm, false)) hang(comm, peer, waited);
    }
}

Status comm_wait_all(Comm *comm, CommRequest *request, int n)
{
    Status first = OK;
    for (int i = 0; i < n; i++) {
        Status status = comm_wait(comm, &request[i]);
        if (first == OK) first = status;
    }
    return first;
}

void comm_must(Status status)
{
    if (status != OK) die("%s", status_message());
}

Status comm_send(Comm *comm, const void *data, size_t bytes, int to, uint64_t tag)
{
    CommRequest request = comm->isend(comm, data, bytes, to, tag);
    return comm_wait(comm, &request);
}

Status comm_receive(Comm *comm, void *data, size_t bytes, int from, uint64_t tag)
{
    CommRequest request = comm->irecv(comm, data, bytes, from, tag);
    return comm_wait(comm, &request);
}
