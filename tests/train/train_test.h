#pragma once
/** What the tests of train share: a configuration from keys, a model of a few kilobytes, rows, and ranks as threads. */
#include "model/model_test.h"

#include "comm/world.h"
#include "train/trainer.h"

#include <math.h>
#include <unistd.h>

/** Defaults and these keys ("section.key=value", ends with NULL), one thread per rank; output is BENCH/run. */
static inline TrainConfig *config_with(Bench *b, const char *const *keys)
{
    TrainConfig *config = ARENA_NEW(&b->arena, TrainConfig, 1);
    const char *all[32] = {"train.threads=1", "data.format=ids", "data.pack=none",
                           text_format(&b->arena, "train.output=%s", bench_path(b, "run"))};
    int n = 4;
    for (; keys && *keys; keys++) all[n++] = *keys;
    assert_ok(config_load(config, NULL, all, n, &b->arena));
    if (isnan(config->loss.balancing_alpha)) config->loss.balancing_alpha = 0.001;
    if (config->parallel.dp_size < 0) config->parallel.dp_size = 1;
    return config;
}
#define CONFIG(b, ...) config_with(b, (const char *const[]){__VA_ARGS__, NULL})

/** The model of MOE_JSON and a patch, as a folder BENCH/model with a config.json alone: for random values. */
static inline ModelConfig *model_with(Bench *b, const char *patch)
{
    const char *dir = bench_path(b, "model");
    char *text = json_patched(&b->arena, MOE_JSON, patch);
    ModelConfig *model;
    assert_ok(dir_create(dir));
    assert_ok(file_write_atomic(path_join(&b->arena, dir, "config.json"), text, strlen(text)));
    assert_ok(model_config_read(&model, dir, &b->arena, NULL));
    return model;
}

/** BENCH/NAME.jsonl with n rows of 4 to 12 ids below 50; row i is untrained where `untrained` has an 'x' at i. */
static inline const char *rows_file(Bench *b, const char *name, int n, const char *untrained)
{
    TextBuffer text;
    text_buffer_init(&text, &b->arena);
    for (int i = 0; i < n; i++) {
        int length = 4 + i * 5 % 9;
        text_append_format(&text, "{\"input_ids\": [");
        for (int t = 0; t < length; t++)
            text_append_format(&text, "%s%d", t ? ", " : "", (i * 13 + t * t * 7 + t) % 50);
        text_append_format(&text, "]");
        if (untrained && i < (int)strlen(untrained) && untrained[i] == 'x') {
            text_append_format(&text, ", \"labels\": [");
            for (int t = 0; t < length; t++) text_append_format(&text, "%s-100", t ? ", " : "");
            text_append_format(&text, "]");
        }
        text_append_format(&text, "}\n");
    }
    const char *path = bench_path(b, name);
    assert_ok(file_write_atomic(path, text.text, text.length));
    return path;
}

/** The rows of a file in its order. */
static inline Dataset *dataset_of(Bench *b, const char *path)
{
    Dataset *data;
    DataSource *source = ARENA_NEW(&b->arena, DataSource, 1);
    *source = (DataSource){path, 1};
    DatasetConfig config = {.source = source,
                            .n_sources = 1,
                            .key = "data.train",
                            .format = DATA_IDS,
                            .pack = PACK_NONE,
                            .max_length = 4096,
                            .vocab_size = 50,
                            .eos_id = -1,
                            .n_threads = 1};
    assert_ok(dataset_open(&data, &config, NULL, NULL));
    return data;
}

/** Run with stderr thrown away: what a run says on its way is read from log.txt. */
static inline Status run_quietly(int n_ranks, Status (*body)(Comm *, void *), void *arg)
{
    fflush(stderr);
    FILE *nowhere = fopen("/dev/null", "w");
    int kept = dup(STDERR_FILENO);
    assert_true(nowhere && kept >= 0 && dup2(fileno(nowhere), STDERR_FILENO) >= 0);
    Status status = world_run_threads(n_ranks, body, arg);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    fclose(nowhere);
    return status;
}

static inline char *text_of(Bench *b, const char *path)
{
    char *text;
    assert_ok(file_read(&b->arena, path, &text, NULL));
    return text;
}
