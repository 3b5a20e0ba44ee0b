#pragma once
/**
 * The room data: JSONL -> documents -> tokens -> packed rows -> microbatches. It knows nothing of models, ranks or
 * steps. Read in this order: document.h (a line), tokenizer.h and chat.h (ids and masks), pack.h (rows), sampler.h
 * (their order), batch.h (microbatches); row.h is the way in without a tokenizer. This file ties them together.
 *
 * A dataset reads and tokenises all its files when it is opened, so every error of the data comes then. The
 * samples of each source are taken `ratio` times (a fraction: that share of them, drawn by the seed), shuffled by
 * the seed and packed ONCE; epoch e shuffles the rows by (seed, e). So an epoch has exactly n_rows rows.
 * Afterwards it is constant: the threads of a process share one.
 */
#include "base/log.h"
#include "data/pack.h"
#include "data/sampler.h"
#include "data/chat.h"

typedef struct DataSource {
    const char *path; /* file, folder (its *.jsonl) or pattern */
    double ratio;     /* how often each sample is taken, > 0; 1: once */
} DataSource;

typedef struct DatasetConfig {
    const DataSource *source;
    int n_sources;
    const char *key; /* of the configuration, for messages: "data.train", "data.eval" */
    DataFormat format;
    PackKind pack;
    int64_t max_length; /* tokens, >= 1; ids rows may be longer */
    bool append_eos;
    bool skip_bad_lines;
    bool shuffle; /* false: samples and rows in the order of the files (eval) */
    uint64_t seed;
    const char *cache_dir;      /* NULL: none */
    int64_t vocab_size;         /* of the model: every id is below it */
    int32_t eos_id;             /* for append_eos; negative: none known, one warning */
    const char *chat_template;  /* model.chat_template; NULL: auto */
    const char *model_type;     /* for auto; NULL: unknown */
    const char *tokenizer_path; /* tokenizer.json, hashed for the cache; NULL: no tokenizer */
    int n_threads;              /* tokenising; 0: all cores */
} DatasetConfig;

typedef struct Dataset Dataset;

/**
 * Read, tokenise and pack all files. The counts of samples, rows, cut and skipped ones go to the log (NULL on
 * all ranks but one: they would all say the same). While it works, the samples are held twice.
 *
 * Owner:  the caller frees it with dataset_free. tokenizer (NULL when there is none: then only ids rows are
 *         accepted) is used during this call only.
 * Errors: ERR_FORMAT "FILE:LINE: ..." for a bad line (skip_bad_lines: counted and left out), or no sample at
 *         all; ERR_USAGE when a conversation comes and model.chat_template is not settled, or a sample needs a
 *         tokenizer; ERR_IO; ERR_MEMORY.
 */
Status dataset_open(Dataset **out, const DatasetConfig *config, const Tokenizer *tokenizer,
                    Log *log) MUST_USE;
void dataset_free(Dataset **dataset);

int64_t dataset_n_rows(const Dataset *dataset);   /* of one epoch */
int64_t dataset_n_tokens(const Dataset *dataset); /* of one epoch */
int64_t dataset_longest(const Dataset *dataset);  /* tokens of the longest row */

/** The row at a position of the endless stream (sampler.h); lent, valid until dataset_free. */
void dataset_row(const Dataset *dataset, int64_t position, Row *out);
/** Rows position ... position + n - 1 of the stream: a step's. */
void dataset_rows(const Dataset *dataset, int64_t position, int64_t n, Row *out);
