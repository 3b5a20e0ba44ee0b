/* Which processors ranks get: on made-up machines, and for real on this one. */
#define _GNU_SOURCE /* sched_getaffinity */
#include "comm/placement.h"
#include "comm/comm.h"
#include "comm/world.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct DivisionCase {
    const char *machine; /* as hwloc writes them */
    int n_cpus, n_ranks, n_threads;
    const char *text;
    const char *cpus; /* of the ranks, each followed by a blank; NULL: not pinned */
} DivisionCase;

// clang-format off
static const DivisionCase divisions[] = {
    {"numa:1 core:2 pu:1", 2, 2, 1, "ranks pinned: 1 core each", "0 1 "},
    {"numa:2 core:4 pu:1", 8, 2, 4, "ranks pinned: 4 cores each", "0-3 4-7 "},
    {"numa:2 core:4 pu:1", 8, 4, 2, "ranks pinned: 2 cores each", "0-1 2-3 4-5 6-7 "},
    /* as systems number them that list all first processors of a core before the second */
    {"numa:2 core:2 pu:2(indexes=core)", 8, 4, 1, "ranks pinned: 1 core each", "0,4 1,5 2,6 3,7 "},
    {"numa:2 core:2 pu:2(indexes=core)", 8, 2, 4, "ranks pinned: 4 processors each", "0-1,4-5 2-3,6-7 "},
    {"numa:1 core:2 pu:1", 2, 8, 1, "not pinned: 8 ranks of 1 threads on 2 processors", NULL},
    {"numa:2 core:4 pu:1", 8, 2, 3, "not pinned: 2 ranks of 3 threads on 8 cores", NULL},
    {"numa:2 core:4 pu:1", 8, 1, 8, "", NULL}, /* all that there is anyway */
};
// clang-format on

static void placement__divides_cores_side_by_side(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof divisions / sizeof *divisions; i++) {
        const DivisionCase *want = &divisions[i];
        setenv("HWLOC_SYNTHETIC", want->machine, 1);
        Placement placement;
        placement_find(&placement, want->n_ranks, want->n_threads, want->n_cpus, false);
        unsetenv("HWLOC_SYNTHETIC");
        char got[256] = "";
        for (int r = 0; r < want->n_ranks && placement.topology; r++) {
            placement_cpus(&placement, r, got + strlen(got), sizeof got - strlen(got) - 1);
            strcat(got, " ");
        }
        placement_free(&placement);
        if (strcmp(placement.text, want->text) != 0 ||
            strcmp(got, want->cpus ? want->cpus : "") != 0)
            fail_msg("%s, %d ranks of %d: found \"%s\" on %s, expected \"%s\" on %s", want->machine,
                     want->n_ranks, want->n_threads, placement.text, got, want->text,
                     want->cpus ? want->cpus : "none");
    }
}

static void placement__leaves_alone_what_others_have_bound(void **state)
{
    (void)state;
    setenv("HWLOC_SYNTHETIC", "numa:1 core:2 pu:1", 1);
    Placement placement;
    placement_find(&placement, 2, 1, 2, true);
    assert_string_equal(placement.text, "not pinned: the launcher did");
    static const char *const names[] = {"OMP_PROC_BIND", "OMP_PLACES"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        setenv(names[i], "cores", 1);
        placement_find(&placement, 2, 1, 2, false);
        unsetenv(names[i]);
        assert_null(placement.topology);
        assert_non_null(strstr(placement.text, names[i]));
    }
    unsetenv("HWLOC_SYNTHETIC");
}

/* ---- for real ------------------------------------------------------------------------------------ */

static cpu_set_t own_cpus(void)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) fail_msg("no affinity");
    return cpus;
}

/* [n_ranks][2]: what the first and the last thread of each rank's team may use. */
static Status tell_cpus(Comm *comm, void *arg)
{
    cpu_set_t(*of_r)[2] = arg;
#pragma omp parallel num_threads(comm->n_cpus)
#pragma omp for schedule(static, 1)
    for (int i = 0; i < comm->n_cpus; i++) {
        if (i == 0) of_r[comm->rank][0] = own_cpus();
        if (i == comm->n_cpus - 1) of_r[comm->rank][1] = own_cpus();
    }
    return OK;
}

static void world_run__gives_each_rank_processors_of_its_own(void **state)
{
    (void)state;
    cpu_set_t before = own_cpus(), of_r[2][2], both;
    int n_cpus = CPU_COUNT(&before);
    if (n_cpus < 2 || n_cpus % 2 || getenv("OMP_PROC_BIND") || getenv("OMP_PLACES")) skip();
#pragma omp parallel num_threads(n_cpus) /* a team that is older than the placement */
    (void)own_cpus();
    const World alone = {.size = 1, .n_cpus = n_cpus};
    assert_int_equal(world_run(&alone, 2, 0, tell_cpus, of_r), OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(CPU_COUNT(&of_r[r][0]), n_cpus / 2);
        assert_true(CPU_EQUAL(&of_r[r][0], &of_r[r][1]));
    }
    CPU_AND(&both, &of_r[0][0], &of_r[1][0]);
    assert_int_equal(CPU_COUNT(&both), 0);
    CPU_OR(&both, &of_r[0][0], &of_r[1][0]);
    assert_true(CPU_EQUAL(&both, &before));

    cpu_set_t after = own_cpus();
    assert_true(CPU_EQUAL(&after, &before));
}

/* Two runs of one rank side by side, or one of more ranks than processors, must stay where the kernel puts them. */
static void world_run__pins_nothing_when_ranks_do_not_come_to_all(void **state)
{
    (void)state;
    cpu_set_t before = own_cpus();
    const World alone = {.size = 1, .n_cpus = CPU_COUNT(&before)};
    int n_crowd = CPU_COUNT(&before) + 1;
    cpu_set_t(*of_r)[2] = calloc((size_t)n_crowd, sizeof *of_r);
    for (int n_ranks = 1; n_ranks <= n_crowd; n_ranks += n_crowd - 1) {
        assert_int_equal(world_run(&alone, n_ranks, 1, tell_cpus, of_r), OK);
        for (int r = 0; r < n_ranks; r++) assert_true(CPU_EQUAL(&of_r[r][0], &before));
    }
    free(of_r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement__divides_cores_side_by_side),
        cmocka_unit_test(placement__leaves_alone_what_others_have_bound),
        cmocka_unit_test(world_run__gives_each_rank_processors_of_its_own),
        cmocka_unit_test(world_run__pins_nothing_when_ranks_do_not_come_to_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
