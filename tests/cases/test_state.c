// The state of a run survives: it goes on in another layout as if nothing had happened, every row comes once an epoch, and
// checkpoints that were put together from two are refused.
#define _XOPEN_SOURCE 700 /* nftw */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/closeness.h"
#include "cases/launched.h"
#include "cli/command.h"

#include <ftw.h>

/* ---- helpers ------------------------------------------------------------------------------- */

/** How a run is spread; with 12 of the numerics results depend on dp and ep alone. */
typedef struct Place {
    int pp;
    const char *schedule;
    int n_virtual, dp, ep, zero;
    bool processes;
} Place;

static char *make_folder(FixtureRows rows, int times, int batch)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), &(Fixture){.kind = FIXTURE_MOE});
    fixture_write_rows(path_in(folder, "rows.jsonl"), rows, times, 1);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], format: ids}\n"
             "train: {global_batch_size: %d, threads: 1}\n"
             "optimizer: {eps: 1.0e-3}\n"
             "loss: {balancing_alpha: 0.01}\n"
             "lr_schedule: {type: constant, warmup: 0}\n"
             "checkpoint: {interval: 2}\n", /* one save beside training, one waited for */
             folder, folder, batch);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

static void add_run(Arguments *args, const char *folder, const char *output, int steps,
                    const Place *p)
{
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "train.output=%s/%s", folder, output);
    add_set(args, "train.steps=%d", steps);
    add_set(args, "parallel.pp_size=%d", p->pp);
    add_set(args, "parallel.schedule=%s", p->schedule);
    if (p->n_virtual) add_set(args, "parallel.num_virtual_stages=%d", p->n_virtual);
    add_set(args, "parallel.dp_size=%d", p->dp);
    add_set(args, "parallel.ep_size=%d", p->ep);
    add_set(args, "parallel.zero_stage=%d", p->zero);
}

static bool run(const char *folder, const char *output, int steps, const Place *p,
                const char *const *more)
{
    Arguments args = {0};
    bool launched = false;
#ifdef SW_MPIEXEC
    launched = p->processes;
#endif
    if (launched) {
        add_launch(&args, p->pp * p->dp, SW_PROGRAM);
        arguments_add(&args, "train");
    }
    add_run(&args, folder, output, steps, p);
    for (; *more; more++) arguments_add(&args, "%s", *more);
    if (!launched) return command_runs(&command_train, &args);
    add_path(&command_train, &args);
    Launched got = launch(&args, folder);
    if (got.status != 0) file_show(path_in(folder, "err.txt"));
    return got.status == 0;
}

static void print_place(const char *what, const Place *p)
{
    fprintf(stderr, "  %s: pp %d %s, %d virtual stages, dp %d, ep %d, zero %d, %s\n", what, p->pp,
            p->schedule, p->n_virtual, p->dp, p->ep, p->zero,
            p->processes ? "processes" : "threads");
}

/* ---- P27: another layout ------------------------------------------------------------------- */

