/* Collectives of 1 to 8 thread ranks, and of splits of them, against sums made in one place. */
#include "comm/rank_bodies.h"
#include "comm/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void run(int n_ranks, Status (*body)(Comm *world, void *arg), void *arg)
{
    Status status = world_run_threads(n_ranks, body, arg);
    if (status != OK) fail_msg("%d ranks: status %d: %s", n_ranks, status, status_message());
}

static void comm_sum_ordered__adds_in_rank_order_bit_for_bit(void **state)
{
    (void)state;
    int64_t sizes[] = {0, 1, 2, 7, 8, 9, 1000, -1};
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) run(n_ranks, sum_body, sizes);
    int64_t rounds[] = {(1 << 20) - 1, (1 << 20) + 3, -1}; /* around the length of a round */
    run(3, sum_body, rounds);
}

static void comm_collective__gathers_broadcasts_and_folds(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) run(n_ranks, small_body, NULL);
}

static void comm_all_to_all_v__brings_each_rank_its_part(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) run(n_ranks, all_to_all_body, NULL);
}

typedef struct Shared {
    _Atomic int arrived;
} Shared;

static Status barrier_body(Comm *comm, void *arg)
{
    Shared *shared = arg;
    for (int round = 1; round <= 20; round++) {
        clock_sleep_us(
            (int)(rng_bits(rng_key(3, "barrier"), (uint64_t)(comm->rank * 50 + round)) % 300));
        shared->arrived++;
        TRY(comm_barrier(comm));
        EXPECT(shared->arrived >= round * comm->size);
        TRY(comm_barrier(comm));
    }
    return OK;
}

static void comm_barrier__waits_for_the_last(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 7; n_ranks += 3) {
        Shared shared = {0};
        run(n_ranks, barrier_body, &shared);
    }
}

static void comm_split__keeps_groups_apart(void **state)
{
    (void)state;
    run(6, split_body, NULL);
}

static void mesh__gives_a_comm_for_each_axis(void **state)
{
    (void)state;
    run(8, mesh_body, NULL);
}

typedef struct Failures {
    Status status_r[8];
    Status seen_r[8];
    char message_r[8][200];
} Failures;

static Status setup_body(Comm *comm, void *arg)
{
    Failures *f = arg;
    Status status = f->status_r[comm->rank];
    if (status != OK) status = FAIL(status, "model.safetensors: broken on rank %d", comm->rank);
    clock_sleep_us((comm->rank * 37 % 5) * 200);
    status = comm_agree(comm, status);
    f->seen_r[comm->rank] = status;
    snprintf(f->message_r[comm->rank], sizeof f->message_r[0], "%s",
             status == OK ? "" : status_message());
    TRY(status);
    return small(comm);
}

static void comm_agree__ends_all_with_one_message(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 8; n_ranks++) {
        Failures none = {0};
        assert_int_equal(world_run_threads(n_ranks, setup_body, &none), OK);
        for (int bad = 0; bad < n_ranks; bad++) {
            Failures f = {0};
            f.status_r[bad] = ERR_FORMAT;
            f.status_r[n_ranks - 1] = bad < n_ranks - 1 ? ERR_IO : ERR_FORMAT;
            if (bad > 0) f.status_r[0] = ERR_PEER; /* only repeats what a peer said: passed over */
            assert_int_equal(world_run_threads(n_ranks, setup_body, &f), ERR_FORMAT);
            char expected[100];
            snprintf(expected, sizeof expected, "model.safetensors: broken on rank %d", bad);
            assert_string_equal(status_message(), expected);
            snprintf(expected, sizeof expected, "rank %d failed", bad);
            for (int r = 0; r < n_ranks; r++) {
                if (r == bad || (r == 0 && bad > 0)) continue;
                assert_int_equal(f.seen_r[r], ERR_PEER);
                assert_string_equal(f.message_r[r], expected);
            }
        }
    }
}

static void comm_agree_on_work__takes_silence_for_a_hang_and_not_work(void **state)
{
    (void)state;
    for (int n_ranks = 1; n_ranks <= 4; n_ranks++) run(n_ranks, agree_on_work, NULL);
}

static void comm_collective__comes_back_when_a_rank_is_gone(void **state)
{
    (void)state;
    for (int which = 0; which < 7; which++)
        for (int n_ranks = 2; n_ranks <= 8; n_ranks += 3) {
            assert_int_equal(world_run_threads(n_ranks, deserter_body, &which), ERR_IO);
            assert_string_equal(status_message(), "disk on fire");
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comm_sum_ordered__adds_in_rank_order_bit_for_bit),
        cmocka_unit_test(comm_collective__gathers_broadcasts_and_folds),
        cmocka_unit_test(comm_all_to_all_v__brings_each_rank_its_part),
        cmocka_unit_test(comm_barrier__waits_for_the_last),
        cmocka_unit_test(comm_split__keeps_groups_apart),
        cmocka_unit_test(mesh__gives_a_comm_for_each_axis),
        cmocka_unit_test(comm_agree__ends_all_with_one_message),
        cmocka_unit_test(comm_agree_on_work__takes_silence_for_a_hang_and_not_work),
        cmocka_unit_test(comm_collective__comes_back_when_a_rank_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
