#pragma once
/** One forward and backward without an update, and its results as files (contract: probe). */
#include "data/row.h"
#include "train/engine.h"

typedef struct ProbePlan {
    const TrainConfig *config;
    const ModelConfig *model;
    const Row *row; /* [n_rows] a microbatch each */
    int64_t n_rows;
    const char *weights; /* NULL: random values */
    const char *out;     /* existing folder */
    bool logits, grads;
} ProbePlan;

/** Writes losses.json, and logits.safetensors and grads.safetensors if asked. Collective over world. */
Status probe_run(const ProbePlan *plan, Comm *world) MUST_USE;
