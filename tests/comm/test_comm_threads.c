/* Point to point messages between thread ranks: order, tags, sizes, ranks that end. */
#include "base/clock.h"
#include "base/rng.h"
#include "comm/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* cmocka's asserts jump and belong to the main thread: bodies return a Status instead. */
#define EXPECT(condition) \
    do { \
        if (!(condition)) \
            return FAIL(ERR_FAILED, "rank %d: line %d: %s", world->rank, __LINE__, #condition); \
    } while (0)

static void run(int n_ranks, Status (*body)(Comm *world, void *arg), void *arg)
{
    Status status = world_run_threads(n_ranks, body, arg);
    if (status != OK) fail_msg("status %d: %s", status, status_message());
}

/* All ranks send numbered messages to all (themselves too); the second tag overtakes the first. */
static Status many_small(Comm *world, void *arg)
{
    (void)arg;
    enum { N = 100, PEERS = 8 };
    static const int n = N;
    int(*out)[2][N] = malloc(PEERS * sizeof *out), (*in)[2][N] = malloc(PEERS * sizeof *in);
    CommRequest(*send)[2][N] = malloc(PEERS * sizeof *send);
    CommRequest(*recv)[2][N] = malloc(PEERS * sizeof *recv);
    for (int r = 0; r < world->size; r++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < n; i++) {
                out[r][t][i] = world->rank * 100000 + r * 10000 + t * 1000 + i;
                send[r][t][i] = world->isend(world, &out[r][t][i], sizeof(int), r, 7 + (uint64_t)t);
            }
    Status status = OK;
    for (int r = 0; r < world->size; r++)
        for (int t = 1; t >= 0; t--) {
            for (int i = 0; i < n; i++)
                recv[r][t][i] = world->irecv(world, &in[r][t][i], sizeof(int), r, 7 + (uint64_t)t);
            for (int i = n - 1; i >= 0 && status == OK; i--)
                status = comm_wait(world, &recv[r][t][i]);
        }
    for (int r = 0; r < world->size; r++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < n && status == OK; i++) status = comm_wait(world, &send[r][t][i]);
    bool right = true;
    for (int r = 0; r < world->size; r++)
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < n; i++)
                right = right && in[r][t][i] == r * 100000 + world->rank * 10000 + t * 1000 + i;
    free(out), free(in), free(send), free(recv);
    TRY(status);
    EXPECT(right);
    return OK;
}

static void comm_threads__keeps_order_within_a_tag_and_lets_tags_overtake(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) run(n_ranks, many_small, NULL);
}

/* A ring of messages of odd sizes, from none to 4 MiB, with delays on either side. */
static Status ring(Comm *world, void *arg)
{
    (void)arg;
    static const size_t bytes[] = {0, 1, 63, 4097, 1 << 20, 4 << 20};
    int next = (world->rank + 1) % world->size;
    int before = (world->rank + world->size - 1) % world->size;
    for (size_t k = 0; k < sizeof bytes / sizeof bytes[0]; k++) {
        unsigned char *out = malloc(bytes[k] + 1), *in = calloc(bytes[k] + 1, 1);
        for (size_t i = 0; i < bytes[k]; i++)
            out[i] = (unsigned char)(i * 7 + k + (size_t)world->rank);
        uint64_t key = rng_key(k, "delay");
        clock_sleep_us((int)(rng_bits(key, (uint64_t)world->rank) % 400));
        CommRequest recv = world->irecv(world, in, bytes[k], before, k);
        clock_sleep_us((int)(rng_bits(key, (uint64_t)world->rank + 100) % 400));
        CommRequest send = world->isend(world, out, bytes[k], next, k);
        Status received = comm_wait(world, &recv), sent = comm_wait(world, &send);
        bool right = in[bytes[k]] == 0;
        for (size_t i = 0; i < bytes[k]; i++)
            right = right && in[i] == (unsigned char)(i * 7 + k + (size_t)before);
        free(out), free(in);
        TRY(received);
        TRY(sent);
        EXPECT(right);
        EXPECT(!recv.node && !send.node);
    }
    return OK;
}

static void comm_threads__carries_messages_of_any_size(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks += n_ranks < 4 ? 1 : 4) run(n_ranks, ring, NULL);
}

/* Rank 2 ends early. Rank 1 waits for it, rank 0 for rank 1: both come back. */
static Status chain(Comm *world, void *arg)
{
    (void)arg;
    char byte = 0;
    if (world->rank == 2) return FAIL(ERR_FORMAT, "config.json: broken");
    return world->rank == 1 ? comm_receive(world, &byte, 1, 2, 0)
                            : comm_receive(world, &byte, 1, 1, 0);
}

static Status send_to_ended(Comm *world, void *arg)
{
    (void)arg;
    char byte = 0;
    if (world->rank == 0) return FAIL(ERR_IO, "no such file");
    Status status = comm_send(world, &byte, 1, 0, 0);
    EXPECT(status == ERR_PEER);
    return status;
}

static Status sent_before_the_end(Comm *world, void *arg)
{
    (void)arg;
    int value = 0;
    if (world->rank == 0) {
        clock_sleep_us(900);
        TRY(comm_receive(world, &value, sizeof value, 1, 0));
        EXPECT(value == 42);
        Status lost = comm_receive(world, &value, sizeof value, 1, 0);
        EXPECT(lost == ERR_PEER);
        return OK;
    }
    value = 42;
    return comm_send(world, &value, sizeof value, 0, 0);
}

static void comm_threads__a_rank_that_ends_leaves_nobody_waiting(void **state)
{
    (void)state;
    assert_int_equal(world_run_threads(3, chain, NULL), ERR_FORMAT);
    assert_string_equal(status_message(), "config.json: broken");
    assert_int_equal(world_run_threads(5, send_to_ended, NULL), ERR_IO);
    assert_string_equal(status_message(), "no such file");
    run(2, sent_before_the_end, NULL);
}

static Status breadcrumb_of_rank(Comm *world, void *arg)
{
    (void)arg;
    EXPECT(breadcrumb()->rank == world->rank);
    char large[4 * 1024 * 1024]; /* the stack has room for a deep call */
    memset(large, world->rank, sizeof large);
    EXPECT(large[sizeof large - 1] == world->rank);
    return OK;
}

static void world__gives_each_rank_its_breadcrumb_and_stack(void **state)
{
    (void)state;
    breadcrumb()->rank = 77;
    run(4, breadcrumb_of_rank, NULL);
    assert_int_equal(breadcrumb()->rank, 77);
    breadcrumb()->rank = 0;
    assert_int_equal(world_run_threads(0, breadcrumb_of_rank, NULL), ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comm_threads__keeps_order_within_a_tag_and_lets_tags_overtake),
        cmocka_unit_test(comm_threads__carries_messages_of_any_size),
        cmocka_unit_test(comm_threads__a_rank_that_ends_leaves_nobody_waiting),
        cmocka_unit_test(world__gives_each_rank_its_breadcrumb_and_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
