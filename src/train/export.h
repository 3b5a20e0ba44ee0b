#pragma once
/** HuggingFace folders of a run or a command. A folder is complete or absent (train/step_folder.h). */
#include "train/engine.h"

/**
 * A HuggingFace folder at `dir` (replaced if it exists): the engine's weights, and the side files from where its model was read. dtype
 * DTYPE_COUNT: each source tensor's. Files as the source has them, or with max_shard_bytes > 0 shards up to that. Collective over world.
 */
Status export_folder(Engine *engine, const char *dir, DType dtype,
                     int64_t max_shard_bytes) MUST_USE;
/** hf/step-… of a run, older ones beyond config.checkpoint.hf_keep removed; step < 0: hf/final. */
Status export_step(Engine *engine, int64_t step, Log *log) MUST_USE;
