// What comes in between: signals, the end of a time limit, disks that are full or cannot be written, writes that fail.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/kills.h"

#include <sys/mount.h>

static char *folder;

static int make_inputs(void **state)
{
    (void)state;
    char text[1024];
    folder = folder_make();
    fixture_write_model(path_in(folder, "model"), &(Fixture){.kind = FIXTURE_MOE});
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_EQ, 4, 1);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], format: ids}\n"
             "train: {global_batch_size: 2, threads: 1}\n"
             "lr_schedule: {type: constant, warmup: 0}\n",
             folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
    return 0;
}

static int remove_inputs(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

/* `more` are keys; with 0 processes the run's own ranks are threads. */
static void add_train(Arguments *args, int n_processes, const char *output, long steps,
                      const char *const *more)
{
    if (n_processes) add_launch(args, n_processes, SW_PROGRAM);
    arguments_add(args, "train");
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "train.output=%s", output);
    add_set(args, "train.steps=%ld", steps);
    for (; *more; more++) add_set(args, "%s", *more);
}

static pid_t start(Arguments *args, bool launched)
{
    const char *program = SW_PROGRAM;
#ifdef SW_MPIEXEC
    if (launched) program = SW_MPIEXEC;
#endif
    if (launched) launched_environment();
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(program_run(program, args, folder, 120));
    arguments_free(args);
    return child;
}

static int steps_done(const char *output)
{
    if (!path_exists(path_in(output, "metrics.jsonl"))) return 0;
    char *text = read_text(path_in(output, "metrics.jsonl"), NULL);
    int n = 0;
    for (const char *c = text; *c; c++) n += *c == '\n';
    free(text);
    return n;
}

static void wait_for_steps(const char *output, int steps)
{
    for (int i = 0; i < 6000 && steps_done(output) < steps; i++) kills_sleep(0.01);
    assert_true(steps_done(output) >= steps);
}

/* The run in `output` stopped after a step, saved, and goes on to what a run in one go gives. */
static void goes_on(const char *output, const char *const *more)
{
    int done = steps_done(output);
    Arguments args = {0};
    assert_true(path_exists(path_in(output, "checkpoints/step-%06d/manifest.json", done)));
    assert_false(path_exists(path_in(output, "hf/final")));
    add_train(&args, 0, output, done + 2, more);
    arguments_add(&args, "--resume");
    arguments_add(&args, "--override"); /* fewer steps than it was to have */
    assert_true(program_ends(&args, folder, 0));
    char whole[600];
    snprintf(whole, sizeof whole, "%s-whole", output);
    add_train(&args, 0, whole, done + 2, more);
    assert_true(program_ends(&args, folder, 0));
    assert_true(same_run(output, whole, done + 2));
}

/* ---- signals -------------------------------------------------------------------------------- */

static void interrupts__a_signal_to_any_rank_saves_and_leaves(void **state)
{
    (void)state;
#ifndef SW_MPIEXEC
    skip();
#endif
    static const int signals[] = {SIGTERM, SIGINT, SIGUSR1};
    char output[600];
    for (int i = 0; i < 3; i++) {
        snprintf(output, sizeof output, "%s/signal%d", folder, i);
        Arguments args = {0};
        add_train(&args, 2, output, 1000000, WORDS("parallel.pp_size=2", "checkpoint.interval=2"));
        pid_t child = start(&args, true), ranks[2];
        wait_for_steps(output, 3);
        assert_int_equal(launched_ranks(ranks, 2, output), 2);
        kill(ranks[i % 2], signals[i]);
        int status = kills_wait(child);
        if (status != 3) file_show(path_in(folder, "err.txt"));
        assert_int_equal(status, 3);
        goes_on(output, WORDS("parallel.pp_size=2"));
    }
}