// clang-format off
static const struct {
    const char *dtype;
    Place before, after;
} pairs[] = {
    {"f32",  {1, "1f1b", 0, 1, 1, 0, false},        {4, "1f1b", 0, 1, 1, 0, false}},
    {"f32",  {2, "1f1b", 0, 1, 1, 0, false},        {1, "1f1b", 0, 1, 1, 0, false}},
    {"f32",  {2, "1f1b", 0, 1, 1, 0, false},        {4, "1f1b", 0, 1, 1, 0, false}},
    {"f32",  {4, "gpipe", 0, 1, 1, 0, false},       {2, "interleaved", 2, 1, 1, 0, false}},
    {"f32",  {2, "zbv", 0, 1, 1, 0, false},         {3, "zb_h1", 0, 1, 1, 0, false}},
    {"f32",  {2, "zb1p", 0, 1, 1, 0, false},        {2, "dualpipev", 0, 1, 1, 0, false}},
    {"f32",  {2, "looped_bfs", 2, 1, 1, 0, false},  {2, "1f1b", 0, 1, 1, 0, true}},
    {"f32",  {2, "interleaved", 0, 1, 1, 0, true},  {1, "gpipe", 0, 1, 1, 0, false}},
    {"bf16", {2, "1f1b", 0, 1, 1, 0, false},        {1, "1f1b", 0, 1, 1, 0, false}},
    {"bf16", {1, "1f1b", 0, 1, 1, 0, false},        {2, "vhalf", 0, 1, 1, 0, false}},
    {"bf16", {4, "zb_h2", 0, 1, 1, 0, false},       {2, "1f1b", 0, 1, 1, 0, true}},
    {"f32",  {1, "1f1b", 0, 2, 1, 0, false},        {1, "1f1b", 0, 2, 1, 1, false}},
    {"f32",  {1, "1f1b", 0, 2, 1, 1, false},        {2, "1f1b", 0, 2, 1, 0, false}},
    {"f32",  {2, "zbv", 0, 2, 1, 1, false},         {1, "gpipe", 0, 2, 1, 0, false}},
    {"f32",  {2, "1f1b", 0, 2, 1, 0, true},         {2, "interleaved", 2, 2, 1, 1, false}},
    {"bf16", {2, "1f1b", 0, 2, 1, 1, false},        {1, "1f1b", 0, 2, 1, 0, false}},
    {"bf16", {1, "1f1b", 0, 2, 1, 0, false},        {2, "zb1p", 0, 2, 1, 1, false}},
    {"f32",  {1, "1f1b", 0, 2, 2, 0, false},        {2, "1f1b", 0, 2, 2, 0, false}},
    {"f32",  {2, "1f1b", 0, 2, 2, 1, false},        {1, "1f1b", 0, 2, 2, 0, true}},
    {"f32",  {2, "interleaved", 2, 2, 2, 0, false}, {2, "zbv", 0, 2, 2, 1, false}},
    {"bf16", {1, "1f1b", 0, 2, 2, 1, false},        {2, "1f1b", 0, 2, 2, 0, false}},
    {"f32",  {1, "1f1b", 0, 4, 2, 1, false},        {2, "1f1b", 0, 4, 2, 0, false}},
    {"f32",  {1, "1f1b", 0, 4, 4, 0, false},        {1, "1f1b", 0, 4, 4, 1, false}},
    /* other sums: within the bounds of section 13 */
    {"f32",  {2, "1f1b", 0, 1, 1, 0, false},        {1, "1f1b", 0, 4, 2, 0, false}},
    {"f32",  {1, "1f1b", 0, 2, 2, 0, false},        {1, "1f1b", 0, 1, 1, 0, false}},
    {"f32",  {1, "1f1b", 0, 2, 2, 1, false},        {4, "1f1b", 0, 1, 1, 0, false}},
    {"f32",  {2, "1f1b", 0, 2, 2, 0, false},        {2, "interleaved", 2, 1, 1, 0, false}},
    {"f32",  {2, "1f1b", 0, 2, 2, 1, false},        {1, "1f1b", 0, 4, 2, 1, false}},
    {"f32",  {1, "1f1b", 0, 2, 1, 1, false},        {1, "1f1b", 0, 2, 2, 0, false}},
    {"f32",  {2, "zbv", 0, 2, 1, 0, false},         {1, "1f1b", 0, 1, 1, 0, true}},
};
// clang-format on

/* Six steps in one go on the plainest layout of that dp and ep, made when first asked for. */
static bool make_whole(char name[64], const char *folder, const char *dtype, int dp, int ep,
                       const char *const *more)
{
    snprintf(name, 64, "whole-%s-%d-%d", dtype, dp, ep);
    return path_exists(path_in(folder, "%s", name)) ||
           run(folder, name, 6, &(Place){1, "1f1b", 0, dp, ep, 0, false}, more);
}

