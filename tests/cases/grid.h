#pragma once
/**
 * The promise of equality (numerics, section 12) on a deep model: every schedule, cut, batch, recomputation, dtype,
 * transport, with tied embeddings or not, in both forms of the balancing loss. A point is compared with the plain run of the
 * same model, batch, dtype and form, as equality.h compares: probe files, and metrics, weights and moments after five
 * steps. Include after cmocka.h.
 */
#include "cases/equality.h"
#include "cases/launched.h"

typedef struct GridPoint {
    const char *schedule;
    int n_virtual, pp, n_mb;
    double recompute;
    const char *dtype, *form;
    bool tied, processes;
    int threads;
} GridPoint;

static const struct {
    const char *name;
    int n_virtual;
    int least_mb_per_rank; /* fewer microbatches are refused */
} grid_schedules[] = {
    {"gpipe", 1, 0},       {"1f1b", 1, 0},       {"interleaved", 1, 0}, {"interleaved", 2, 0},
    {"interleaved", 3, 0}, {"looped_bfs", 1, 0}, {"looped_bfs", 2, 0},  {"looped_bfs", 3, 0},
    {"zb_h1", 1, 0},       {"zb_h2", 1, 0},      {"zb1p", 1, 0},        {"zb1p", 2, 0},
    {"zb1p", 3, 0},        {"zbv", 2, 0},        {"vhalf", 2, 0},       {"vmin", 2, 0},
    {"dualpipev", 2, 2},
};
static const int grid_pp[] = {1, 2, 3, 4, 8}, grid_mb[] = {1, 2, 5, 8};

enum { GRID_POINTS = 17 * 5 * 4 * 3 * 2 * 2 * 2 * 2 };

/** Point i, and whether there is one: false where the schedule refuses so few microbatches. */
static inline bool grid_point(GridPoint *p, int i)
{
    static const double recompute[] = {0, 0.5, 1};
    int all = i;
#define DIGIT(n) (i /= before, before = (n), i % (n))
    int before = 1;
    int schedule = DIGIT((int)COUNT(grid_schedules)), pp = DIGIT((int)COUNT(grid_pp)),
        mb = DIGIT((int)COUNT(grid_mb));
    *p = (GridPoint){.schedule = grid_schedules[schedule].name,
                     .n_virtual = grid_schedules[schedule].n_virtual,
                     .pp = grid_pp[pp],
                     .n_mb = grid_mb[mb],
                     .threads = all / 7 % 2 + 1};
    p->recompute = recompute[DIGIT(3)];
    p->dtype = DIGIT(2) ? "bf16" : "f32";
    p->tied = DIGIT(2);
    p->form = DIGIT(2) ? "hf" : "per_layer";
    p->processes = DIGIT(2);
#undef DIGIT
    return p->n_mb >= grid_schedules[schedule].least_mb_per_rank * p->pp;
}

static inline void grid_print(const GridPoint *p, FILE *out)
{
    fprintf(out,
            "  %s, %d virtual stages, pp %d, %d microbatches, recompute %g, %s, %s, balancing %s, "
            "%s of %d threads\n",
            p->schedule, p->n_virtual, p->pp, p->n_mb, p->recompute, p->dtype,
            p->tied ? "tied" : "untied", p->form, p->processes ? "processes" : "ranks", p->threads);
}

/** Models and rows; to be removed by the caller. */
static inline char *grid_folder(void)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "untied"), &(Fixture){.kind = FIXTURE_DEEP});
    fixture_write_model(path_in(folder, "tied"), &(Fixture){.kind = FIXTURE_DEEP, .tied = true});
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_SHORT, 2, 1);
    char *rows = read_text(path_in(folder, "rows.jsonl"), NULL);
    for (size_t k = 0; k < COUNT(grid_mb); k++) {
        char *end = rows;
        for (int i = 0; i < grid_mb[k]; i++) end = strchr(end, '\n') + 1;
        char after = *end;
        *end = '\0';
        write_text(path_in(folder, "batch-%d.jsonl", grid_mb[k]), rows);
        *end = after;
    }
    free(rows);
    snprintf(text, sizeof text, "data: {train: [%s/rows.jsonl], format: ids}\ntrain: {steps: %d}\n",
             folder, EQUALITY_STEPS);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

static inline void grid_sets(Arguments *args, const GridPoint *p)
{
    add_set(args, "parallel.pp_size=%d", p->pp);
    add_set(args, "parallel.schedule=%s", p->schedule);
    add_set(args, "parallel.num_virtual_stages=%d", p->n_virtual);
    add_set(args, "train.recompute_ratio=%g", p->recompute);
    add_set(args, "train.threads=%d", p->threads);
    add_set(args, "model.dtype=%s", p->dtype);
    add_set(args, "loss.balancing_form=%s", p->form);
    add_set(args, "loss.balancing_alpha=0.01");
    add_set(args, "loss.z_alpha=0.001");
    add_set(args, "loss.chunk_size=16");
}

