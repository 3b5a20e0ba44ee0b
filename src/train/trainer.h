#pragma once
/** The loop of training: steps over the stream of rows, metrics, evaluation, saving, stopping. */
#include "data/dataset.h"
#include "train/saver.h"
#include <signal.h>

/** What a run is about; constant while it lasts, shared by the ranks that are threads of this process. */
typedef struct TrainPlan {
    const TrainConfig *config; /* resolved; loss.balancing_alpha filled in */
    const ModelConfig *model;
    const Dataset *train;   /* NULL when config.train.steps is 0 */
    const Dataset *eval;    /* NULL: none */
    const char *weights;    /* NULL: random values */
    const char *checkpoint; /* to resume from; NULL: a fresh run */
    double check_seconds;   /* that its checksums took */
    TrainState state;       /* of the checkpoint, or zero */
    int64_t n_steps;
    double stop_before; /* clock_seconds() by which the run must have saved and left; 0: never */
    const volatile sig_atomic_t
        *stop; /* set by a signal: save and leave after this step; NULL: never */
} TrainPlan;

/**
 * Run the plan on one rank. Collective over world. The output folder exists, and holds nothing that is in the way.
 * Errors: what engine_create refuses; ERR_IO, ERR_FAILED during the run; ERR_STOPPED after a stop.
 */
Status train_run(const TrainPlan *plan, Comm *world) MUST_USE;
