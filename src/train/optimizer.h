#pragma once
/** Parameter groups, learning-rate schedule, and the update of this rank's parameters. Formulas: numerics.md 8. */
#include "core/param.h"
#include "kernels/backend.h"
#include "model/config.h"
#include "train/config.h"

/** ERR_USAGE for a pattern of optimizer.groups that matches no parameter of the whole model, or only a part of one. */
Status optimizer_check_groups(const ParamSet *whole, const ModelConfig *model,
                              const OptimizerSection *config, Arena *arena) MUST_USE;

/**
 * Set trainable, lr_scale and weight_decay of the set's parameters from optimizer.groups; the first group that matches counts.
 *
 * A pattern is compared with the parameter's own name and with the names of its tensors in a folder with a tensor per expert. It
 * must match all or none of those: what is stored as one parameter (gate and up of a layer, all its experts) trains as one.
 * Errors: those of optimizer_check_groups.
 */
Status optimizer_apply_groups(ParamSet *set, const ParamSet *whole, const ModelConfig *model,
                              const OptimizerSection *config, Arena *arena) MUST_USE;

/** Moments of all trainable parameters, zeroed; none for SGD. */
Status optimizer_create_moments(ParamSet *set, OptimizerType type, Arena *arena) MUST_USE;

/** Learning rate of step s (from 0) of n_steps. */
double lr_at(const LrScheduleSection *schedule, double base, int64_t step, int64_t n_steps);

/** Update every trainable parameter of the set; t counts real updates from 1; gradients are multiplied by clip first. */
void optimizer_update(ParamSet *set, const Backend *be, const OptimizerSection *config, double lr,
                      double clip, int64_t t);