/* A run gets both, again and again if they are the same, of which two may count as one; what it ended by. */
static int signal_twice(int first, int second)
{
    char output[600];
    snprintf(output, sizeof output, "%s/twice%d", folder, first);
    Arguments args = {0};
    add_train(&args, 0, output, 1000000, WORDS("checkpoint.interval=1"));
    char *command[ARGUMENTS_MAX + 2] = {(char *)(uintptr_t)SW_PROGRAM};
    memcpy(command + 1, args.at, (size_t)args.n * sizeof *command);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int file = open(path_in(folder, "err.txt"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(file, STDERR_FILENO);
        alarm(120);
        execv(SW_PROGRAM, command);
        _exit(127);
    }
    arguments_free(&args);
    wait_for_steps(output, 3);
    siginfo_t info = {0};
    do {
        kill(child, first);
        kill(child, second);
        kills_sleep(0.0005);
    } while (first == second &&
             waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && !info.si_pid);
    return kills_wait(child);
}

static void interrupts__a_second_signal_leaves_at_once(void **state)
{
    (void)state;
    assert_int_equal(signal_twice(SIGTERM, SIGTERM), 128 + SIGTERM);
    assert_int_equal(signal_twice(SIGINT, SIGTERM), 128 + SIGTERM);
}

/* ---- time limits ---------------------------------------------------------------------------- */

static void interrupts__stop_before_saves_and_leaves_in_time(void **state)
{
    (void)state;
    char output[600];
    for (int processes = 0; processes < 2; processes++) {
#ifndef SW_MPIEXEC
        if (processes) break;
#endif
        snprintf(output, sizeof output, "%s/limit%d", folder, processes);
        Arguments args = {0};
        add_train(&args, 2 * processes, output, 1000000,
                  WORDS("parallel.pp_size=2", "checkpoint.interval=5", "train.stop_before=4"));
        double begin = kills_clock();
        int status = kills_wait(start(&args, processes));
        double seconds = kills_clock() - begin;
        if (status != 3 || seconds > 30) {
            file_show(path_in(folder, "err.txt"));
            fail_msg("exit %d after %g s", status, seconds);
        }
        printf("  left after %.1f of 4 s\n", seconds);
        char *log = read_text(path_in(output, "log.txt"), NULL);
        assert_non_null(strstr(log, "train.stop_before is near: stopped after step"));
        free(log);
        goes_on(output, WORDS("parallel.pp_size=2"));
    }
    Arguments args = {0};
    add_train(&args, 0, output, 5, WORDS("train.stop_before=2001-01-01T10:00"));
    assert_true(program_refuses(&args, folder, WORDS("train.stop_before", "2001-01-01T10:00")));
}

/* ---- disks ---------------------------------------------------------------------------------- */

/* False where we may not. */
static bool mount_small(const char *path, const char *options)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST) fail_msg("no folder %s", path);
    if (mount("none", path, "tmpfs", 0, options) == 0) return true;
    printf("  skipped: no file system can be mounted here\n");
    return false;
}

/* Bytes of a checkpoint's files. */
static long checkpoint_bytes(const char *path)
{
    static const char *const parts[] = {"model.safetensors", "exp_avg/model.safetensors",
                                        "exp_avg_sq/model.safetensors"};
    long bytes = 0;
    for (int i = 0; i < 3; i++) {
        struct stat info;
        if (stat(path_in(path, "%s", parts[i]), &info) != 0) fail_msg("%s", path);
        bytes += info.st_size;
    }
    return bytes;
}

static void interrupts__a_full_disk_costs_a_save_and_no_run(void **state)
{
    (void)state;
    char disk[600], output[700], whole[600], options[64];
    Arguments args = {0};
    snprintf(disk, sizeof disk, "%s/disk", folder);
    snprintf(output, sizeof output, "%s/run", disk);
    snprintf(whole, sizeof whole, "%s/disk-whole", folder);
    add_train(&args, 0, whole, 6, WORDS("checkpoint.interval=2"));
    assert_true(program_ends(&args, folder, 0));
    long bytes = checkpoint_bytes(path_in(whole, "checkpoints/step-000006"));
    snprintf(options, sizeof options, "size=%ld", bytes * 2);
    if (!mount_small(disk, options)) skip();
    static const char *const modes[][4] = {
        {"checkpoint.interval=2", "checkpoint.async=false"},
        {"checkpoint.interval=2", "checkpoint.async=true"},
        {"checkpoint.interval=2", "checkpoint.async=true", "checkpoint.required=true"}};
    for (size_t k = 0; k < COUNT(modes); k++) {
        add_train(&args, 0, output, 6, modes[k]);
        bool failed = program_ends(&args, folder, 1);
        char *text = read_text(path_in(folder, "err.txt"), NULL);
        bool said = strstr(text, modes[k][2] ? "stagewright: error: "
                                             : "warning: step 4 was not saved: ") &&
                    !strstr(text, "training goes on") == !!modes[k][2] &&
                    strstr(text, "not enough space (found ") && strstr(text, "bytes free, needed ");
        free(text);
        mount("none", disk, "tmpfs", MS_REMOUNT, "size=1g");
        add_train(&args, 0, output, 6, WORDS("checkpoint.interval=2"));
        arguments_add(&args, "--resume");
        bool goes_on_now = program_ends(&args, folder, 0);
        bool same = goes_on_now && same_run(output, whole, 6);
        folder_remove(strdup(output));
        mount("none", disk, "tmpfs", MS_REMOUNT, options);
        if (!failed || !said || !same) umount2(disk, MNT_DETACH);
        assert_true(failed);
        assert_true(said);
        assert_true(same);
    }
    assert_int_equal(umount2(disk, MNT_DETACH), 0);
}

