#pragma once
/**
 * Training checkpoints and HuggingFace exports on disk. A folder is written under a temporary name and renamed: it is
 * complete or absent. A checkpoint does not depend on the layout and is itself a HuggingFace folder (f32 masters):
 *
 *   checkpoints/step-000100/  model*.safetensors  exp_avg/  exp_avg_sq/  config, tokenizer, … files
 *                             state.json  manifest.json (sizes, checksums, the source's tensor list)
 *   checkpoints/latest        "step-000100"
 */
#include "train/engine.h"

typedef struct TrainState {
    int64_t step;     /* steps done */
    int64_t position; /* rows of the stream consumed */
    double epoch;     /* the same in passes over the data */
    int64_t tokens, trained_tokens;
    int64_t updates; /* steps that changed weights */
    int64_t skipped; /* steps that did not */
} TrainState;

/** Save after a step; older ones beyond config.checkpoint.keep are removed. Collective over world (= pp while the rest is 1). */
Status checkpoint_save(Engine *engine, const TrainState *state, Log *log) MUST_USE;

/** Path of the newest complete checkpoint of a run; NULL in *out: none. */
Status checkpoint_latest(const char **out, const char *output, Arena *arena) MUST_USE;

typedef struct CheckpointInfo {
    TrainState state;
    const char *config; /* YAML of the run that wrote it */
    const char *kernel_path;
} CheckpointInfo;

/** state.json, after checking every file against the manifest (sizes and checksums). ERR_FORMAT names the file that is wrong. */
Status checkpoint_read(CheckpointInfo *out, const char *dir, Arena *arena) MUST_USE;
/** What state.json says; place stands for it in messages. ERR_FORMAT names the key. */
Status checkpoint_state_of_json(CheckpointInfo *out, const json_t *root, const char *place,
                                Arena *arena) MUST_USE;
/** True if the folder is one of ours. */
bool checkpoint_is(const char *dir);

/** Optimizer moments of this rank's parameters (the engine has loaded the weights from dir). */
Status checkpoint_load_moments(Engine *engine, const char *dir) MUST_USE;

/**
 * A HuggingFace folder at `dir` (replaced if it exists): the engine's weights, and the side files from where its model was read. dtype
 * DTYPE_COUNT: each source tensor's. Files as the source has them, or with max_shard_bytes > 0 shards up to that. Collective over world.
 */
Status export_folder(Engine *engine, const char *dir, DType dtype,
                     int64_t max_shard_bytes) MUST_USE;
/** hf/step-… of a run, older ones beyond config.checkpoint.hf_keep removed; step < 0: hf/final. */
Status export_step(Engine *engine, int64_t step, Log *log) MUST_USE;
