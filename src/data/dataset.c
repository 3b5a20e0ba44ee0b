#include "data/dataset.h"

#include "base/rng.h"
#include "data/loader.h"
#include "io/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Dataset {
    TokenStore rows;
    Sampler sampler;
    int64_t longest;
};

/**
 * How often the samples first ... end of a source are taken: each floor(ratio) times, and as many more as the rest
 * of the ratio asks for, drawn by the seed.
 */
static void count_draws(int64_t *times, int64_t first, int64_t end, int source,
                        const DatasetConfig *config)
{
    double ratio = config->source[source].ratio, whole = floor(ratio);
    int64_t n = end - first, n_more = llround((ratio - whole) * (double)n);
    uint64_t key = rng_bits(rng_key(config->seed, "data.ratio"), (uint64_t)source);
    for (int64_t i = first; i < end; i++) times[i] = (int64_t)whole;
    for (int64_t j = 0; j < n_more; j++) times[first + shuffle_index(j, n, key)]++;
}

/** The samples in the order in which they are packed. */
static Status order_samples(int64_t **out, int64_t *n_order, const int64_t *times,
                            int64_t n_samples, const DatasetConfig *config)
{
    int64_t n = 0;
    for (int64_t i = 0; i < n_samples; i++) n += times[i];
    int64_t *order = malloc(((size_t)n + 1) * sizeof *order);
    int64_t *shuffled = malloc(((size_t)n + 1) * sizeof *shuffled);
    if (!order || !shuffled) {
        free(order);
        free(shuffled);
        return FAIL(ERR_MEMORY, "out of memory (order of %lld samples)", (long long)n);
    }
    int64_t at = 0;
    for (int64_t i = 0; i < n_samples; i++)
        for (int64_t k = 0; k < times[i]; k++) order[at++] = i;
    if (config->shuffle) {
        rng_permutation(shuffled, n, rng_key(config->seed, "data.pack"));
        for (int64_t i = 0; i < n; i++) shuffled[i] = order[shuffled[i]];
    } else {
        memcpy(shuffled, order, (size_t)n * sizeof *order);
    }
    free(order);
    *out = shuffled;
    *n_order = n;
    return OK;
}

static Status load_sources(Loader *loader, int64_t *source_end)
{
    for (int s = 0; s < loader->config->n_sources; s++) {
        char **path;
        int n;
        TRY(paths_expand(&loader->arena, loader->config->source[s].path, ".jsonl", &path, &n));
        for (int i = 0; i < n; i++) TRY(loader_file(loader, path[i]));
        source_end[s] = loader->samples.n_items;
    }
    if (loader->samples.n_items == 0)
        return FAIL(ERR_FORMAT, "%s: no samples", loader->config->source[0].path);
    return OK;
}

static void report(const Loader *loader, const Dataset *dataset, int64_t n_taken, int64_t n_cut)
{
    const DatasetConfig *config = loader->config;
    const TokenCounts *counts = &loader->counts;
    if (counts->n_no_eos > 0 && config->append_eos)
        log_warning(loader->log, "no eos token is known: nothing is appended to %lld text samples",
                    (long long)counts->n_no_eos);
    log_line(
        loader->log,
        "data: %lld samples in %lld files, %lld taken, %lld cut to max_length %lld, %lld empty and "
        "%lld bad ones left out",
        (long long)counts->n_lines, (long long)loader->n_files, (long long)n_taken,
        (long long)n_cut, (long long)config->max_length, (long long)counts->n_empty,
        (long long)counts->n_bad);
    log_line(loader->log, "data: %lld rows (pack %s), %lld tokens, longest row %lld",
             (long long)dataset->rows.n_items, pack_names[config->pack],
             (long long)dataset->rows.n_tokens, (long long)dataset->longest);
}

static Status build(Dataset *dataset, Loader *loader)
{
    const DatasetConfig *config = loader->config;
    int64_t *source_end = NULL, *times = NULL, *order = NULL, n_order = 0, n_cut = 0;
    TRY(arena_alloc(&loader->arena, &source_end, (size_t)config->n_sources, sizeof *source_end));
    TRY(load_sources(loader, source_end));
    int64_t n_samples = loader->samples.n_items;
    TRY(arena_alloc(&loader->arena, &times, (size_t)n_samples, sizeof *times));
    for (int s = 0; s < config->n_sources; s++)
        count_draws(times, s > 0 ? source_end[s - 1] : 0, source_end[s], s, config);
    TRY(order_samples(&order, &n_order, times, n_samples, config));
    Status st = pack_rows(&dataset->rows, &n_cut, &loader->samples, order, n_order, config->pack,
                          config->max_length);
    free(order);
    TRY(st);
    if (dataset->rows.n_items == 0)
        return FAIL(ERR_USAGE, "%s: the ratios leave no sample of %lld", config->key,
                    (long long)n_samples);
    for (int64_t i = 0; i < dataset->rows.n_items; i++) {
        int64_t n = dataset->rows.start[i + 1] - dataset->rows.start[i];
        if (n > dataset->longest) dataset->longest = n;
    }
    dataset->sampler = (Sampler){
        .n_rows = dataset->rows.n_items, .seed = config->seed, .shuffle = config->shuffle};
    report(loader, dataset, n_order, n_cut);
    return OK;
}

static Status check_config(const DatasetConfig *config)
{
    if (config->max_length < 1 || config->max_length > INT32_MAX)
        return FAIL(ERR_USAGE, "data.max_length: found %lld, expected 1 ... %d",
                    (long long)config->max_length, INT32_MAX);
    if (config->n_sources < 1) return FAIL(ERR_USAGE, "%s: no files", config->key);
    for (int s = 0; s < config->n_sources; s++)
        if (!(config->source[s].ratio > 0 && config->source[s].ratio <= 1e6))
            return FAIL(ERR_USAGE, "%s: %s: ratio %g, expected above 0 and at most 1e6",
                        config->key, config->source[s].path, config->source[s].ratio);
    return OK;
}

Status dataset_open(Dataset **out, const DatasetConfig *config, const Tokenizer *tokenizer,
                    Log *log)
{
    TRY(check_config(config));
    Dataset *dataset = calloc(1, sizeof *dataset);
    if (!dataset) return FAIL(ERR_MEMORY, "out of memory (data)");
    Loader loader;
    Status st = loader_open(&loader, config, tokenizer, log);
    if (st == OK) st = build(dataset, &loader);
    loader_free(&loader);
    if (st != OK) dataset_free(&dataset);
    if (st == OK) *out = dataset;
    return st;
}

void dataset_free(Dataset **dataset)
{
    if (!*dataset) return;
    token_store_free(&(*dataset)->rows);
    free(*dataset);
    *dataset = NULL;
}

int64_t dataset_n_rows(const Dataset *dataset)
{
    return dataset->rows.n_items;
}

int64_t dataset_n_tokens(const Dataset *dataset)
{
    return dataset->rows.n_tokens;
}

int64_t dataset_longest(const Dataset *dataset)
{
    return dataset->longest;
}

void dataset_row(const Dataset *dataset, int64_t position, Row *out)
{
    *out = token_store_row(&dataset->rows, sampler_row(&dataset->sampler, position));
}

void dataset_rows(const Dataset *dataset, int64_t position, int64_t n, Row *out)
{
    for (int64_t j = 0; j < n; j++) dataset_row(dataset, position + j, &out[j]);
}
