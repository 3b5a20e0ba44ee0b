/* Point to point messages between thread ranks: order, tags, sizes, ranks that end. */
#include "comm/rank_bodies.h"
#include "comm/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void run(int n_ranks, Status (*body)(Comm *comm, void *arg), void *arg)
{
    Status status = world_run_threads(n_ranks, body, arg);
    if (status != OK) fail_msg("status %d: %s", status, status_message());
}

static void comm_threads__keeps_order_within_a_tag_and_lets_tags_overtake(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) run(n_ranks, many_small, NULL);
}

static void comm_threads__carries_messages_of_any_size(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks += n_ranks < 4 ? 1 : 4) run(n_ranks, ring, NULL);
}

/* Rank 2 ends early. Rank 1 waits for it, rank 0 for rank 1: both come back. */
static Status chain(Comm *comm, void *arg)
{
    (void)arg;
    char byte = 0;
    if (comm->rank == 2) return FAIL(ERR_FORMAT, "config.json: broken");
    return comm->rank == 1 ? comm_receive(comm, &byte, 1, 2, 0)
                           : comm_receive(comm, &byte, 1, 1, 0);
}

static Status send_to_ended(Comm *comm, void *arg)
{
    (void)arg;
    char byte = 0;
    if (comm->rank == 0) return FAIL(ERR_IO, "no such file");
    Status status = comm_send(comm, &byte, 1, 0, 0);
    EXPECT(status == ERR_PEER);
    return status;
}

static Status sent_before_the_end(Comm *comm, void *arg)
{
    (void)arg;
    int value = 0;
    if (comm->rank == 0) {
        clock_sleep_us(900);
        TRY(comm_receive(comm, &value, sizeof value, 1, 0));
        EXPECT(value == 42);
        Status lost = comm_receive(comm, &value, sizeof value, 1, 0);
        EXPECT(lost == ERR_PEER);
        return OK;
    }
    value = 42;
    return comm_send(comm, &value, sizeof value, 0, 0);
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

static void comm_threads__a_hang_ends_the_process_and_each_waiting_rank_says_why(void **state)
{
    (void)state;
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        _exit(world_run_threads(3, hang_body, &(bool){false}) == OK ? 0 : 2);
    }
    close(ends[1]);
    char text[4096];
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    static const char *const lines[] = {
        "stagewright: error: rank 1 step 7 action 2F0: waits for rank 0, 0.5 s so far; the run "
        "hangs (train.hang_timeout 0.5 s)\n",
        "rank 2 step 7 action 2F0: waits for rank 1, "};
    for (size_t i = 0; i < 2; i++)
        if (!strstr(text, lines[i])) fail_msg("not \"%s\" in: %s", lines[i], text);
}

static Status breadcrumb_of_rank(Comm *comm, void *arg)
{
    (void)arg;
    EXPECT(breadcrumb()->rank == comm->rank);
    char large[4 * 1024 * 1024]; /* the stack has room for a deep call */
    memset(large, comm->rank, sizeof large);
    EXPECT(large[sizeof large - 1] == comm->rank);
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
        cmocka_unit_test(comm_threads__a_hang_ends_the_process_and_each_waiting_rank_says_why),
        cmocka_unit_test(comm_threads__a_rank_that_ends_leaves_nobody_waiting),
        cmocka_unit_test(world__gives_each_rank_its_breadcrumb_and_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
