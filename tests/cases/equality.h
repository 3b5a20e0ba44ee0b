#pragma once
/**
 * The promise of equality (numerics, section 12): points of a grid, each compared with the plain run of the same model,
 * microbatches, dtype, balancing form, kernel path, dp_size and ep_size. What is compared, all bit for bit: losses.json
 * and grads.safetensors of a probe; metrics.jsonl, weights, moments and export after five steps. Include after cmocka.h.
 *
 * A folder of points holds a model MODEL for each name that points have, batch-M.jsonl for each number of microbatches, and
 * config.yaml with the data and EQUALITY_STEPS steps.
 */
#include "cases/launched.h"
#include "cases/runs.h"
#include "cli/command.h"

enum { EQUALITY_STEPS = 5 };

typedef struct Point {
    Layout layout;
    int dp, ep, zero;                 /* zero_stage; 0 of dp and ep stands for 1 */
    int n_mb;                         /* of all data-parallel ranks together */
    const char *model, *dtype, *form; /* form: of the balancing loss */
    const char *path;                 /* train.isa; NULL: what the machine or SW_TEST_ISA says */
    bool processes;                   /* else ranks are threads */
} Point;

static inline int point_ranks(const Point *p)
{
    return p->layout.pp * (p->dp ? p->dp : 1);
}

static inline void point_print(const Point *p)
{
    fprintf(stderr, "  dp %d, ep %d, zero_stage %d,\n", p->dp, p->ep, p->zero);
    fprintf(stderr, "  %d microbatches, %s, balancing %s, path %s, ranks are %s,\n", p->n_mb,
            p->dtype, p->form, p->path ? p->path : "auto", p->processes ? "processes" : "threads");
    print_layout(p->model, &p->layout);
}

/* ---- running ------------------------------------------------------------------------------- */

static inline void point_sets(Arguments *args, const Point *p)
{
    add_layout(args, &p->layout);
    if (p->dp) add_set(args, "parallel.dp_size=%d", p->dp);
    if (p->ep) add_set(args, "parallel.ep_size=%d", p->ep);
    add_set(args, "parallel.zero_stage=%d", p->zero);
    add_set(args, "model.dtype=%s", p->dtype);
    add_set(args, "loss.balancing_form=%s", p->form);
    add_set(args, "loss.balancing_alpha=0.01");
    add_set(args, "loss.z_alpha=0.001");
    add_set(args, "loss.chunk_size=16");
    if (p->path) add_set(args, "train.isa=%s", p->path);
}

static inline void point_probe_arguments(Arguments *args, const char *folder, const char *name,
                                         const Point *p)
{
    arguments_add(args, "%s/%s", folder, p->model);
    arguments_add(args, "--batch");
    arguments_add(args, "%s/batch-%d.jsonl", folder, p->n_mb);
    arguments_add(args, "--out");
    arguments_add(args, "%s/%s-probe", folder, name);
    arguments_add(args, "--grads");
    point_sets(args, p);
}

static inline void point_train_arguments(Arguments *args, const char *folder, const char *name,
                                         const Point *p)
{
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "model.path=%s/%s", folder, p->model);
    add_set(args, "train.output=%s/%s-run", folder, name);
    add_set(args, "train.global_batch_size=%d", p->n_mb);
    point_sets(args, p);
}

/** Probe of a point into folder/NAME-probe, its ranks as threads. */
static inline bool point_probe(const char *folder, const char *name, const Point *p)
{
    Arguments args = {0};
    point_probe_arguments(&args, folder, name, p);
    return command_runs(&command_probe, &args);
}

/** Probe and run into folder/NAME-probe and folder/NAME-run. */
static inline bool point_produce(const char *folder, const char *name, const Point *p)
{
    if (!point_probe(folder, name, p)) return false;
    Arguments args = {0};
    point_train_arguments(&args, folder, name, p);
    return command_runs(&command_train, &args);
}

/* ---- comparing ----------------------------------------------------------------------------- */

