#pragma once
/**
 * Runs that are killed at random moments, of training and of saving, go on with --resume to the same bits as one that was
 * left alone. Include after cmocka.h.
 */
#include "cases/launched.h"
#include "cases/run_folder.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

enum { KILL_STEPS = 24, KILL_PLANS_MAX = 8 };

/** The same numbers on every machine: kills differ by its speed alone. */
static inline unsigned kills_random(uint64_t *seed, unsigned n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*seed >> 33) % n;
}

static inline void kills_sleep(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    while (nanosleep(&time, &time) != 0 && errno == EINTR) continue;
}

static inline double kills_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#ifdef SW_MPIEXEC
#define KILL_PROCESSES 2
#else
#define KILL_PROCESSES 0
#endif

typedef struct KillPlan {
    const char *layout[3]; /* keys; NULL ends */
    int n_processes;       /* 0: threads of one process */
} KillPlan;

/** Threads and processes, both ways of saving, more than one step between checkpoints. */
static const KillPlan kill_plans[] = {
    {{"parallel.pp_size=2"}, 0},
    {{"checkpoint.async=false"}, 0},
    {{"parallel.pp_size=2", "parallel.schedule=zbv"}, KILL_PROCESSES},
    {{"checkpoint.interval=3", "checkpoint.keep=1"}, 0},
};

/* A run of `plan`, resuming what is there; the launcher's or the program's own process. */
static inline pid_t kills_start(const char *folder, const KillPlan *plan)
{
    Arguments args = {0};
    const char *program = SW_PROGRAM;
#ifdef SW_MPIEXEC
    if (plan->n_processes) {
        program = SW_MPIEXEC;
        add_launch(&args, plan->n_processes, SW_PROGRAM);
    }
#endif
    arguments_add(&args, "train");
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/run", folder);
    for (int i = 0; i < 3 && plan->layout[i]; i++) add_set(&args, "%s", plan->layout[i]);
    arguments_add(&args, "--resume");
    launched_environment();
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) fail_msg("cannot fork");
    if (child == 0) {
        const char *command[ARGUMENTS_MAX + 2] = {program};
        memcpy(command + 1, args.at, (size_t)args.n * sizeof *command);
        int file = open(path_in(folder, "err.txt"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(file, STDERR_FILENO);
        dup2(file, STDOUT_FILENO); /* where MPICH's launcher tells of a rank that ended */
        alarm(120);
        execv(program, (char *const *)(uintptr_t)command);
        _exit(127);
    }
    arguments_free(&args);
    return child;
}

static inline int kills_wait(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail_msg("cannot wait");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void kills_finish(const char *folder, const KillPlan *plan)
{
    int status = kills_wait(kills_start(folder, plan));
    if (status == 0) return;
    file_show(path_in(folder, "err.txt"));
    fail_msg("exit %d after a kill", status);
}

/* A rank of a launched run; 0 if it ended before. Killing the launcher would leave ranks alone. */
static inline pid_t kills_rank(const char *folder, pid_t launcher, uint64_t *seed)
{
    pid_t ranks[8];
    char word[600];
    snprintf(word, sizeof word, "train.output=%s/run", folder);
    for (;; kills_sleep(0.002)) {
        int n = launched_ranks(ranks, 8, word);
        if (n) return ranks[kills_random(seed, (unsigned)n)];
        siginfo_t info = {0};
        if (waitid(P_PID, (id_t)launcher, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid)
            return 0;
    }
}

/* Nobody writes any more once the launcher is gone, or soon after. */
static inline void kills_wait_for_ranks(const char *folder)
{
    pid_t ranks[8];
    char word[600];
    snprintf(word, sizeof word, "train.output=%s/run", folder);
    for (int i = 0; i < 1000 && launched_ranks(ranks, 8, word); i++) kills_sleep(0.01);
}

static inline bool kills_left_half(const char *folder)
{
    const char *path = path_in(folder, "run/checkpoints");
    bool half = false;
    if (!path_exists(path)) return false;
    char **names = folder_names(path);
    for (char **name = names; *name; name++) half = half || (*name)[0] == '.';
    names_free(names);
    return half;
}

/** One run after the other, of one plan or another, until there were n_kills. */
static inline void kills_check(const KillPlan *plans, int n_plans, int n_kills, uint64_t seed)
{
    char keys[256];
    snprintf(keys, sizeof keys,
             "train: {global_batch_size: 3, steps: %d, threads: 1}\ncheckpoint: {interval: 1}\n",
             KILL_STEPS);
    char *folder = run_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_EQ, 4, keys);
    kills_finish(folder, &(KillPlan){0});
    rename(path_in(folder, "run"), path_in(folder, "whole"));
    double longest[KILL_PLANS_MAX];
    for (int p = 0; p < n_plans; p++) {
        double begin = kills_clock();
        kills_finish(folder, &plans[p]);
        longest[p] = kills_clock() - begin;
        assert_true(same_run(path_in(folder, "run"), path_in(folder, "whole"), KILL_STEPS));
        folder_remove(strdup(path_in(folder, "run")));
    }
    int killed = 0, of_processes = 0, too_late = 0, while_saving = 0;
    while (killed < n_kills) {
        const KillPlan *plan = &plans[kills_random(&seed, (unsigned)n_plans)];
        double part = kills_random(&seed, 1000) / 1000.0;
        pid_t child = kills_start(folder, plan);
        kills_sleep(part * longest[plan - plans]);
        pid_t victim = plan->n_processes ? kills_rank(folder, child, &seed) : child;
        if (victim) kill(victim, SIGKILL);
        int status = kills_wait(child);
        if (plan->n_processes) kills_wait_for_ranks(folder);
        if (status == 0) {
            too_late++; /* and now it is there, whole */
        } else {
            killed++;
            of_processes += plan->n_processes > 0;
            while_saving += kills_left_half(folder);
            if (kills_random(&seed, 3) == 0) continue; /* and once more */
            kills_finish(folder, plan);
        }
        if (!same_run(path_in(folder, "run"), path_in(folder, "whole"), KILL_STEPS))
            fail_msg("after kill %d at %g of a run of %g s", killed, part, longest[plan - plans]);
        folder_remove(strdup(path_in(folder, "run")));
    }
    printf("  %d kills, %d of them of a process of MPI; %d left a half-written checkpoint; %d came "
           "too late\n",
           killed, of_processes, while_saving, too_late);
    folder_remove(folder);
}