static TensorFile change_of(const char *folder, const char *output)
{
    TensorFile change = read_folder(path_in(folder, "%s/hf/final", output));
    TensorFile start = read_folder(path_in(folder, "model"));
    add_scaled(&change, &start, -1);
    tensor_file_free(&start);
    return change;
}

/* Changes of weights and moments to rounding. */
static bool close_runs(const char *folder, const char *output, const char *want)
{
    TensorFile start = read_folder(path_in(folder, "model"));
    TensorFile got = change_of(folder, output), wanted = change_of(folder, want);
    bool ok = close_tensors(&got, &wanted, &start);
    tensor_file_free(&start);
    tensor_file_free(&got);
    tensor_file_free(&wanted);
    static const char *const moments[] = {"exp_avg", "exp_avg_sq"};
    for (int k = 0; k < 2; k++) {
        got = read_folder(path_in(folder, "%s/checkpoints/step-000006/%s", output, moments[k]));
        wanted = read_folder(path_in(folder, "%s/checkpoints/step-000006/%s", want, moments[k]));
        ok = close_tensors(&got, &wanted, NULL) && ok;
        tensor_file_free(&got);
        tensor_file_free(&wanted);
    }
    return ok;
}

static void state__goes_on_in_any_layout(void **state)
{
    (void)state;
    char *folder = make_folder(FIXTURE_EQ, 4, 8), whole[64], dtype[32], before[512], after[512];
    int failed = 0;
    for (size_t i = 0; i < COUNT(pairs); i++) {
        const Place *first = &pairs[i].before, *then = &pairs[i].after;
        snprintf(dtype, sizeof dtype, "model.dtype=%s", pairs[i].dtype);
        const char *const more[] = {"--set", dtype, NULL, NULL};
        const char *const again[] = {"--set", dtype, "--resume", NULL};
        bool ok = make_whole(whole, folder, pairs[i].dtype, first->dp, first->ep, more) &&
                  run(folder, "parts", 3, first, more) && run(folder, "parts", 6, then, again);
        snprintf(before, sizeof before, "%s/%s", folder, whole);
        snprintf(after, sizeof after, "%s/parts", folder);
        if (ok && first->dp == then->dp && first->ep == then->ep)
            ok = same_run(after, before, 6);
        else if (ok)
            ok = close_runs(folder, "parts", whole);
        if (!ok) {
            print_place(pairs[i].dtype, first);
            print_place("then", then);
        }
        failed += !ok;
        folder_remove(strdup(after));
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* What only says how the work is spread may change, as may what is saved and when. */
static void state__takes_keys_that_alter_no_maths(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "parallel.zero_stage=1",    "train.recompute_ratio=1",  "train.hang_timeout=60",
        "train.stop_before=24h",    "checkpoint.async=false",   "checkpoint.keep=1",
        "checkpoint.interval=1",    "checkpoint.hf_interval=4", "checkpoint.hf_dtype=bf16",
        "train.profile_steps=[5]",  "log.interval=2",           "loss.chunk_size=16",
        "train.eval_interval=null", "model.path=nowhere",       "train.threads=2"};
    char *folder = make_folder(FIXTURE_EQ, 4, 8);
    const Place one = {1, "1f1b", 0, 1, 1, 0, false}, two = {1, "gpipe", 0, 2, 2, 0, false};
    assert_true(run(folder, "run", 3, &one, WORDS("--resume")));
    const char *more[2 * COUNT(keys) + 2] = {"--resume"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        more[2 * i + 1] = "--set";
        more[2 * i + 2] = keys[i];
    }
    assert_true(run(folder, "run", 6, &two, more));
    folder_remove(folder);
}

/* ---- rows ---------------------------------------------------------------------------------- */

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Rows differ in length, and a step has one: its tokens say which. */
static void state__reads_every_row_once_an_epoch(void **state)
{
    (void)state;
    enum { ROWS = 8, STEPS = 3 * ROWS };
    static const int lengths[ROWS] = {2, 5, 9, 17, 37, 64, 90, 128};
    static const int stops[] = {5, 11, 18, STEPS};
    static const Place places[] = {{2, "1f1b", 0, 1, 1, 0, false},
                                   {1, "1f1b", 0, 1, 1, 0, false},
                                   {4, "gpipe", 0, 1, 1, 0, false},
                                   {3, "1f1b", 0, 1, 1, 0, false}};
    char *folder = make_folder(FIXTURE_VAR, 1, 1);
    assert_true(run(folder, "whole", STEPS, &places[1], WORDS("--resume")));
    for (size_t i = 0; i < COUNT(stops); i++)
        assert_true(run(folder, "parts", stops[i], &places[i], WORDS("--resume")));
    assert_true(same_run(path_in(folder, "parts"), path_in(folder, "whole"), STEPS));
    json_t *lines = read_metrics(path_in(folder, "parts/metrics.jsonl"));
    int order[STEPS], sorted[ROWS];
    for (int i = 0; i < STEPS; i++)
        order[i] = (int)number(json_array_get(lines, (size_t)i), "tokens");
    for (int epoch = 0; epoch < 3; epoch++) {
        memcpy(sorted, order + epoch * ROWS, sizeof sorted);
        qsort(sorted, ROWS, sizeof *sorted, compare_ints);
        assert_memory_equal(sorted, lengths, sizeof sorted);
    }
    assert_memory_not_equal(order, order + ROWS, sizeof sorted); /* shuffled anew */
    json_decref(lines);
    folder_remove(folder);
}

/* ---- a step that changes nothing ------------------------------------------------------------ */

/* With this rate the first step throws the weights far out, and all later gradients are not finite. */
static void state__all_ranks_skip_what_is_not_finite(void **state)
{
    (void)state;
    static const Place places[] = {{1, "1f1b", 0, 2, 1, 0, false}, {2, "1f1b", 0, 2, 1, 0, false},
                                   {1, "1f1b", 0, 2, 1, 1, false}, {2, "zbv", 0, 2, 1, 1, true},
                                   {1, "1f1b", 0, 2, 2, 0, false}, {1, "1f1b", 0, 1, 1, 0, false}};
    const char *const sets[] = {"--set", "optimizer.type=sgd",    "--set", "optimizer.lr=1e30",
                                "--set", "train.max_grad_norm=0", NULL};
    char *folder = make_folder(FIXTURE_EQ, 4, 8), output[32];
    for (size_t i = 0; i < COUNT(places); i++) {
        snprintf(output, sizeof output, "run%zu", i);
        assert_true(run(folder, output, 4, &places[i], sets));
        json_t *lines = read_metrics(path_in(folder, "%s/metrics.jsonl", output));
        for (int step = 1; step <= 4; step++) {
            const json_t *line = json_array_get(lines, (size_t)step - 1);
            if ((int)number(line, "skipped") != step - 1) print_place("skips", &places[i]);
            assert_int_equal((int)number(line, "skipped"), step - 1);
            assert_true(json_is_null(json_object_get(line, "grad_norm")) == (step > 1));
        }
        json_decref(lines);
        char *log = read_text(path_in(folder, "%s/log.txt", output), NULL);
        const char *said = strstr(log, "step 3 skipped: gradient not finite, first in model.");
        assert_non_null(said);
        assert_null(strstr(said + 1, "step 3 skipped")); /* once, not by each rank */
        free(log);
    }
    folder_remove(folder);
}

/* ---- what comes from elsewhere ------------------------------------------------------------- */

static void copy_file(const char *to, const char *from)
{
    char command[1400];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", from, to);
    if (system(command) != 0) fail_msg("%s", command);
}

static void state__refuses_two_checkpoints_mixed(void **state)
{
    (void)state;
    static const char *const files[] = {"model.safetensors", "exp_avg/model.safetensors",
                                        "exp_avg_sq/model.safetensors", "state.json",
                                        "manifest.json"};
    char *folder = make_folder(FIXTURE_EQ, 4, 8), path[600];
    const Place one = {1, "1f1b", 0, 1, 1, 0, false};
    assert_true(run(folder, "other", 3, &one, WORDS("--set", "train.seed=7")));
    for (size_t i = 0; i < COUNT(files); i++) {
        assert_true(run(folder, "run", 3, &one, WORDS("--set", "train.seed=8")));
        snprintf(path, sizeof path, "%s/run/checkpoints/step-000003/%s", folder, files[i]);
        copy_file(path, path_in(folder, "other/checkpoints/step-000003/%s", files[i]));
        Arguments args = {0};
        arguments_add(&args, "train");
        add_run(&args, folder, "run", 6, &one);
        add_set(&args, "train.seed=8");
        arguments_add(&args, "--resume");
        bool manifest = !strcmp(files[i], "manifest.json");
        assert_true(program_refuses(
            &args, folder,
            WORDS(manifest ? "/run/checkpoints/step-000003/" : path, "from the manifest")));
        folder_remove(strdup(path_in(folder, "run")));
    }
    folder_remove(folder);
}

/* A new run from a checkpoint's weights says that it is one; names of code in a config are no more than text. */
static void state__a_checkpoint_as_model_starts_anew(void **state)
{
    (void)state;
    char *folder = make_folder(FIXTURE_EQ, 4, 8);
    const Place one = {1, "1f1b", 0, 1, 1, 0, false};
    char *config = read_text(path_in(folder, "model/config.json"), NULL);
    char *text = malloc(strlen(config) + 200);
    sprintf(text, "{\"auto_map\": {\"AutoModel\": \"../../evil.py--Model\"}, %s",
            strchr(config, '{') + 1);
    write_text(path_in(folder, "model/config.json"), text);
    free(config);
    free(text);
    assert_true(run(folder, "run", 3, &one, WORDS("--resume")));
    Arguments args = {0};
    arguments_add(&args, "train");
    add_run(&args, folder, "new", 2, &one);
    add_set(&args, "model.path=%s/run/checkpoints/step-000003", folder);
    assert_true(program_ends(&args, folder, 0));
    text = read_text(path_in(folder, "err.txt"), NULL);
    assert_non_null(strstr(text, "is a checkpoint: a new run starts from its weights"));
    free(text);
    json_t *lines = read_metrics(path_in(folder, "new/metrics.jsonl"));
    assert_int_equal((int)number(json_array_get(lines, 0), "step"), 1);
    json_decref(lines);
    folder_remove(folder);
}

/* Every command that reads a model refuses the folder with these words, and makes nothing. */
static void assert_no_model(const char *folder, const char *model, const char *words)
{
    static const char *const commands[] = {"train", "eval", "probe", "generate", "init"};
    const Place one = {1, "1f1b", 0, 1, 1, 0, false};
    for (size_t i = 0; i < COUNT(commands); i++) {
        Arguments args = {0};
        arguments_add(&args, "%s", commands[i]);
        const char *rows = path_in(folder, "rows.jsonl"), *out = path_in(folder, "none");
        if (i == 0) {
            add_run(&args, folder, "none", 2, &one);
            add_set(&args, "model.path=%s", model);
        } else if (i == 4) {
            arguments_add(&args, "%s", out);
            arguments_add(&args, "--config");
        }
        if (i > 0) arguments_add(&args, "%s", model);
        if (i == 1) arguments_add(&args, "--data");
        if (i == 2) arguments_add(&args, "--batch");
        if (i == 1 || i == 2) arguments_add(&args, "%s", rows);
        if (i == 2) arguments_add(&args, "--out");
        if (i == 2) arguments_add(&args, "%s", out);
        if (i == 3) arguments_add(&args, "--prompt");
        if (i == 3) arguments_add(&args, "a");
        if (!program_refuses(&args, folder, WORDS(model, words)))
            fail_msg("%s takes the checkpoint", commands[i]);
        if (path_exists(path_in(folder, "none"))) fail_msg("%s made a folder", commands[i]);
    }
}

static void state__a_damaged_checkpoint_is_no_model(void **state)
{
    (void)state;
    char *folder = make_folder(FIXTURE_EQ, 4, 8), model[600];
    const Place one = {1, "1f1b", 0, 1, 1, 0, false};
    assert_true(run(folder, "run", 2, &one, WORDS("--resume")));
    snprintf(model, sizeof model, "%s/run/checkpoints/step-000002", folder);
    static const struct {
        const char *damage, *undo, *words;
    } rows[] = {
        {"printf x | dd of=model.safetensors bs=1 seek=5000 conv=notrunc status=none",
         "cp ../../../weights model.safetensors", "model.safetensors: checksum"},
        {"mv exp_avg ../..", "mv ../../exp_avg .", "exp_avg/model.safetensors: "},
        {"ln -s /etc/hostname secret.txt", "rm secret.txt", "secret.txt: not in "},
        {"ln -sf ../../../weights model.safetensors",
         "cp --remove-destination ../../../weights model.safetensors",
         "model.safetensors: expected a file (found a link)"},
    };
    char command[1400];
    snprintf(command, sizeof command, "cp '%s/model.safetensors' '%s/weights'", model, folder);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        snprintf(command, sizeof command, "cd '%s' && %s", model, rows[i].damage);
        assert_int_equal(system(command), 0);
        assert_no_model(folder, model, rows[i].words);
        snprintf(command, sizeof command, "cd '%s' && %s", model, rows[i].undo);
        assert_int_equal(system(command), 0);
    }
    /* The same one mended, and a model's folder of links, as downloads make them, are taken. */
    char sets[2][700];
    snprintf(sets[0], sizeof sets[0], "model.path=%s", model);
    snprintf(sets[1], sizeof sets[1], "model.path=%s/links", folder);
    snprintf(command, sizeof command, "mkdir '%s/links' && ln -s '%s/model/'* '%s/links'", folder,
             folder, folder);
    assert_int_equal(system(command), 0);
    assert_true(run(folder, "mended", 1, &one, WORDS("--set", sets[0])));
    assert_true(run(folder, "linked", 1, &one, WORDS("--set", sets[1])));
    folder_remove(folder);
}

