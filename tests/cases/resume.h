#pragma once
/** A run of a few steps, in this process or in one of its own, for the tests of stopping and going on. Include after cmocka.h. */
#include "cases/run_folder.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

/* Model and rows, and a config.yaml of three rows a step: six steps go over two epoch borders. */
static inline char *make_folder(const Fixture *fixture)
{
    return run_folder(fixture, FIXTURE_VAR, 1,
                      "train: {global_batch_size: 3}\n"
                      "loss: {balancing_alpha: 0.01}\n"
                      "lr_schedule: {type: constant, warmup: 0}\n");
}

static inline void add_run(Arguments *args, const char *folder, const char *output, int steps)
{
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "train.output=%s/%s", folder, output);
    add_set(args, "train.steps=%d", steps);
}

static inline bool run_steps(const char *folder, const char *output, int steps,
                             const Layout *layout, bool resume, const char *set)
{
    Arguments args = {0};
    add_run(&args, folder, output, steps);
    if (layout) add_layout(&args, layout);
    if (resume) arguments_add(&args, "--resume");
    if (set) add_set(&args, "%s", set);
    return command_runs(&command_train, &args);
}

/* The same for a process of its own. */
static inline void add_program_run(Arguments *args, const char *folder, const char *output,
                                   int steps)
{
    arguments_add(args, "train");
    add_run(args, folder, output, steps);
}

static inline void copy_tree(const char *from, const char *to)
{
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", to, from, to);
    if (system(command) != 0) fail_msg("%s", command);
}

static inline pid_t start_program(Arguments *args, const char *folder)
{
    char err[600];
    snprintf(err, sizeof err, "%s/err.txt", folder);
    char *command[ARGUMENTS_MAX + 2] = {(char *)(uintptr_t)SW_PROGRAM};
    memcpy(command + 1, args->at, (size_t)args->n * sizeof *command);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int file = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(file, STDERR_FILENO);
        alarm(120);
        execv(SW_PROGRAM, command);
        _exit(127);
    }
    arguments_free(args);
    return child;
}

static inline void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Wait until the run has finished that many steps. */
static inline void wait_for_steps(const char *metrics, int steps)
{
    for (int tries = 0; tries < 6000; tries++, sleep_ms(10)) {
        FILE *file = fopen(metrics, "r");
        int lines = 0;
        for (int c; file && (c = fgetc(file)) != EOF;) lines += c == '\n';
        if (file) fclose(file);
        if (lines >= steps) return;
    }
    fail_msg("%s: not %d steps in a minute", metrics, steps);
}

static inline int exit_status(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0) assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
