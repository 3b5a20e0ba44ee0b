/*
 * Layouts of up to 16 ranks: against one rank within section 13 of the numerics, in f32 and bf16; against each other by
 * bytes, where section 12 promises it. Those of up to eight ranks are launched as processes too, for their gradients. With
 * SW_FULL processes do all that threads do, and ten times as many are compared by bytes; sanitizers take a spread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/grid.h"
#include "cases/spread.h"

enum { ROWS = 16, MOST_THREADS = 16, MOST_PROCESSES = 8 };

/* ---- close to one rank --------------------------------------------------------------------- */

// clang-format off
static const Point layouts[] = { /* dp, ep, zero_stage, {pp, schedule, recompute, threads, split, virtual stages} */
    SPREAD(2, 1, 0, {1, "1f1b", 0, 1, NULL, 0}),        SPREAD(4, 1, 1, {1, "gpipe", 0.5, 2, NULL, 0}),
    SPREAD(8, 1, 0, {1, "1f1b", 1, 1, NULL, 0}),        SPREAD(16, 1, 1, {1, "1f1b", 0, 1, NULL, 0}),
    SPREAD(1, 1, 0, {2, "1f1b", 0.5, 1, NULL, 0}),      SPREAD(1, 1, 1, {4, "1f1b", 0, 1, NULL, 0}),
    SPREAD(1, 1, 0, {4, "gpipe", 1, 1, NULL, 0}),       SPREAD(1, 1, 0, {3, "zb1p", 0, 2, "[1,2,1]", 1}),
    SPREAD(2, 1, 1, {2, "1f1b", 0, 1, NULL, 0}),        SPREAD(2, 1, 0, {4, "zb_h1", 0, 1, NULL, 0}),
    SPREAD(4, 1, 1, {2, "zbv", 0.5, 1, NULL, 0}),       SPREAD(4, 1, 0, {4, "1f1b", 0, 1, NULL, 0}),
    SPREAD(8, 1, 1, {2, "interleaved", 0, 1, NULL, 2}), SPREAD(2, 1, 0, {2, "vhalf", 0, 1, NULL, 0}),
    SPREAD(2, 1, 1, {2, "dualpipev", 0, 1, NULL, 0}),   SPREAD(2, 1, 0, {3, "gpipe", 0, 1, "[2,1,1]", 0}),
    SPREAD(2, 2, 0, {1, "1f1b", 0, 1, NULL, 0}),        SPREAD(2, 2, 1, {1, "gpipe", 1, 2, NULL, 0}),
    SPREAD(4, 2, 0, {1, "1f1b", 0.5, 1, NULL, 0}),      SPREAD(4, 2, 1, {1, "1f1b", 0, 1, NULL, 0}),
    SPREAD(4, 4, 0, {1, "gpipe", 0.5, 1, NULL, 0}),     SPREAD(4, 4, 1, {1, "1f1b", 0, 2, NULL, 0}),
    SPREAD(8, 2, 0, {1, "1f1b", 0, 1, NULL, 0}),        SPREAD(8, 4, 1, {1, "1f1b", 0, 1, NULL, 0}),
    SPREAD(8, 4, 0, {1, "gpipe", 1, 1, NULL, 0}),       SPREAD(16, 2, 1, {1, "1f1b", 0, 1, NULL, 0}),
    SPREAD(16, 4, 0, {1, "1f1b", 0, 1, NULL, 0}),       SPREAD(2, 2, 0, {2, "1f1b", 0, 1, NULL, 0}),
    SPREAD(2, 2, 1, {2, "1f1b", 0.5, 2, NULL, 0}),      SPREAD(2, 2, 0, {2, "interleaved", 0, 1, NULL, 2}),
    SPREAD(2, 2, 1, {2, "interleaved", 1, 1, NULL, 2}), SPREAD(2, 2, 1, {2, "zbv", 0, 1, NULL, 0}),
    SPREAD(2, 2, 0, {2, "zbv", 0.5, 1, NULL, 0}),       SPREAD(2, 2, 0, {2, "vmin", 0, 1, NULL, 0}),
    SPREAD(2, 2, 1, {2, "zb_h2", 0, 1, NULL, 0}),       SPREAD(2, 2, 0, {2, "looped_bfs", 0, 1, NULL, 2}),
    SPREAD(2, 2, 1, {2, "dualpipev", 0, 1, NULL, 0}),   SPREAD(2, 2, 0, {4, "1f1b", 0, 1, NULL, 0}),
    SPREAD(2, 2, 1, {4, "zb1p", 0.5, 1, NULL, 1}),      SPREAD(4, 2, 0, {2, "1f1b", 0, 1, NULL, 0}),
    SPREAD(4, 2, 1, {2, "gpipe", 0.5, 1, NULL, 0}),     SPREAD(4, 2, 1, {2, "zbv", 0, 1, NULL, 0}),
    SPREAD(4, 2, 0, {2, "interleaved", 0, 1, NULL, 2}), SPREAD(4, 4, 1, {2, "1f1b", 0, 1, NULL, 0}),
    SPREAD(4, 4, 0, {2, "zbv", 0.5, 1, NULL, 0}),       SPREAD(4, 2, 1, {4, "1f1b", 0, 1, NULL, 0}),
    SPREAD(4, 4, 0, {4, "zb_h1", 0, 1, NULL, 0}),       SPREAD(8, 4, 1, {2, "1f1b", 0, 1, NULL, 0}),
    SPREAD(8, 2, 0, {2, "zbv", 0, 1, NULL, 0}),
};
// clang-format on

