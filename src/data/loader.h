#pragma once
/**
 * JSONL files -> tokenised samples, by way of the cache if there is one. Lines are read one after the other and
 * tokenised in batches by several threads; the samples come in the order of the lines whatever the threads do.
 */
#include "data/dataset.h"
#include "data/token_cache.h"

typedef struct LoaderSlot LoaderSlot;

/** All that stays the same while files are read, and what came of them. */
typedef struct Loader {
    const DatasetConfig *config;
    const Tokenizer *tokenizer;
    const ChatTemplate *chat; /* NULL: not settled, chat_fault says why */
    Status chat_status;
    char *chat_fault;
    int32_t eos_id;      /* to append; negative: none */
    const char *options; /* for the cache's key */
    int n_threads;
    Log *log;
    Arena arena; /* names, until the data is there */
    Arena batch; /* documents of one batch */
    LoaderSlot *slot;
    TokenStore samples;
    TokenCounts counts;
    int64_t n_files;
} Loader;

/**
 * Ready to load files for this configuration. loader_free is due also after an error.
 *
 * Errors: ERR_USAGE, ERR_UNSUPPORTED for a chat template that is named and is not to be had; ERR_IO; ERR_MEMORY.
 */
Status loader_open(Loader *loader, const DatasetConfig *config, const Tokenizer *tokenizer,
                   Log *log) MUST_USE;

/** Append the samples of one file. Errors: as dataset_open. */
Status loader_file(Loader *loader, const char *path) MUST_USE;
void loader_free(Loader *loader);
