/* The program's ranks as processes: the same numbers as threads give, and one line of error from all of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cases/launched.h"
#include "cases/runs.h"

#include <signal.h>
#include <sys/wait.h>

#ifdef SW_MPIEXEC
#define NEEDS_MPI
#else
#define NEEDS_MPI skip()
#endif

static char *folder;

static int make_inputs(void **state)
{
    (void)state;
    folder = folder_make();
    fixture_write_model(path_in(folder, "model"), &(Fixture){.n_layers = 8});
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_VAR, 1, 0);
    fixture_write_rows(path_in(folder, "other.jsonl"), FIXTURE_EQ, 1, 0);
    return 0;
}

static int remove_inputs(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

/* ---- the same numbers -------------------------------------------------------------------------- */

static void add_probe(Arguments *args, int pp, const char *out)
{
    arguments_add(args, "probe");
    arguments_add(args, "%s", path_in(folder, "model"));
    arguments_add(args, "--batch");
    arguments_add(args, "%s", path_in(folder, "rows.jsonl"));
    arguments_add(args, "--out");
    arguments_add(args, "%s", path_in(folder, "%s", out));
    arguments_add(args, "--grads");
    arguments_add(args, "--logits");
    add_set(args, "parallel.pp_size=%d", pp);
}

static void assert_same_probe(int n_ranks)
{
    static const char *const files[] = {"losses.json", "grads.safetensors", "logits.safetensors"};
    for (size_t f = 0; f < COUNT(files); f++)
        if (!files_equal(path_in(folder, "threads/%s", files[f]),
                         path_in(folder, "processes/%s", files[f])))
            fail_msg("%s of %d processes differs from that of threads", files[f], n_ranks);
}

static void probe__gives_the_same_files_from_processes_as_from_threads(void **state)
{
    (void)state;
    NEEDS_MPI;
    Arguments args = {0};
    add_probe(&args, 2, "threads");
    assert_true(program_ends(&args, folder, 0));
    static const int n_ranks[] = {1, 2, 4};
    for (size_t i = 0; i < COUNT(n_ranks); i++) {
        add_launch(&args, n_ranks[i], SW_PROGRAM);
        add_probe(&args, n_ranks[i], "processes");
        launch_ends(&args, folder, 0, NULL);
        assert_same_probe(n_ranks[i]);
    }
}

static void add_shared_probe(Arguments *args, int pp, const char *out)
{
    add_probe(args, pp, out);
    add_set(args, "parallel.dp_size=2");
    add_set(args, "parallel.ep_size=2");
}

static void probe__shares_experts_between_processes_as_between_threads(void **state)
{
    (void)state;
    NEEDS_MPI;
    Arguments args = {0};
    add_shared_probe(&args, 2, "threads");
    assert_true(program_ends(&args, folder, 0));
    for (int pp = 1; pp <= 2; pp++) {
        add_launch(&args, 2 * pp, SW_PROGRAM);
        add_shared_probe(&args, pp, "processes");
        launch_ends(&args, folder, 0, NULL);
        assert_same_probe(2 * pp);
    }
}

static void add_train(Arguments *args, int pp, int steps, const char *out)
{
    arguments_add(args, "train");
    arguments_add(args, "%s", path_in(folder, "run.yaml"));
    add_set(args, "parallel.pp_size=%d", pp);
    add_set(args, "train.steps=%d", steps);
    add_set(args, "train.output=%s", path_in(folder, "%s", out));
}

static void write_config(void)
{
    char text[2048];
    snprintf(text, sizeof text,
             "model: {path: %s, dtype: f32}\n"
             "data: {train: [%s], format: ids, pack: none, cache_dir: %s}\n"
             "train: {output: none, global_batch_size: 4}\n"
             "loss: {balancing_form: hf}\n" /* more than the hidden state in a message */
             "lr_schedule: {type: constant}\n"
             "checkpoint: {interval: 100, async: false}\n",
             path_in(folder, "model"), path_in(folder, "rows.jsonl"), path_in(folder, "cache"));
    write_text(path_in(folder, "run.yaml"), text);
}

