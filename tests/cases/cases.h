#pragma once
/**
 * Probes and runs of a small model on every schedule, against one on a single rank. Include after cmocka.h.
 */
#include "cases/closeness.h"
#include "cases/run_folder.h"
#include "cases/schedules.h"
#include "cli/command.h"

/** What is run on one layout after the other: folder/model on folder/ROWS, a microbatch each row. */
typedef struct Trial {
    const char *folder, *rows;
    int n_layers, n_mb;
    int steps;               /* of a run */
    const char *const *sets; /* further "key=value"; NULL ends */
} Trial;

static const Layout one_rank = {1, "1f1b", 0, 1, NULL, 1};

/** With model, rows.jsonl and config.yaml; to be removed by the caller. */
static inline char *case_folder(const Fixture *fixture, FixtureRows rows, int times)
{
    return run_folder(fixture, rows, times,
                      "train: {threads: 1}\nlr_schedule: {type: constant, warmup: 0}\n");
}

/** Line i alone of folder/FROM, as folder/TO. */
static inline void write_line(const char *folder, const char *from, int i, const char *to)
{
    char *text = read_text(path_in(folder, "%s", from), NULL), *line = text;
    for (; i > 0; i--) line = strchr(line, '\n') + 1;
    strchr(line, '\n')[1] = '\0';
    write_text(path_in(folder, "%s", to), line);
    free(text);
}

/* ---- probes and runs ----------------------------------------------------------------------- */

static inline void add_sets(Arguments *args, const Trial *trial, const Layout *layout)
{
    add_layout(args, layout);
    for (const char *const *set = trial->sets; set && *set; set++) add_set(args, "%s", *set);
}

static inline void add_probe(Arguments *args, const Trial *trial, const char *out,
                             const Layout *layout)
{
    arguments_add(args, "%s/model", trial->folder);
    arguments_add(args, "--batch");
    arguments_add(args, "%s/%s", trial->folder, trial->rows);
    arguments_add(args, "--out");
    arguments_add(args, "%s/%s", trial->folder, out);
    arguments_add(args, "--grads");
    add_set(args, "model.dtype=f32");
    add_sets(args, trial, layout);
}

static inline void add_train(Arguments *args, const Trial *trial, const char *out,
                             const Layout *layout)
{
    arguments_add(args, "%s/config.yaml", trial->folder);
    add_set(args, "train.output=%s/%s", trial->folder, out);
    add_set(args, "train.steps=%d", trial->steps);
    add_set(args, "train.global_batch_size=%d", trial->n_mb);
    add_sets(args, trial, layout);
}

static inline bool probe(const Trial *trial, const char *out, const Layout *layout)
{
    Arguments args = {0};
    add_probe(&args, trial, out, layout);
    return command_runs(&command_probe, &args);
}

static inline bool train(const Trial *trial, const char *out, const Layout *layout)
{
    Arguments args = {0};
    add_train(&args, trial, out, layout);
    return command_runs(&command_train, &args);
}

/* ---- every schedule ------------------------------------------------------------------------ */

/** Every schedule on pp_size ranks, with one virtual stage and with two where it may have them. False behind the last. */
static inline bool schedule_layout(Layout *layout, int pp, size_t i)
{
    for (size_t s = 0; s < COUNT(all_schedules); s++)
        for (int v = all_schedules[s].v_min; v <= all_schedules[s].v_max && v <= 2; v++) {
            if (i-- > 0) continue;
            *layout = (Layout){pp, all_schedules[s].name, 0, 1, NULL, v};
            return true;
        }
    return false;
}

/** With sanitizers a command takes ten times as long: true for one in seven. */
static inline bool left_out(unsigned *n_tried)
{
    return SANITIZED && (*n_tried)++ % 7 != 0;
}

/** The key that refuses the layout; NULL: it fits. */
static inline const char *refused_by(const Trial *trial, const Layout *layout)
{
    for (size_t s = 0; s < COUNT(all_schedules); s++)
        if (!strcmp(all_schedules[s].name, layout->schedule) &&
            trial->n_mb < all_schedules[s].mb_per_rank * layout->pp)
            return "parallel.schedule";
    return layout->pp * layout->n_virtual > trial->n_layers ? "parallel.pp_size" : NULL;
}

/* Frees the arguments. */
static inline bool command_is_refused(const Command *command, Arguments *args, const char *key)
{
    Status status = command_inside(command, args, &(World){.size = 1, .n_cpus = 2});
    bool ok = status == ERR_USAGE && strstr(status_message(), key);
    if (!ok) {
        fprintf(stderr, "  expected %s to refuse: %s\n", key, status ? status_message() : "runs");
        print_arguments(command->name, args);
    }
    arguments_free(args);
    return ok;
}

/** A probe gives what folder/WANT has, or is refused where the layout does not fit. */
static inline bool probes_as(const Trial *trial, const char *want, const Layout *layout)
{
    const char *key = refused_by(trial, layout);
    Arguments args = {0};
    add_probe(&args, trial, "other", layout);
    bool ok =
        key ? command_is_refused(&command_probe, &args, key)
            : command_runs(&command_probe, &args) &&
                  same_probe(path_in(trial->folder, "other"), path_in(trial->folder, "%s", want));
    if (!ok) print_layout(trial->rows, layout);
    return ok;
}

/** A run, left in folder/other, gives what folder/WANT has, or is refused where the layout does not fit. */
static inline bool trains_as(const Trial *trial, const char *want, const Layout *layout)
{
    const char *key = refused_by(trial, layout);
    if (path_exists(path_in(trial->folder, "other")))
        folder_remove(strdup(path_in(trial->folder, "other")));
    Arguments args = {0};
    add_train(&args, trial, "other", layout);
    bool ok = key ? command_is_refused(&command_train, &args, key)
                  : command_runs(&command_train, &args) &&
                        same_run(path_in(trial->folder, "other"),
                                 path_in(trial->folder, "%s", want), trial->steps);
    if (!ok) print_layout(trial->rows, layout);
    return ok;
}
