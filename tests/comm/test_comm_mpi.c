/* The bodies of rank_bodies.h and others on processes started by mpiexec: see mpi_ranks.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cases/launched.h"

static char *folder;

static Launched run(int n_ranks, const char *body, int status, const char *words)
{
#ifdef SW_MPI_RANKS
    const char *program = SW_MPI_RANKS;
#else
    const char *program = "";
    skip();
#endif
    Arguments args = {0};
    add_launch(&args, n_ranks, program);
    arguments_add(&args, "%s", body);
    return launch_ends(&args, folder, status, words);
}

/* Ends within the 5 s that are promised; starting and ending MPI on a busy machine come on top. */
static void ends_soon(int n_ranks, const char *body, int status, const char *words)
{
    Launched got = run(n_ranks, body, status, words);
    if (got.seconds > 10) fail_msg("%s: took %.1f s", body, got.seconds);
}

static void comm_mpi__does_what_threads_do(void **state)
{
    (void)state;
    static const int n_ranks[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof n_ranks / sizeof *n_ranks; i++) run(n_ranks[i], "good", 0, NULL);
}

static void comm_mpi__waits_without_spinning(void **state)
{
    (void)state;
    run(4, "idle", 0, NULL);
}

static void comm_mpi__a_rank_that_ends_leaves_nobody_waiting(void **state)
{
    (void)state;
    ends_soon(2, "leave", 2, "data.jsonl:7: broken on one rank");
    ends_soon(3, "desert0", 2, "disk on fire");
    ends_soon(5, "desert2", 2, "disk on fire");
    ends_soon(2, "desert4", 2, "disk on fire");
}

static void world__the_lowest_failed_process_speaks(void **state)
{
    (void)state;
    ends_soon(3, "fail-all", 2, "broken on rank 0");
    ends_soon(2, "fail-busy", 2, "broken beside a busy rank");
    run(2, "stop", 3, NULL);
}

static void comm_mpi__a_death_ends_all(void **state)
{
    (void)state;
    ends_soon(3, "die", 1, "rank 1 step 3: gone wrong");
    ends_soon(2, "wrong-size", 1, "rank 0 sends 8 bytes, rank 1 expects 7 (tag 9)");
}

/* Both ranks that wait say so; then all end, the one that works or is stopped too. */
static void comm_mpi__a_hang_ends_all_and_each_waiting_rank_says_why(void **state)
{
    (void)state;
#ifndef SW_MPI_RANKS
    skip();
#else
    static const char *const bodies[] = {"hang-work", "hang-stop"};
    for (size_t i = 0; i < 2; i++) {
        Arguments args = {0};
        add_launch(&args, 3, SW_MPI_RANKS);
        arguments_add(&args, "%s", bodies[i]);
        Launched got = launch(&args, folder);
        bool right = got.status == 1 && got.n_errors == 2 && got.seconds < 15;
        static const char *const lines[] = {"rank 1 step 7 action 2F0: waits for rank 0, ",
                                            "rank 2 step 7 action 2F0: waits for rank 1, "};
        FILE *file = fopen(path_in(folder, "err.txt"), "r");
        char text[8192];
        text[file ? fread(text, 1, sizeof text - 1, file) : 0] = '\0';
        if (file) fclose(file);
        for (size_t k = 0; k < 2; k++) right = right && strstr(text, lines[k]);
        if (right) continue;
        file_show(path_in(folder, "err.txt"));
        fail_msg("%s: exit %d after %.1f s with %d errors", bodies[i], got.status, got.seconds,
                 got.n_errors);
    }
#endif
}

static void comm_mpi__refuses_more_stored_messages_than_it_can_tell_apart(void **state)
{
    (void)state;
    ends_soon(2, "too-many", 1, "too many messages from rank 0");
}

static int make_folder(void **state)
{
    (void)state;
    folder = folder_make();
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comm_mpi__does_what_threads_do),
        cmocka_unit_test(comm_mpi__waits_without_spinning),
        cmocka_unit_test(comm_mpi__a_rank_that_ends_leaves_nobody_waiting),
        cmocka_unit_test(world__the_lowest_failed_process_speaks),
        cmocka_unit_test(comm_mpi__a_death_ends_all),
        cmocka_unit_test(comm_mpi__a_hang_ends_all_and_each_waiting_rank_says_why),
        cmocka_unit_test(comm_mpi__refuses_more_stored_messages_than_it_can_tell_apart),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