static inline bool equality_compare_probes(const char *folder, const char *name, const char *want)
{
    return same_probe(path_in(folder, "%s-probe", name), path_in(folder, "%s-probe", want));
}

/** Both sets of files are the same; prints which is not. */
static inline bool equality_compare(const char *folder, const char *name, const char *want)
{
    char own[512], other[512];
    bool ok = equality_compare_probes(folder, name, want);
    snprintf(own, sizeof own, "%s/%s-run", folder, name);
    snprintf(other, sizeof other, "%s/%s-run", folder, want);
    return same_run(own, other, EQUALITY_STEPS) && ok;
}

/** The plain run that a point must equal, made when first asked for. */
static inline bool point_plain(char name[128], const char *folder, const Point *p)
{
    Point plain = *p;
    plain.layout = (Layout){1, "1f1b", 0, 1, NULL, 0};
    plain.zero = 0;
    snprintf(name, 128, "plain-%d-%d-%s-%d-%s-%s-%s", p->dp, p->ep, p->model, p->n_mb, p->dtype,
             p->form, p->path ? p->path : "auto");
    return path_exists(path_in(folder, "%s-run", name)) || point_produce(folder, name, &plain);
}

/* Removes what the point wrote, so that a long grid does not fill the disk. */
static inline bool point_compare(const char *folder, const char *name, const Point *p)
{
    char plain[128];
    bool ok = point_plain(plain, folder, p) && equality_compare(folder, name, plain);
    if (!ok) point_print(p);
    folder_remove(strdup(path_in(folder, "%s-run", name)));
    folder_remove(strdup(path_in(folder, "%s-probe", name)));
    return ok;
}

/* ---- many points --------------------------------------------------------------------------- */

/* A command as launched_commands reads it. */
static inline void command_write(FILE *out, const Command *command, Arguments *args)
{
    add_path(command, args);
    fprintf(out, "%s\n", command->name);
    for (int i = 0; i < args->n; i++) fprintf(out, "%s\n", args->at[i]);
    fputc('\n', out);
    arguments_free(args);
}

/* Points of processes, all of as many ranks, in one launch. Returns how many differ. */
static inline int points_launch(const char *folder, const Point *const *points, int n)
{
    int failed = 0;
#ifdef SW_MPIEXEC
    char name[64];
    FILE *out = fopen(path_in(folder, "commands.txt"), "w");
    if (!out) fail_msg("cannot write %s", path_in(folder, "commands.txt"));
    for (int i = 0; i < n; i++) {
        Arguments args = {0};
        snprintf(name, sizeof name, "launched-%d", i);
        point_probe_arguments(&args, folder, name, points[i]);
        command_write(out, &command_probe, &args);
        point_train_arguments(&args, folder, name, points[i]);
        command_write(out, &command_train, &args);
    }
    fclose(out);
    Arguments args = {0};
    add_launch(&args, point_ranks(points[0]), SW_LAUNCHED_COMMANDS);
    arguments_add(&args, "%s", path_in(folder, "commands.txt"));
    launch_ends(&args, folder, 0, NULL);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "launched-%d", i);
        failed += !point_compare(folder, name, points[i]);
    }
#else
    (void)folder, (void)points;
    printf("  %d points of processes skipped: built without MPI\n", n);
#endif
    return failed;
}

/**
 * Runs and compares the points; those of processes are launched together, a few of as many ranks at a time. Returns how many
 * differ.
 */
static inline int points_check(const char *folder, const Point *points, int n)
{
    enum { TOGETHER = 16, MOST_RANKS = 8 };
    int failed = 0;
    for (int i = 0; i < n; i++) {
        if (points[i].processes) continue;
        bool ok = point_produce(folder, "other", &points[i]);
        if (!ok) point_print(&points[i]);
        failed += !ok || !point_compare(folder, "other", &points[i]);
    }
    for (int n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++) {
        const Point *group[TOGETHER];
        int in_group = 0;
        for (int i = 0; i <= n; i++) {
            if (i < n && points[i].processes && point_ranks(&points[i]) == n_ranks)
                group[in_group++] = &points[i];
            if (in_group == TOGETHER || (i == n && in_group)) {
                failed += points_launch(folder, group, in_group);
                in_group = 0;
            }
        }
    }
    return failed;
}