static bool taken(size_t i)
{
    return i % (SANITIZED ? 7 : 1) == 0;
}

static char *folder;
static TensorFile before, minus; /* the model, and the change of one rank's step of SGD */
static int n_flips;
static double least_cosine = 1;

static bool same_within_rounding(const char *name, const char *want)
{
    char own[64], other[64];
    snprintf(own, sizeof own, "%s-probe", name);
    snprintf(other, sizeof other, "%s-probe", want);
    n_flips += flips_between(folder, own, other);
    return close_probe(folder, own, other);
}

static bool same_direction(const char *name, const char *want)
{
    char own[64], other[64];
    snprintf(own, sizeof own, "%s-probe", name);
    snprintf(other, sizeof other, "%s-probe", want);
    n_flips += flips_between(folder, own, other);
    return close_in_bf16(folder, own, other, &least_cosine);
}

/* With clipping or Adam, gradients that are dp times too large would give the same change. */
static bool same_change(const char *name, const char *want)
{
    (void)want;
    char run[512];
    snprintf(run, sizeof run, "%s/%s-run", folder, name);
    return close_change(run, &before, &minus);
}

static bool gates_as_by_hand(const char *name, const char *want)
{
    (void)want;
    TensorFile grads = read_file(path_in(folder, "%s-probe/grads.safetensors", name));
    bool ok = close_router_fixture(&grads, 1);
    tensor_file_free(&grads);
    return ok;
}

static const char *const sgd[] = {"optimizer.type=sgd",
                                  "optimizer.lr=1",
                                  "optimizer.weight_decay=0",
                                  "train.max_grad_norm=0",
                                  "train.steps=1",
                                  "checkpoint.hf_dtype=f32",
                                  NULL};
static const char *const by_hand[] = {"loss.balancing_alpha=0.1", "loss.z_alpha=0", NULL};
static const char *const samples[] = {"loss.balancing_form=hf", "loss.reduction=sample", NULL};

/* What is run of each layout; one rank's is always f32. */
static const struct {
    const char *model;
    const Command *command;
    const char *const *sets;
    const char *dtype;
    bool (*close)(const char *name, const char *want);
} tasks[] = {
    {"moe", &command_probe, NULL, "f32", same_within_rounding},
    {"moe", &command_train, sgd, "f32", same_change},
    {"margin", &command_probe, NULL, "bf16", same_direction},
    {"router", &command_probe, by_hand, "f32", gates_as_by_hand},
    {"tied", &command_probe, samples, "f32", same_within_rounding},
    {"fused", &command_probe, NULL, "f32", same_within_rounding},
};
enum { ALL_TASKS = 63, PROCESS_TASKS = 1, OTHER_MODEL = 16 };

/* For layout i: the first four, and one of the last two in turn. */
static unsigned tasks_of(size_t i)
{
    return (OTHER_MODEL - 1) | (unsigned)OTHER_MODEL << i % 2;
}