/* Three steps in one go by threads; two by processes and one more by threads, and the other way round. */
static void train__goes_on_by_either_transport(void **state)
{
    (void)state;
    NEEDS_MPI;
    write_config();
    Arguments args = {0};
    add_train(&args, 2, 3, "straight");
    assert_true(program_ends(&args, folder, 0));

    add_launch(&args, 2, SW_PROGRAM);
    add_train(&args, 2, 2, "first-processes");
    launch_ends(&args, folder, 0, NULL);
    add_train(&args, 1, 3, "first-processes");
    arguments_add(&args, "--resume");
    assert_true(program_ends(&args, folder, 0));

    add_train(&args, 1, 1, "first-threads");
    assert_true(program_ends(&args, folder, 0));
    add_launch(&args, 4, SW_PROGRAM);
    add_train(&args, 4, 3, "first-threads");
    arguments_add(&args, "--resume");
    launch_ends(&args, folder, 0, NULL);

    static const char *const others[] = {"first-processes", "first-threads"};
    for (size_t i = 0; i < COUNT(others); i++) {
        static const char *const parts[] = {"hf/final", "checkpoints/step-000003/exp_avg",
                                            "checkpoints/step-000003/exp_avg_sq"};
        for (size_t p = 0; p < COUNT(parts); p++) {
            char **names = folder_names(path_in(folder, "straight/%s", parts[p]));
            for (char **name = names; *name; name++)
                if (!files_equal(path_in(folder, "straight/%s/%s", parts[p], *name),
                                 path_in(folder, "%s/%s/%s", others[i], parts[p], *name)))
                    fail_msg("%s: %s/%s differs from the run in one go", others[i], parts[p],
                             *name);
            names_free(names);
        }
    }
}

/* ---- refusals ---------------------------------------------------------------------------------- */

static void launched__wrong_numbers_of_ranks_are_refused(void **state)
{
    (void)state;
    NEEDS_MPI;
    write_config();
    Arguments args = {0};
    add_launch(&args, 3, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    launch_ends(&args, folder, 2, "pp_size 2 * dp_size 1 * sp_size 1 * tp_size 1 = 2 ranks, but 3");
    assert_false(path_exists(path_in(folder, "refused")));
}

/* Names of what a launcher sets, one that another MPI's launcher would have set or that no MPI answers to. */
static void launched__by_another_launcher_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *name, *value, *with, *number; /* with: a second one */
    } rows[] = {
        {"OMPI_COMM_WORLD_SIZE", "2", NULL, NULL},
        {"PMI_SIZE", "2", NULL, NULL},
        {"PMI_SIZE", "4", "PMI_RANK", "1"},
        {"PMIX_RANK", "3", "SLURM_STEP_NUM_TASKS", "8"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        setenv(rows[i].name, rows[i].value, 1);
        if (rows[i].with) setenv(rows[i].with, rows[i].number, 1);
        Arguments args = {0};
        add_probe(&args, 2, "refused");
#ifdef SW_MPI
        bool ok = program_refuses(&args, folder,
                                  WORDS("started by the launcher of another MPI", rows[i].name));
#else
        bool ok = program_refuses(&args, folder, WORDS("built without MPI"));
#endif
        unsetenv(rows[i].name);
        if (rows[i].with) unsetenv(rows[i].with);
        assert_true(ok);
    }
    /* A launcher of one process, or so a shell believes. */
    setenv("PMIX_RANK", "0", 1);
    Arguments one = {0};
    add_probe(&one, 2, "refused");
#ifdef SW_MPI
    assert_true(program_refuses(
        &one, folder, WORDS("but 1 were started; PMIX_RANK in the environment says that")));
#else
    assert_true(program_refuses(&one, folder, WORDS("built without MPI")));
#endif
    unsetenv("PMIX_RANK");
    /* What Slurm says to every job starts nothing. */
    setenv("SLURM_NTASKS", "2", 1);
    Arguments args = {0};
    add_probe(&args, 2, "slurm");
    assert_true(program_ends(&args, folder, 0));
    unsetenv("SLURM_NTASKS");
}

/* What "rows.jsonl" is depends on the folder that a process starts in. */
static void add_in_folder(Arguments *args, const char *where)
{
    add_launch(args, 1, "-wdir");
    arguments_add(args, "%s", path_in(folder, "%s", where));
    arguments_add(args, "%s", SW_PROGRAM);
    add_train(args, 2, 3, "refused");
    add_set(args, "data.train=[rows.jsonl]");
}

