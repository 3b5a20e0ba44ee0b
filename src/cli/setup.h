#pragma once
/** What several commands need before they start: configuration, model, tokenizer, datasets. */
#include "data/dataset.h"
#include "train/launch.h"

typedef struct Setup {
    const World *world; /* NULL: one rank of this process does the work */
    TrainConfig config;
    ModelConfig *model;
    Tokenizer *tokenizer; /* NULL: none in the folder */
    Log log;              /* stderr */
    const char *place;    /* config_place */
    Arena *arena;
} Setup;

/**
 * Configuration from a file (NULL: defaults) and --set, with model_path in place of model.path if given; then the model's config.json.
 * Fills in what waits for the model: loss.balancing_alpha and model.chat_template auto.
 */
Status setup_create(Setup *out, const char *file, const TextList *sets, const char *model_path,
                    const World *world, Arena *arena) MUST_USE;
/** Its first part alone: no model is read. */
Status setup_configure(Setup *out, const char *file, const TextList *sets, const char *model_path,
                       const World *world, Arena *arena) MUST_USE;
/**
 * Its second part, from any folder: a checkpoint of ours is checked against its manifest first, links and checksums, so that
 * damage or a link in it goes no further. Collective over the processes.
 */
Status setup_open_model(Setup *setup, const char *dir) MUST_USE;
/** The same of a folder that is checked already (a checkpoint's, on resume). */
Status setup_read_model(Setup *setup, const char *dir) MUST_USE;
/** Launched: all processes have read the same config.json. Collective over the processes. */
Status setup_same_model(const Setup *setup) MUST_USE;
void setup_free(Setup *setup);

/**
 * The configured schedule for n_mb microbatches ("microbatches are …" in messages, what they follow from), before anything
 * else takes its time. Says once if results will not be those of other schedules. Errors: those of schedule_build, and a
 * layer_split of another length.
 */
Status setup_schedule(Schedule **out, Setup *setup, int64_t n_mb,
                      const char *microbatches_are) MUST_USE;

/** Launched: all processes have read the same rows (key names them in messages). Collective: over the processes. */
Status setup_same_rows(const Setup *setup, const char *key, const Row *row, int64_t n) MUST_USE;
/** Of an epoch's rows in their order: ids, labels, borders. Reads all of them. */
uint64_t setup_hash_data(const Dataset *data);
Status setup_same_data(const Setup *setup, const char *key, const Dataset *data) MUST_USE;

/** Open tokenizer.json of the model's folder if it is there; `needed`: an error if not. */
Status setup_tokenizer(Setup *setup, bool needed) MUST_USE;
/** The id that ends a text (append_eos): the model's first, else tokenizer_config's; -1: none. */
int32_t setup_eos(const Setup *setup);

/** A dataset of these sources (key names them in messages); shuffled for training, in the files' order for evaluation. */
Status setup_dataset(Dataset **out, Setup *setup, const char *key, const ConfigSources *sources,
                     bool shuffle) MUST_USE;
