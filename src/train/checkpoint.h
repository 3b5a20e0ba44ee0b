#pragma once
/**
 * Training checkpoints on disk: what is in them, which is the newest, reading. They are written by train/saver.h, under a
 * temporary name that is changed at the end: a folder is complete or absent. A checkpoint does not depend on the layout and is
 * itself a HuggingFace folder (f32 masters):
 *
 *   checkpoints/step-000100/  model*.safetensors  exp_avg/  exp_avg_sq/  config, tokenizer, … files
 *                             state.json  manifest.json (sizes, checksums, the source's tensor list)
 *   checkpoints/latest        "step-000100": for people and scripts. The newest is known by its name, since a kill may
 *                             come between a folder's rename and this file's
 */
#include "train/engine.h"

#define CHECKPOINT_LATEST "latest"
#define CHECKPOINT_MOMENT_0 "exp_avg"
#define CHECKPOINT_MOMENT_1 "exp_avg_sq"

typedef struct TrainState {
    int64_t step;     /* steps done */
    int64_t position; /* rows of the stream consumed */
    double epoch;     /* the same in passes over the data */
    int64_t tokens, trained_tokens;
    int64_t updates;    /* steps that changed weights */
    int64_t skipped;    /* steps that did not */
    int64_t n_rows;     /* of the training data, an epoch; 0: not known */
    uint64_t rows_hash; /* of their ids and labels, in order; 0: not known */
} TrainState;

/** state.json into a folder. ERR_IO, ERR_MEMORY. */
Status checkpoint_write_state(const Engine *engine, const TrainState *state, const char *dir,
                              Arena *arena) MUST_USE;

/** Path of the checkpoint of the latest step of a run; NULL in *out: none. */
Status checkpoint_newest(const char **out, const char *output, Arena *arena) MUST_USE;

/** Let `latest` beside a checkpoint name it. */
Status checkpoint_set_latest(const char *dir, Arena *arena) MUST_USE;

typedef struct CheckpointInfo {
    TrainState state;
    const char *config; /* YAML of the run that wrote it */
    const char *kernel_path;
} CheckpointInfo;

/**
 * state.json, after checking every file against the manifest (sizes and checksums). ERR_FORMAT names the file that is wrong, or
 * the folder if it is called after another step.
 */
Status checkpoint_read(CheckpointInfo *out, const char *dir, Arena *arena) MUST_USE;
/** What state.json says; place stands for it in messages. ERR_FORMAT names the key. */
Status checkpoint_state_of_json(CheckpointInfo *out, const json_t *root, const char *place,
                                Arena *arena) MUST_USE;
/** True if the folder is one of ours. */
bool checkpoint_is(const char *dir);
/** What checkpoint_read checks of a folder that is one of ours, but for the moments: where only a model is wanted. Others are OK. */
Status checkpoint_check_model(const char *dir, Arena *arena) MUST_USE;

/** Optimizer moments of this rank's parameters (the engine has loaded the weights from dir). */
Status checkpoint_load_moments(Engine *engine, const char *dir) MUST_USE;
