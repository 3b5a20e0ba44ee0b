#pragma once
/** A small model, rows and a configuration, and runs that are refused with nothing half written. Include after cmocka.h. */
#include "cases/run_folder.h"

static inline char *make_folder(const Fixture *fixture)
{
    return run_folder(fixture, FIXTURE_EQ, 1, "train: {steps: 1}\n");
}

/** No step, no folder of weights and no temporary name is in the run's folder. */
static inline bool nothing_half_written(const char *folder)
{
    char run[512];
    snprintf(run, sizeof run, "%s/run", folder);
    if (!path_exists(run)) return true;
    char **names = folder_names(run);
    bool ok = true;
    for (char **name = names; *name; name++)
        if (strcmp(*name, "config.yaml") != 0 && strcmp(*name, "log.txt") != 0) {
            fprintf(stderr, "  refused, but %s/%s is there\n", run, *name);
            ok = false;
        }
    names_free(names);
    return ok;
}

/** `train` of a configuration in the folder, with one more key set (NULL: none). */
static inline Arguments train_arguments(const char *folder, const char *config, const char *set)
{
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/%s", folder, config);
    add_set(&args, "train.output=%s/run", folder);
    if (set) add_set(&args, "%s", set);
    return args;
}

/** `train` is refused with these words, with `pp` ranks and one more key set. */
static inline bool train_refuses(const char *folder, int pp, const char *set,
                                 const char *const *words)
{
    Arguments args = train_arguments(folder, "config.yaml", set);
    add_set(&args, "parallel.pp_size=%d", pp);
    bool ok = program_refuses(&args, folder, words);
    return nothing_half_written(folder) && ok;
}

static inline bool train_runs(const char *folder, int pp, const char *set)
{
    Arguments args = train_arguments(folder, "config.yaml", set);
    add_set(&args, "parallel.pp_size=%d", pp);
    bool ok = program_ends(&args, folder, 0);
    if (ok) folder_remove(strdup(path_in(folder, "run")));
    return ok;
}

/** How many rows failed: 0 or 1; says which one. */
static inline int row_failed(bool ok, const char *row)
{
    if (!ok) fprintf(stderr, "  row: %s\n", row);
    return !ok;
}