/* The tasks of set `which`, or what launched_commands needs for them in `out`. */
static bool run_tasks(const char *name, const Point *layout, unsigned which, FILE *out)
{
    bool ok = true;
    for (size_t k = 0; k < COUNT(tasks) && ok; k++) {
        if (!(which >> k & 1)) continue;
        char task[64];
        snprintf(task, sizeof task, "%s-%zu", name, k);
        Point p = *layout;
        p.n_mb = ROWS;
        p.model = tasks[k].model;
        if (layout != &one_rank) p.dtype = tasks[k].dtype;
        Arguments args = {0};
        if (tasks[k].command == &command_train)
            point_train_arguments(&args, folder, task, &p);
        else
            point_probe_arguments(&args, folder, task, &p);
        add_sets(&args, tasks[k].sets);
        if (out)
            command_write(out, tasks[k].command, &args);
        else
            ok = command_runs(tasks[k].command, &args);
    }
    return ok;
}

static bool check_tasks(const char *name, const Point *layout, unsigned which)
{
    bool ok = true;
    for (size_t k = 0; k < COUNT(tasks); k++) {
        if (!(which >> k & 1)) continue;
        char task[64], one[64];
        snprintf(task, sizeof task, "%s-%zu", name, k);
        snprintf(one, sizeof one, "one-%zu", k);
        ok = tasks[k].close(task, one) && ok;
        folder_remove(strdup(
            path_in(folder, tasks[k].command == &command_train ? "%s-run" : "%s-probe", task)));
    }
    if (!ok) point_print(layout);
    return ok;
}

#ifdef SW_MPIEXEC
static unsigned process_tasks(size_t i)
{
    return getenv("SW_FULL") ? tasks_of(i) : PROCESS_TASKS;
}

/* Layouts of n_ranks as processes, in one launch; adds to *n how many. */
static int check_launched(int n_ranks, int *n)
{
    char name[32];
    int failed = 0, n_written = 0;
    FILE *out = fopen(path_in(folder, "commands.txt"), "w");
    assert_non_null(out);
    for (size_t i = 0; i < COUNT(layouts); i++) {
        if (!taken(i) || point_ranks(&layouts[i]) != n_ranks) continue;
        snprintf(name, sizeof name, "launched%zu", i);
        run_tasks(name, &layouts[i], process_tasks(i), out);
        n_written++;
    }
    fclose(out);
    if (!n_written) return 0;
    *n += n_written;
    Arguments args = {0};
    add_launch(&args, n_ranks, SW_LAUNCHED_COMMANDS);
    arguments_add(&args, "%s", path_in(folder, "commands.txt"));
    launch_ends(&args, folder, 0, NULL);
    for (size_t i = 0; i < COUNT(layouts); i++) {
        if (!taken(i) || point_ranks(&layouts[i]) != n_ranks) continue;
        snprintf(name, sizeof name, "launched%zu", i);
        failed += !check_tasks(name, &layouts[i], process_tasks(i));
    }
    return failed;
}
#endif

/* Rows of 1 to 128 tokens, so that no two ranks have as much to learn, and one has nothing. */
static void write_rows(void)
{
    fixture_write_rows(path_in(folder, "var.jsonl"), FIXTURE_VAR, 1, 1);
    fixture_write_rows(path_in(folder, "short.jsonl"), FIXTURE_SHORT, 1, 1);
    char *first = read_text(path_in(folder, "var.jsonl"), NULL);
    char *second = read_text(path_in(folder, "short.jsonl"), NULL);
    FILE *out = fopen(path_in(folder, "batch-%d.jsonl", ROWS), "w");
    if (!out || fprintf(out, "%s%s", first, second) < 0 || fclose(out) != 0) fail_msg("no rows");
    free(first);
    free(second);
}

static int make_inputs(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        Fixture fixture;
    } models[] = {{"moe", {.kind = FIXTURE_MOE}},
                  {"margin", {.kind = FIXTURE_MARGIN}},
                  {"router", {.kind = FIXTURE_ROUTER}},
                  {"tied", {.kind = FIXTURE_TIED}},
                  {"fused", {.kind = FIXTURE_DENSE_FIRST, .fused = true}}};
    folder = folder_make();
    for (size_t i = 0; i < COUNT(models); i++)
        fixture_write_model(path_in(folder, "%s", models[i].name), &models[i].fixture);
    write_rows();
    char text[1024];
    snprintf(text, sizeof text,
             "data: {train: [%s/batch-%d.jsonl], format: ids}\n"
             "lr_schedule: {type: constant, warmup: 0}\n",
             folder, ROWS);
    write_text(path_in(folder, "config.yaml"), text);
    if (!run_tasks("one", &one_rank, ALL_TASKS, NULL)) return 1;
    TensorFile grads = read_grads(folder, "one-0-probe");
    minus = read_grads(folder, "one-0-probe");
    add_scaled(&minus, &grads, -2);
    tensor_file_free(&grads);
    before = read_folder(path_in(folder, "moe"));
    return 0;
}