static void interrupts__a_target_that_cannot_be_written_is_refused(void **state)
{
    (void)state;
    char disk[600], output[700];
    snprintf(disk, sizeof disk, "%s/fixed", folder);
    snprintf(output, sizeof output, "%s/run", disk);
    if (!mount_small(disk, "size=1m")) skip();
    mount("none", disk, "tmpfs", MS_REMOUNT | MS_RDONLY, NULL);
    for (int pp = 1; pp <= 2; pp++) {
        Arguments args = {0};
        add_train(&args, 0, output, 3,
                  WORDS(pp == 1 ? "parallel.pp_size=1" : "parallel.pp_size=2"));
        bool ok = program_refuses(&args, folder, WORDS(disk, "Read-only"));
        if (!ok) umount2(disk, MNT_DETACH);
        assert_true(ok);
    }
    assert_int_equal(umount2(disk, MNT_DETACH), 0);
}

/* ---- faults while training goes on ------------------------------------------------------------ */

/* One fault at a time, for growing n: the run gets over it, or fails and goes on; its end is the same. */
static int try_faults(const char *kind, const char *whole, const char *const *more)
{
    int wrong = 0, over = 0, failed = 0;
    char output[600], fault[700];
    snprintf(output, sizeof output, "%s/faults", folder);
    for (long n = 1;; n += getenv("SW_FULL") ? 1 : 1 + n / 4) {
        Arguments args = {0};
        remove(path_in(folder, "mark"));
        snprintf(fault, sizeof fault, "%s:%ld:%s/mark", kind, n, folder);
        add_train(&args, 0, output, 5, more);
        setenv("SW_FAULT", fault, 1);
        int status = program_run(SW_PROGRAM, &args, folder, 60);
        unsetenv("SW_FAULT");
        arguments_free(&args);
        bool reached = path_exists(path_in(folder, "mark"));
        if (status == 1 || status == 2) {
            failed++;
            add_train(&args, 0, output, 5, more);
            arguments_add(&args, "--resume");
            if (!program_ends(&args, folder, 0)) wrong++;
        } else if (status != 0) {
            fprintf(stderr, "  %s: exit %d\n", fault, status);
            file_show(path_in(folder, "err.txt"));
            wrong++;
        }
        over += status == 0 && reached;
        if (!same_run(output, whole, 5)) {
            fprintf(stderr, "  after %s\n", fault);
            wrong++;
        }
        folder_remove(strdup(output));
        if (!reached) break;
    }
    printf("  %-7s %d failed and went on, %d got over it\n", kind, failed, over);
    return wrong;
}

static void interrupts__a_fault_while_saving_costs_no_result(void **state)
{
    (void)state;
#ifndef SW_FAULTS
    skip();
#endif
    static const char *const kinds[] = {"write", "fsync", "rename", "read"};
    const char *const more[] = {"checkpoint.interval=1", "parallel.pp_size=2", NULL};
    char whole[600];
    snprintf(whole, sizeof whole, "%s/faults-whole", folder);
    Arguments args = {0};
    add_train(&args, 0, whole, 5, more);
    assert_true(program_ends(&args, folder, 0));
    int wrong = 0;
    for (size_t k = 0; k < COUNT(kinds); k++) wrong += try_faults(kinds[k], whole, more);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(interrupts__a_signal_to_any_rank_saves_and_leaves),
        cmocka_unit_test(interrupts__a_second_signal_leaves_at_once),
        cmocka_unit_test(interrupts__stop_before_saves_and_leaves_in_time),
        cmocka_unit_test(interrupts__a_full_disk_costs_a_save_and_no_run),
        cmocka_unit_test(interrupts__a_target_that_cannot_be_written_is_refused),
        cmocka_unit_test(interrupts__a_fault_while_saving_costs_no_result),
    };
    return cmocka_run_group_tests(tests, make_inputs, remove_inputs);
}
