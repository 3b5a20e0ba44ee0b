#pragma once
/** Points of equality.h on several data-parallel ranks, with keys of a test's own. Include after cmocka.h. */
#include "cases/closeness.h"
#include "cases/equality.h"

/** In a table: f32, eight rows; the layout in braces. */
#define SPREAD(DP, EP, ZERO, ...) \
    { \
        .layout = __VA_ARGS__, .dp = DP, .ep = EP, .zero = ZERO, .n_mb = 8, .model = "model", \
        .dtype = "f32", .form = "per_layer" \
    }

static const Point one_rank = SPREAD(1, 1, 0, {1, "1f1b", 0, 1, NULL, 0});

/* Options and keys; the list ends with NULL, or is NULL. */
static inline void add_sets(Arguments *args, const char *const *sets)
{
    for (; sets && *sets; sets++)
        if ((*sets)[0] == '-')
            arguments_add(args, "%s", *sets);
        else
            add_set(args, "%s", *sets);
}

/** Probe of a point into folder/NAME-probe, its ranks as threads. */
static inline bool probe(const char *folder, const char *name, const Point *p,
                         const char *const *sets)
{
    Arguments args = {0};
    point_probe_arguments(&args, folder, name, p);
    add_sets(&args, sets);
    return command_runs(&command_probe, &args);
}

/** Run of a point into folder/NAME-run, its ranks as threads. */
static inline bool train(const char *folder, const char *name, const Point *p,
                         const char *const *sets)
{
    Arguments args = {0};
    point_train_arguments(&args, folder, name, p);
    add_sets(&args, sets);
    return command_runs(&command_train, &args);
}

/** Run folder/NAME-run is that of folder/WANT-run, bit for bit. */
static inline bool same_runs(const char *folder, const char *name, const char *want, int steps)
{
    return same_run(path_in(folder, "%s-run", name), path_in(folder, "%s-run", want), steps);
}

/** A folder of points of one model, "model": its n rows are batch-n.jsonl; runs take `times` as many for five steps. */
static inline char *spread_folder(const Fixture *fixture, FixtureRows rows, int n, int times)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), fixture);
    fixture_write_rows(path_in(folder, "batch-%d.jsonl", n), rows, 1, 1);
    fixture_write_rows(path_in(folder, "rows.jsonl"), rows, times, 1);
    fixture_write_rows(path_in(folder, "eval.jsonl"), FIXTURE_MASK, 1, 2);
    snprintf(text, sizeof text,
             "data: {train: [%s/rows.jsonl], eval: [%s/eval.jsonl], format: ids}\n"
             "train: {steps: 5, eval_interval: 2}\n"
             "lr_schedule: {type: constant, warmup: 0}\n",
             folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}