static int remove_inputs(void **state)
{
    (void)state;
    tensor_file_free(&minus);
    tensor_file_free(&before);
    folder_remove(folder);
    return 0;
}

static void layouts__of_threads_are_close_to_one_rank(void **state)
{
    (void)state;
    int failed = 0, n = 0;
    for (size_t i = 0; i < COUNT(layouts); i++) {
        if (!taken(i)) continue;
        n++;
        failed += !(run_tasks("many", &layouts[i], tasks_of(i), NULL) &&
                    check_tasks("many", &layouts[i], tasks_of(i)));
    }
    printf("  %d layouts, %d decisions of routers differ, least cosine in bf16 %.6f\n", n, n_flips,
           least_cosine);
    assert_true(least_cosine < 1 - 1e-7); /* equal ones would mean that the key was not read */
    assert_int_equal(n_flips, 0);
    assert_int_equal(failed, 0);
}

static void layouts__of_processes_are_close_to_one_rank(void **state)
{
    (void)state;
#ifdef SW_MPIEXEC
    int failed = 0, n = 0;
    for (int n_ranks = 2; n_ranks <= MOST_PROCESSES; n_ranks++)
        failed += check_launched(n_ranks, &n);
    printf("  %d layouts, %d decisions of routers differ\n", n, n_flips);
    assert_int_equal(n_flips, 0);
    assert_int_equal(failed, 0);
#else
    skip();
#endif
}

/* ---- the same bits at fixed dp and ep ------------------------------------------------------ */

/* Points of the grid, spread as these, which also say the model. */
static const Point bases[] = {
    {.dp = 2, .ep = 1, .n_mb = 10, .dtype = "f32", .model = "tied", .form = "hf"},
    {.dp = 2, .ep = 2, .n_mb = 16, .dtype = "bf16", .model = "untied", .form = "per_layer"},
    {.dp = 4, .ep = 2, .n_mb = 8, .dtype = "f32", .model = "untied", .form = "hf"},
    {.dp = 4, .ep = 4, .n_mb = 8, .dtype = "bf16", .model = "tied", .form = "hf"},
    {.dp = 8, .ep = 4, .n_mb = 8, .dtype = "f32", .model = "untied", .form = "per_layer"},
};

static void layouts__of_one_dp_and_ep_give_the_same_bits(void **state)
{
    (void)state;
    enum { LAYERS = 8, DRAWN = SANITIZED ? 5 : 60, MOST = 600 };
    static Point points[MOST];
    int n_drawn = getenv("SW_FULL") && !SANITIZED ? MOST : DRAWN;
    unsigned draw = 20261130;
    for (int n = 0; n < n_drawn;) {
        draw = draw * 1664525u + 1013904223u;
        const Point *base = &bases[n % (int)COUNT(bases)];
        Point drawn, p = *base;
        bool there = grid_point(&drawn, (int)((uint64_t)draw * GRID_POINTS >> 32));
        if (!there || drawn.n_mb * p.dp != p.n_mb) continue;
        if (drawn.layout.pp * drawn.layout.n_virtual > LAYERS) continue;
        p.layout = drawn.layout;
        p.processes = drawn.processes;
        p.zero = n / (int)COUNT(bases) % 2;
        if (point_ranks(&p) <= (p.processes ? MOST_PROCESSES : MOST_THREADS)) points[n++] = p;
    }
    char *grid = grid_folder(LAYERS);
    int failed = points_check(grid, points, n_drawn);
    folder_remove(grid);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts__of_threads_are_close_to_one_rank),
        cmocka_unit_test(layouts__of_processes_are_close_to_one_rank),
        cmocka_unit_test(layouts__of_one_dp_and_ep_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("cases/layouts", tests, make_inputs, remove_inputs);
}
