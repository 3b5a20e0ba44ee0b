#pragma once
/** Starts the ranks of a run (threads of this process) and hands each its part of the work. */
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/probe.h"
#include "train/trainer.h"

/** pp * dp * sp * tp ranks, as the configuration says. Errors: those of the ranks, once. */
Status launch_train(const TrainPlan *plan) MUST_USE;
Status launch_probe(const ProbePlan *plan) MUST_USE;

typedef struct EvalPlan {
    const TrainConfig *config;
    const ModelConfig *model;
    const char *weights;
    const Dataset *data;
} EvalPlan;
Status launch_eval(EvalResult *out, const EvalPlan *plan) MUST_USE;

/** A model on one rank, forward only, for max_positions tokens; for init, export and generate. weights NULL: random from train.seed. */
typedef struct SoloPlan {
    const TrainConfig *config;
    const ModelConfig *model;
    const char *weights;
    int64_t max_positions;
    Status (*body)(Engine *engine, void *arg);
    void *arg;
} SoloPlan;
Status launch_solo(const SoloPlan *plan) MUST_USE;