static int check_mode(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)where;
    mode_t want = kind == FTW_D ? 0750 : 0640;
    if ((info->st_mode & 0777) != want)
        fail_msg("%s: mode %o, expected %o", path, info->st_mode & 0777, want);
    return 0;
}

static void state__files_have_the_modes_of_the_umask(void **state)
{
    (void)state;
    char *folder = make_folder(FIXTURE_EQ, 4, 8);
    mode_t before = umask(027);
    bool ok = run(folder, "run", 3, &(Place){2, "1f1b", 0, 1, 1, 0, false},
                  WORDS("--set", "train.profile_steps=[2]"));
    umask(before);
    assert_true(ok);
    assert_int_equal(nftw(path_in(folder, "run"), check_mode, 16, FTW_PHYS), 0);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state__goes_on_in_any_layout),
        cmocka_unit_test(state__takes_keys_that_alter_no_maths),
        cmocka_unit_test(state__reads_every_row_once_an_epoch),
        cmocka_unit_test(state__all_ranks_skip_what_is_not_finite),
        cmocka_unit_test(state__refuses_two_checkpoints_mixed),
        cmocka_unit_test(state__a_checkpoint_as_model_starts_anew),
        cmocka_unit_test(state__a_damaged_checkpoint_is_no_model),
        cmocka_unit_test(state__files_have_the_modes_of_the_umask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