/* ---- the first grid ------------------------------------------------------------------------ */

static const struct {
    const char *name;
    Fixture fixture;
} equality_models[] = {
    {"moe", {.kind = FIXTURE_MOE}},
    {"tied", {.kind = FIXTURE_TIED}},
    {"dense-first", {.kind = FIXTURE_DENSE_FIRST}},
};

static const int equality_microbatches[] = {1, 2, 3, 8};

/* What the balanced split would not do: the models have four layers. */
static const Layout equality_splits[] = {
    {2, "1f1b", 0.5, 1, "[1,3]", 0}, {2, "gpipe", 1, 2, "[3,1]", 0},
    {3, "1f1b", 0, 1, "[1,2,1]", 0}, {3, "gpipe", 0.5, 2, "[2,1,1]", 0},
    {3, "1f1b", 1, 1, "[1,1,2]", 0}, {2, "1f1b", 0, 2, "[2,2]", 0},
};

enum { EQUALITY_LAYOUTS = 4 * 2 * 3 * 2 + COUNT(equality_splits) };

/** Layout i of pp 1, 2, 3, 4 (slowest) x schedule x recompute x threads, then of the splits. */
static inline Layout equality_layout(int i)
{
    static const char *const schedules[] = {"gpipe", "1f1b"};
    static const double recompute[] = {0, 0.5, 1};
    if (i >= 48) return equality_splits[i - 48];
    return (Layout){i / 12 + 1, schedules[i / 6 % 2], recompute[i / 2 % 3], i % 2 + 1, NULL, 0};
}

/** A point of ranks that are threads, f32; both forms of the balancing loss come up with every model and layout. */
static inline Point equality_point(const char *model, int n_mb, const Layout *layout)
{
    return (Point){.layout = *layout,
                   .n_mb = n_mb,
                   .model = model,
                   .dtype = "f32",
                   .form = n_mb % 2 ? "per_layer" : "hf"};
}

/*
 * The rows of FIXTURE_VAR, so all of another length; those of 9 tokens and more hold three samples,
 * one of a single token.
 */
static inline void equality_write_rows(const char *path, int n)
{
    char whole[512];
    snprintf(whole, sizeof whole, "%s.whole", path);
    fixture_write_rows(whole, FIXTURE_VAR, 5, 1);
    FILE *in = fopen(whole, "r"), *out = fopen(path, "w");
    if (!in || !out) fail_msg("cannot write %s", path);
    for (int i = 0; i < n; i++) {
        json_t *row = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL);
        int tokens = (int)json_array_size(json_object_get(row, "input_ids")), cut = tokens / 3;
        if (tokens >= 9)
            json_object_set_new(row, "cu_seqlens", json_pack("[i,i,i,i]", 0, cut, cut + 1, tokens));
        json_dumpf(row, out, JSON_COMPACT);
        fputc('\n', out);
        json_decref(row);
    }
    fclose(in);
    fclose(out);
}

/** A folder of points of the models above; to be removed by the caller. */
static inline char *equality_folder(void)
{
    char *folder = folder_make(), text[1024];
    for (size_t m = 0; m < COUNT(equality_models); m++)
        fixture_write_model(path_in(folder, "%s", equality_models[m].name),
                            &equality_models[m].fixture);
    for (size_t k = 0; k < COUNT(equality_microbatches); k++)
        equality_write_rows(path_in(folder, "batch-%d.jsonl", equality_microbatches[k]),
                            equality_microbatches[k]);
    equality_write_rows(path_in(folder, "rows.jsonl"), 13);
    fixture_write_rows(path_in(folder, "eval.jsonl"), FIXTURE_MASK, 1, 1);
    snprintf(text, sizeof text,
             "data: {train: [%s/rows.jsonl], eval: [%s/eval.jsonl], format: ids}\n"
             "train: {steps: %d, eval_interval: 2}\n",
             folder, folder, EQUALITY_STEPS);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}