static void launched__a_file_that_one_or_all_lack_is_said_once(void **state)
{
    (void)state;
    NEEDS_MPI;
    write_config();
    Arguments args = {0};
    add_launch(&args, 4, SW_PROGRAM);
    add_train(&args, 4, 3, "refused");
    add_set(&args, "data.train=[nowhere.jsonl]");
    launch_ends(&args, folder, 2, "nowhere.jsonl");

    add_in_folder(&args, ".");
    arguments_add(&args, ":");
    add_in_folder(&args, "model");
    Launched got = launch_ends(&args, folder, 2, "rows.jsonl");
    if (got.seconds > 10) fail_msg("took %.1f s", got.seconds);
    assert_false(path_exists(path_in(folder, "refused")));
}

static void launched__different_models_rows_or_keys_are_refused(void **state)
{
    (void)state;
    NEEDS_MPI;
    write_config();
    if (mkdir(path_in(folder, "elsewhere"), 0777) != 0) fail_msg("no folder");
    fixture_write_rows(path_in(folder, "elsewhere/rows.jsonl"), FIXTURE_EQ, 1, 0);
    Arguments args = {0};
    add_in_folder(&args, ".");
    arguments_add(&args, ":");
    add_in_folder(&args, "elsewhere");
    launch_ends(&args, folder, 2, "data.train: the 2 processes found different ones");

    /* no shape differs */
    char text[1024];
    const char *where = path_in(folder, "elsewhere");
    snprintf(
        text, sizeof text,
        "mkdir %s/model && sed 's/10000.0/20000.0/' %s/../model/config.json > %s/model/config.json",
        where, where, where);
    if (system(text) != 0) fail_msg("%s", text);
    add_in_folder(&args, ".");
    add_set(&args, "model.path=model");
    arguments_add(&args, ":");
    add_in_folder(&args, "elsewhere");
    add_set(&args, "model.path=model");
    launch_ends(&args, folder, 2, "model/config.json: the 2 processes found different ones");

    add_launch(&args, 1, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    add_group(&args, 1, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    add_set(&args, "optimizer.lr=0.5");
    launch_ends(&args, folder, 2, "optimizer.lr differs between processes");

    /* as auto would come out on machines of two kinds */
    add_launch(&args, 1, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    add_set(&args, "train.isa=auto");
    add_group(&args, 1, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    add_set(&args, "train.isa=generic");
    launch_ends(&args, folder, 2, "train.isa differs between processes (found generic");

    add_launch(&args, 1, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    arguments_add(&args, "--resume");
    add_group(&args, 1, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    launch_ends(&args, folder, 2, "--resume and --override: the 2 processes found different ones");

    add_launch(&args, 1, SW_PROGRAM);
    add_train(&args, 2, 3, "refused");
    add_group(&args, 1, SW_PROGRAM);
    arguments_add(&args, "inspect");
    arguments_add(&args, "%s", path_in(folder, "model"));
    launch_ends(&args, folder, 2, "COMMAND: the 2 processes found different ones");
    assert_false(path_exists(path_in(folder, "refused")));
}

/* One process reads the checksums, the others wait for what it says. */
static void launched__a_damaged_checkpoint_as_model_is_said_once(void **state)
{
    (void)state;
    NEEDS_MPI;
    write_config();
    Arguments args = {0};
    add_train(&args, 1, 1, "checkpoint");
    assert_true(program_ends(&args, folder, 0));
    const char *state_json = path_in(folder, "checkpoint/checkpoints/step-000001/state.json");
    write_text(state_json, "{}");
    add_launch(&args, 4, SW_PROGRAM);
    add_train(&args, 4, 1, "refused");
    add_set(&args, "model.path=%s", path_in(folder, "checkpoint/checkpoints/step-000001"));
    launch_ends(&args, folder, 2, "state.json: 2 bytes");
    assert_false(path_exists(path_in(folder, "refused")));
}

/* ---- one rank does it, the others wait ----------------------------------------------------------- */

static void launched__a_command_of_one_rank_runs_once(void **state)
{
    (void)state;
    NEEDS_MPI;
    Arguments args = {0};
    add_launch(&args, 3, SW_PROGRAM);
    arguments_add(&args, "inspect");
    arguments_add(&args, "%s", path_in(folder, "model"));
    launch_ends(&args, folder, 0, NULL);
    char *many = read_text(path_in(folder, "out.txt"), NULL);
    arguments_add(&args, "inspect");
    arguments_add(&args, "%s", path_in(folder, "model"));
    assert_true(program_ends(&args, folder, 0));
    char *one = read_text(path_in(folder, "out.txt"), NULL);
    assert_string_equal(many, one);
    free(many);
    free(one);
}

/* ---- deaths and crowds --------------------------------------------------------------------------- */

static double median_step(const char *out)
{
    char *text = read_text(path_in(folder, "%s/metrics.jsonl", out), NULL);
    double seconds[64], found;
    int n = 0;
    for (char *at = text; (at = strstr(at, "\"time/step\": ")) && n < 64; at++)
        if (sscanf(at, "\"time/step\": %lf", &found) == 1) {
            int place = n++;
            for (; place > 0 && seconds[place - 1] > found; place--)
                seconds[place] = seconds[place - 1];
            seconds[place] = found;
        }
    free(text);
    assert_true(n > 0);
    return seconds[n / 2];
}

static double step_of_ranks(int n_ranks, int turn)
{
    Arguments args = {0};
    char out[32];
    snprintf(out, sizeof out, "crowd-%d-%d", n_ranks, turn);
    add_launch(&args, n_ranks, SW_PROGRAM);
    add_train(&args, n_ranks, 7, out);
    add_set(&args, "train.threads=1");
    launch_ends(&args, folder, 0, NULL);
    return median_step(out);
}

/* Where waiting ranks spin, eight on two processors take a hundred times as long. Other work may spoil a turn or two. */
static void launched__more_ranks_than_processors_do_not_crawl(void **state)
{
    (void)state;
    NEEDS_MPI;
    write_config();
    double two = 0, eight = 1;
    for (int turn = 0; turn < 3 && eight > 10 * two + 0.1; turn++) {
        two = step_of_ranks(2, turn);
        eight = step_of_ranks(8, turn);
    }
    if (eight > 10 * two + 0.1) fail_msg("a step takes %g s on 8 ranks, %g s on 2", eight, two);
}

static void launched__a_killed_rank_ends_all(void **state)
{
    (void)state;
    NEEDS_MPI;
    write_config();
    fflush(NULL);
    pid_t launcher = fork();
    if (launcher == 0) {
        Arguments args = {0};
        add_launch(&args, 4, SW_PROGRAM);
        add_train(&args, 4, 1000000, "killed");
        _exit(launch(&args, folder).status);
    }
    const char *metrics = path_in(folder, "killed/metrics.jsonl");
    char word[600];
    snprintf(word, sizeof word, "train.output=%s", path_in(folder, "killed"));
    struct stat info;
    for (int i = 0; i < 600 && (stat(metrics, &info) != 0 || info.st_size == 0); i++)
        usleep(100000);
    pid_t pid[8];
    int n = launched_ranks(pid, 8, word);
    assert_int_equal(n, 4);
    kill(pid[2], SIGKILL);
    int status, left = n;
    for (int i = 0; i < 50 && (left = launched_ranks(pid, 8, word)) > 0; i++) usleep(100000);
    for (int i = 0; i < left; i++) kill(pid[i], SIGKILL);
    waitpid(launcher, &status, 0);
    if (left) fail_msg("%d ranks are still there 5 s after one was killed", left);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probe__gives_the_same_files_from_processes_as_from_threads),
        cmocka_unit_test(probe__shares_experts_between_processes_as_between_threads),
        cmocka_unit_test(train__goes_on_by_either_transport),
        cmocka_unit_test(launched__wrong_numbers_of_ranks_are_refused),
        cmocka_unit_test(launched__by_another_launcher_is_refused),
        cmocka_unit_test(launched__a_file_that_one_or_all_lack_is_said_once),
        cmocka_unit_test(launched__different_models_rows_or_keys_are_refused),
        cmocka_unit_test(launched__a_damaged_checkpoint_as_model_is_said_once),
        cmocka_unit_test(launched__a_command_of_one_rank_runs_once),
        cmocka_unit_test(launched__more_ranks_than_processors_do_not_crawl),
        cmocka_unit_test(launched__a_killed_rank_ends_all),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_inputs);
}
