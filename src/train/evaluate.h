#pragma once
/** Loss over a whole dataset, forward only. */
#include "data/dataset.h"
#include "train/engine.h"

typedef struct EvalResult {
    double loss; /* numerics.md 2, over all rows as one batch, with the configured reduction */
    int64_t n_rows, n_tokens, n_trained;
} EvalResult;

/**
 * Microbatches of the two forward passes in which each of dp_size ranks takes its share of n rows: whole chunks, and the rest.
 * For EngineSetup.n_forward.
 */
void evaluate_passes(int n_forward[2], int64_t n_rows, int dp_size);

/** The first n_rows rows of the dataset's stream, which is one epoch; collective over world. */
void evaluate(EvalResult *out, Engine *engine, const Dataset *data);
