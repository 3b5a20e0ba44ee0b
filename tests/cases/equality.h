#pragma once
/**
 * The promise of equality (numerics, section 12): every layout of a grid against the plain run of the
 * same model and microbatches. What is compared, all bit for bit: losses.json and grads.safetensors of
 * a probe; metrics.jsonl, weights, moments and export after five steps. Include after cmocka.h.
 */
#include "cases/runs.h"
#include "cli/command.h"

static const struct {
    const char *name;
    Fixture fixture;
} equality_models[] = {
    {"moe", {.kind = FIXTURE_MOE}},
    {"tied", {.kind = FIXTURE_TIED}},
    {"dense first", {.kind = FIXTURE_DENSE_FIRST}},
};

static const int equality_microbatches[] = {1, 2, 3, 8};

enum { EQUALITY_STEPS = 5, EQUALITY_GRID = 4 * 2 * 3 * 2 };

/* What the balanced split would not do: the model has four layers. */
static const Layout equality_splits[] = {
    {2, "1f1b", 0.5, 1, "[1,3]", 0}, {2, "gpipe", 1, 2, "[3,1]", 0},
    {3, "1f1b", 0, 1, "[1,2,1]", 0}, {3, "gpipe", 0.5, 2, "[2,1,1]", 0},
    {3, "1f1b", 1, 1, "[1,1,2]", 0}, {2, "1f1b", 0, 2, "[2,2]", 0},
};

/** Layout i of the grid pp 1, 2, 3, 4 (slowest) x schedule x recompute x threads. */
static inline Layout equality_layout(int i)
{
    static const char *const schedules[] = {"gpipe", "1f1b"};
    static const double recompute[] = {0, 0.5, 1};
    return (Layout){i / 12 + 1, schedules[i / 6 % 2], recompute[i / 2 % 3], i % 2 + 1, NULL, 0};
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

/* Both forms of the balancing loss come up with every model and layout. */
static inline void equality_losses(Arguments *args, int n_mb)
{
    add_set(args, "model.dtype=f32");
    add_set(args, "loss.balancing_alpha=0.01");
    add_set(args, "loss.balancing_form=%s", n_mb % 2 ? "per_layer" : "hf");
    add_set(args, "loss.z_alpha=0.001");
    add_set(args, "loss.chunk_size=16");
}

/** Probe of one layout into folder/NAME-probe. */
static inline bool equality_probe(const char *folder, const char *name, int n_mb,
                                  const Layout *layout)
{
    Arguments args = {0};
    arguments_add(&args, "%s/model", folder);
    arguments_add(&args, "--batch");
    arguments_add(&args, "%s/batch-%d.jsonl", folder, n_mb);
    arguments_add(&args, "--out");
    arguments_add(&args, "%s/%s-probe", folder, name);
    arguments_add(&args, "--grads");
    equality_losses(&args, n_mb);
    add_layout(&args, layout);
    return command_runs(&command_probe, &args);
}

/** Probe and run of one layout into folder/NAME-probe and folder/NAME-run. */
static inline bool equality_produce(const char *folder, const char *name, int n_mb,
                                    const Layout *layout)
{
    if (!equality_probe(folder, name, n_mb, layout)) return false;
    Arguments args = {0};
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/%s-run", folder, name);
    add_set(&args, "train.global_batch_size=%d", n_mb);
    equality_losses(&args, n_mb);
    add_layout(&args, layout);
    return command_runs(&command_train, &args);
}

static inline bool equality_compare_probes(const char *folder, const char *name, const char *want)
{
    char own[512], other[512];
    snprintf(own, sizeof own, "%s/%s-probe", folder, name);
    snprintf(other, sizeof other, "%s/%s-probe", folder, want);
    bool ok = files_equal(path_in(own, "losses.json"), path_in(other, "losses.json"));
    if (!ok) {
        fprintf(stderr, "  losses.json differs:\n");
        file_show(path_in(own, "losses.json"));
        file_show(path_in(other, "losses.json"));
    }
    return same_safetensors(path_in(own, "grads.safetensors"),
                            path_in(other, "grads.safetensors")) &&
           ok;
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

/** A folder with model, batches and config.yaml; to be removed by the caller. */
static inline char *equality_folder(const Fixture *fixture)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), fixture);
    for (size_t k = 0; k < COUNT(equality_microbatches); k++)
        equality_write_rows(path_in(folder, "batch-%d.jsonl", equality_microbatches[k]),
                            equality_microbatches[k]);
    equality_write_rows(path_in(folder, "rows.jsonl"), 13);
    fixture_write_rows(path_in(folder, "eval.jsonl"), FIXTURE_MASK, 1, 1);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], eval: [%s/eval.jsonl], format: ids}\n"
             "train: {steps: %d, eval_interval: 2}\n",
             folder, folder, folder, EQUALITY_STEPS);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

/** Removes what a layout wrote, so that a long grid does not fill the disk. */
static inline void equality_remove(const char *folder, const char *name)
{
    folder_remove(strdup(path_in(folder, "%s-run", name)));
    folder_remove(strdup(path_in(folder, "%s-probe", name)));
}

/** Returns how many of n layouts differ from the plain run. */
static inline int equality_check(const char *folder, const char *model, int n_mb,
                                 const Layout *layouts, int n)
{
    static const Layout plain = {1, "1f1b", 0, 1, NULL, 0};
    int failed = 0;
    if (!equality_produce(folder, "plain", n_mb, &plain)) return 1;
    for (int i = 0; i < n; i++) {
        bool ok = equality_produce(folder, "other", n_mb, &layouts[i]) &&
                  equality_compare(folder, "other", "plain");
        if (!ok) {
            fprintf(stderr, "  %d microbatches of ", n_mb);
            print_layout(model, &layouts[i]);
        }
        failed += !ok;
        equality_remove(folder, "other");
    }
    equality_remove(folder, "plain");
    return failed;
}
