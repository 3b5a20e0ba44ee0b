/*
 * Ranks on several hosts, which are network namespaces with a name, an address and processes of its own each (hosts.sh): over TCP alone the run
 * gives the bits of threads; and when a host loses its network, all ranks end and say whom they wait for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cases/launched.h"
#include "cases/runs.h"

#define HOSTS_SCRIPT SW_SOURCE_DIR "/tests/cases/hosts.sh"

static char *folder;

static int make_inputs(void **state)
{
    (void)state;
    folder = folder_make();
    fixture_write_model(path_in(folder, "model"), &(Fixture){0});
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_VAR, 1, 0);
    char text[2048];
    snprintf(text, sizeof text,
             "model: {path: %s, dtype: f32}\n"
             "data: {train: [%s], format: ids, pack: none}\n"
             "train: {output: none, global_batch_size: 4, threads: 1}\n"
             "parallel: {pp_size: 2, dp_size: 2, ep_size: 2}\n"
             "lr_schedule: {type: constant}\n"
             "checkpoint: {interval: 100, async: false}\n",
             path_in(folder, "model"), path_in(folder, "rows.jsonl"));
    write_text(path_in(folder, "run.yaml"), text);
    return 0;
}

static int remove_inputs(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

static bool hosts_can_be_made(void)
{
#ifdef SW_MPIEXEC
    Arguments args = {0};
    arguments_add(&args, "--can");
    bool can = program_run(HOSTS_SCRIPT, &args, folder, 60) == 0;
    arguments_free(&args);
    if (!can)
        print_message("no hosts: needs root, iproute2 and leave to make network namespaces\n");
    return can;
#else
    print_message("no hosts: built without MPI\n");
    return false;
#endif
}

/* A launcher of n_ranks ranks, dealt out in turn; what its MPI must be told to go by TCP, in its own words. */
static void add_hosts_launch(Arguments *args, int n_hosts, int n_ranks)
{
#ifdef SW_MPIEXEC
    static const char *const openmpi[] = {"--allow-run-as-root",
                                          "--oversubscribe",
                                          "--bind-to",
                                          "none",
                                          "--map-by",
                                          "node",
                                          "--host",
                                          "HOSTS",
                                          "--mca",
                                          "plm_rsh_agent",
                                          HOSTS_SCRIPT,
                                          "--mca",
                                          "pml",
                                          "ob1",
                                          "--mca",
                                          "btl",
                                          "self,tcp",
                                          "--mca",
                                          "btl_tcp_if_include",
                                          "eth0",
                                          "--mca",
                                          "oob_tcp_if_include",
                                          "eth0",
                                          NULL};
    static const char *const mpich[] = {"-launcher",  "ssh",    "-launcher-exec",
                                        HOSTS_SCRIPT, "-iface", "eth0",
                                        "-hosts",     "HOSTS",  NULL};
    arguments_add(args, "%d", n_hosts);
    arguments_add(args, "%s", SW_MPIEXEC);
    for (const char *const *o = strcmp(SW_MPI, "mpich") ? openmpi : mpich; *o; o++)
        arguments_add(args, "%s", *o);
    arguments_add(args, "-n");
    arguments_add(args, "%d", n_ranks);
    arguments_add(args, "%s", SW_PROGRAM);
#else
    (void)args, (void)n_hosts, (void)n_ranks;
#endif
}

static void add_train(Arguments *args, int steps, const char *out)
{
    arguments_add(args, "train");
    arguments_add(args, "%s", path_in(folder, "run.yaml"));
    add_set(args, "train.steps=%d", steps);
    add_set(args, "train.output=%s", path_in(folder, "%s", out));
}

static void hosts__give_the_bits_of_threads(void **state)
{
    (void)state;
    if (!hosts_can_be_made()) skip();
    launched_environment();
    Arguments args = {0};
    add_train(&args, 4, "threads");
    assert_true(program_ends(&args, folder, 0));
    static const struct {
        int n_hosts;
        const char *set;
    } rows[] = {{2, "train.recompute_ratio=1"},
                {4, "parallel.zero_stage=1"},
                {3, "parallel.schedule=zb_h1"}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        char out[32];
        snprintf(out, sizeof out, "hosts-%d", rows[i].n_hosts);
        add_hosts_launch(&args, rows[i].n_hosts, 4);
        add_train(&args, 4, out);
        add_set(&args, "%s", rows[i].set);
        int status = program_run(HOSTS_SCRIPT, &args, folder, 120);
        arguments_free(&args);
        if (status != 0) {
            file_show(path_in(folder, "err.txt"));
            fail_msg("4 ranks on %d hosts: exit %d, expected 0", rows[i].n_hosts, status);
        }
        assert_true(same_run(path_in(folder, "%s", out), path_in(folder, "threads"), 4));
    }
}

enum { HANG_SECONDS = 5, END_SECONDS = 10 };

static void hosts__that_are_cut_off_end_the_run(void **state)
{
    (void)state;
    if (!hosts_can_be_made()) skip();
    launched_environment();
    Arguments args = {0};
    arguments_add(&args, "--cut");
    arguments_add(&args, "%s", path_in(folder, "cut/metrics.jsonl"));
    add_hosts_launch(&args, 2, 4);
    add_train(&args, 1000000, "cut");
    add_set(&args, "train.hang_timeout=%d", HANG_SECONDS);
    int status = program_run(HOSTS_SCRIPT, &args, folder, 180);
    arguments_free(&args);
    char *text = read_text(path_in(folder, "err.txt"), NULL);
    const char *ended = strstr(text, "ranks ended after ");
    int seconds = 0;
    bool right = status != 0 && status < 128 && ended && strstr(text, ": waits for rank ") &&
                 sscanf(ended, "ranks ended after %d s", &seconds) == 1 &&
                 seconds <= HANG_SECONDS + END_SECONDS;
    free(text);
    if (right) return;
    file_show(path_in(folder, "err.txt"));
    fail_msg("exit %d; ranks ended after %d s, expected at most %d, and a line that says who is "
             "waited for",
             status, seconds, HANG_SECONDS + END_SECONDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts__give_the_bits_of_threads),
        cmocka_unit_test(hosts__that_are_cut_off_end_the_run),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_inputs);
}