static inline void grid_probe(Arguments *args, const char *folder, const char *name,
                              const GridPoint *p)
{
    arguments_add(args, "%s/%s", folder, p->tied ? "tied" : "untied");
    arguments_add(args, "--batch");
    arguments_add(args, "%s/batch-%d.jsonl", folder, p->n_mb);
    arguments_add(args, "--out");
    arguments_add(args, "%s/%s-probe", folder, name);
    arguments_add(args, "--grads");
    grid_sets(args, p);
}

static inline void grid_train(Arguments *args, const char *folder, const char *name,
                              const GridPoint *p)
{
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "model.path=%s/%s", folder, p->tied ? "tied" : "untied");
    add_set(args, "train.output=%s/%s-run", folder, name);
    add_set(args, "train.global_batch_size=%d", p->n_mb);
    grid_sets(args, p);
}

/** Probe and run of a point on ranks that are threads. */
static inline bool grid_produce(const char *folder, const char *name, const GridPoint *p)
{
    Arguments args = {0};
    grid_probe(&args, folder, name, p);
    if (!command_runs(&command_probe, &args)) return false;
    grid_train(&args, folder, name, p);
    return command_runs(&command_train, &args);
}

/* A command as launched_commands reads it. */
static inline void grid_write(FILE *out, const Command *command, Arguments *args)
{
    add_path(command, args);
    fprintf(out, "%s\n", command->name);
    for (int i = 0; i < args->n; i++) fprintf(out, "%s\n", args->at[i]);
    fputc('\n', out);
    arguments_free(args);
}

/** The plain run that a point must equal, made when first asked for. */
static inline bool grid_plain(char name[64], const char *folder, const GridPoint *p)
{
    GridPoint plain = {.schedule = "1f1b",
                       .n_virtual = 1,
                       .pp = 1,
                       .n_mb = p->n_mb,
                       .dtype = p->dtype,
                       .tied = p->tied,
                       .form = p->form,
                       .threads = 1};
    snprintf(name, 64, "plain-%d-%s-%d-%s", p->n_mb, p->dtype, p->tied, p->form);
    return path_exists(path_in(folder, "%s-run", name)) || grid_produce(folder, name, &plain);
}

static inline bool grid_compare(const char *folder, const char *name, const GridPoint *p)
{
    char plain[64];
    bool ok = grid_plain(plain, folder, p) && equality_compare(folder, name, plain);
    if (!ok) grid_print(p, stderr);
    equality_remove(folder, name);
    return ok;
}

/** Those of n points that are processes, all of one pp, in one launch. Returns how many differ. */
static inline int grid_launch(const char *folder, const GridPoint *points, int n)
{
    int failed = 0;
#ifdef SW_MPIEXEC
    char name[64];
    FILE *out = fopen(path_in(folder, "commands.txt"), "w");
    if (!out) fail_msg("cannot write %s", path_in(folder, "commands.txt"));
    for (int i = 0; i < n; i++) {
        Arguments args = {0};
        snprintf(name, sizeof name, "launched-%d", i);
        grid_probe(&args, folder, name, &points[i]);
        grid_write(out, &command_probe, &args);
        grid_train(&args, folder, name, &points[i]);
        grid_write(out, &command_train, &args);
    }
    fclose(out);
    Arguments launch_args = {0};
    add_launch(&launch_args, points[0].pp, SW_LAUNCHED_COMMANDS);
    arguments_add(&launch_args, "%s", path_in(folder, "commands.txt"));
    launch_ends(&launch_args, folder, 0, NULL);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "launched-%d", i);
        failed += !grid_compare(folder, name, &points[i]);
    }
#else
    (void)folder, (void)points, (void)n;
#endif
    return failed;
}

/** Runs and compares the points; those of processes are launched together, a few of one pp at a time. */
static inline int grid_check(const char *folder, const GridPoint *points, int n)
{
    enum { TOGETHER = 16 };
    int failed = 0;
    for (int i = 0; i < n; i++) {
        if (points[i].processes) continue;
        bool ok = grid_produce(folder, "other", &points[i]);
        if (!ok) grid_print(&points[i], stderr);
        failed += !ok || !grid_compare(folder, "other", &points[i]);
    }
#ifdef SW_MPIEXEC
    for (size_t k = 0; k < COUNT(grid_pp); k++) {
        GridPoint group[TOGETHER];
        int in_group = 0;
        for (int i = 0; i <= n; i++) {
            if (i < n && points[i].processes && points[i].pp == grid_pp[k])
                group[in_group++] = points[i];
            if (in_group == TOGETHER || (i == n && in_group)) {
                failed += grid_launch(folder, group, in_group);
                in_group = 0;
            }
        }
    }
#else
    printf("  points of processes skipped: built without MPI\n");
#endif
    return failed;
}
