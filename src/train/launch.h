#pragma once
/**
 * Starts the ranks of a run and hands each its part of the work. Alone they are threads of this process;
 * launched (see world.h) this process is one of them, and all processes call with the same plan.
 */
#include "comm/world.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/probe.h"
#include "train/trainer.h"

/** pp * dp * sp * tp ranks, as the configuration says. Errors: those of the ranks, once (launched: this one's). */
Status launch_train(const World *world, const TrainPlan *plan) MUST_USE;
Status launch_probe(const World *world, const ProbePlan *plan) MUST_USE;

typedef struct EvalPlan {
    const TrainConfig *config;
    const ModelConfig *model;
    const char *weights;
    const Dataset *data;
} EvalPlan;
/** *out is set where rank 0 is. */
Status launch_eval(const World *world, EvalResult *out, const EvalPlan *plan) MUST_USE;

/** A model on one rank of this process, forward only, for max_positions tokens; for init, export and generate. weights NULL: random from train.seed. */
typedef struct SoloPlan {
    const TrainConfig *config;
    const ModelConfig *model;
    const char *weights;
    int64_t max_positions;
    Status (*body)(Engine *engine, void *arg);
    void *arg;
} SoloPlan;
Status launch_solo(const SoloPlan *plan) MUST_USE;
