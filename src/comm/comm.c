#include "comm/comm.h"

#include "base/clock.h"

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

Status comm_wait(Comm *comm, CommRequest *request)
{
    if (!request->node) return OK;
    int peer = request->peer;
    double since = comm->hang_timeout > 0 ? clock_seconds() : 0;
    for (int tries = 0;; tries += tries < 1000) {
        CommState state = comm->test(comm, request);
        if (state == COMM_DONE) return OK;
        if (state == COMM_LOST)
            return FAIL(ERR_PEER, "rank %d ended while rank %d waited for it", peer, comm->rank);
        back_off(tries);
        if (since > 0 && clock_seconds() - since > comm->hang_timeout)
            die("no answer from rank %d within hang_timeout = %g seconds", peer,
                comm->hang_timeout);
    }
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
