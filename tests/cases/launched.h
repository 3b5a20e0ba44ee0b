#pragma once
/**
 * Ranks started as processes by the launcher of the MPI that the build has (SW_MPIEXEC, SW_MPI; not
 * defined without one). Include after cmocka.h.
 */
#include "cases/harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

/** The launcher's options, then -n N PROGRAM; the program's arguments follow. */
static inline void add_launch(Arguments *args, int n_ranks, const char *program)
{
#ifdef SW_MPI
    if (args->n == 0 && !strcmp(SW_MPI, "openmpi")) {
        static const char *const options[] = {"--allow-run-as-root", "--oversubscribe", "--bind-to",
                                              "none"};
        for (size_t i = 0; i < sizeof options / sizeof *options; i++)
            arguments_add(args, "%s", options[i]);
    }
#endif
    arguments_add(args, "-n");
    arguments_add(args, "%d", n_ranks);
    arguments_add(args, "%s", program);
}

/** One more group of ranks, with arguments of their own. */
static inline void add_group(Arguments *args, int n_ranks, const char *program)
{
    arguments_add(args, ":");
    add_launch(args, n_ranks, program);
}

typedef struct Launched {
    int status;   /* of the launcher */
    int n_errors; /* lines that begin "stagewright: error: "; a sanitizer's report counts as many */
    char text[512]; /* the first of them, after that */
    double seconds;
} Launched;

/** What programs that a launcher starts need in their environment. */
static inline void launched_environment(void)
{
#ifdef __SANITIZE_ADDRESS__
    /* MPI libraries keep some memory to the end; a leak of ours fails the run. To know whose it is takes whole stacks. */
    setenv("ASAN_OPTIONS", "fast_unwind_on_malloc=0", 0);
    setenv("LSAN_OPTIONS",
           "print_suppressions=0:suppressions=" SW_SOURCE_DIR "/tests/sanitizers/lsan-mpi.supp", 1);
#endif
}

/** Start, wait, look at what was said. Frees the arguments. */
static inline Launched launch(Arguments *args, const char *folder)
{
#ifdef SW_MPIEXEC
    const char *launcher = SW_MPIEXEC;
#else
    const char *launcher = "/bin/false";
#endif
    launched_environment();
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    Launched result = {.status = program_run(launcher, args, folder, 120)};
    clock_gettime(CLOCK_MONOTONIC, &end);
    result.seconds =
        (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    FILE *file = fopen(path_in(folder, "err.txt"), "r");
    char line[2048];
    static const char prefix[] = "stagewright: error: ";
    while (file && fgets(line, sizeof line, file)) {
        const char *found = strstr(line, prefix);
        if (strstr(line, "Sanitizer")) result.n_errors += 100;
        if (found && !result.n_errors++)
            snprintf(result.text, sizeof result.text, "%.500s", found + strlen(prefix));
    }
    if (file) fclose(file);
    result.text[strcspn(result.text, "\n")] = '\0';
    arguments_free(args);
    return result;
}

/** As launch; the test fails, and what was said is shown, unless it ended so. words NULL: no error. */
static inline Launched launch_ends(Arguments *args, const char *folder, int status,
                                   const char *words)
{
    char what[512] = "";
    for (int i = 0; i < args->n; i++)
        snprintf(what + strlen(what), sizeof what - strlen(what), " %.100s", args->at[i]);
    Launched got = launch(args, folder);
    bool right = got.status == status && got.n_errors == (words ? 1 : 0) &&
                 (!words || strstr(got.text, words));
    if (!right) {
        file_show(path_in(folder, "err.txt"));
        fail_msg("%s: exit %d (expected %d), %d errors, the first \"%s\" (expected \"%s\")", what,
                 got.status, status, got.n_errors, got.text, words ? words : "none");
    }
    return got;
}

/** The process ids of at most `most` ranks of a run, found by a word of their command line. */
static inline int launched_ranks(pid_t *pid, int most, const char *word)
{
    DIR *dir = opendir("/proc");
    int n = 0;
    for (struct dirent *item; dir && n < most && (item = readdir(dir));) {
        int id = atoi(item->d_name);
        char path[300], line[4096] = "";
        snprintf(path, sizeof path, "/proc/%.200s/cmdline", item->d_name);
        FILE *file = id > 0 ? fopen(path, "r") : NULL;
        size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
        if (file) fclose(file);
        bool ours = length > 0 && strstr(line, "stagewright") && !strstr(line, "mpiexec");
        for (size_t i = 0; i < length; i++)
            if (!line[i]) line[i] = ' ';
        if (ours && strstr(line, word)) pid[n++] = id;
    }
    if (dir) closedir(dir);
    return n;
}
