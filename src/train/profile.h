#pragma once
/** What ranks did, and when, in the steps that train.profile_steps names: a Chrome trace of each in OUTPUT/trace. */
#include "base/log.h"
#include "train/engine.h"

bool profile_wants(const TrainConfig *config, int64_t step);
/** One warning for each step that a run of n_steps never comes to. */
void profile_warn(const TrainConfig *config, int64_t n_steps, Log *log);
/** Around the step's engine_forward_backward. Collective over world. Errors: ERR_IO. */
Status profile_begin(Engine *engine) MUST_USE;
Status profile_end(Engine *engine, int64_t step) MUST_USE;
