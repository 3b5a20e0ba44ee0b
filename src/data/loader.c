#include "data/loader.h"

#include "io/jsonl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lines are read one after the other and tokenised in batches by all threads. */
enum { BATCH_LINES = 512, BATCH_BYTES = 8 << 20 };

struct LoaderSlot {
    Document document;
    int64_t line;
    TrainedTokens tokens;
    Status status; /* of reading, then of tokenising */
    char message[1024];
};

static void slot_fail(LoaderSlot *slot, Status status, const char *place_path, const char *message)
{
    slot->status = status;
    if (place_path)
        snprintf(slot->message, sizeof slot->message, "%s:%lld: %s", place_path,
                 (long long)slot->line, message);
    else
        snprintf(slot->message, sizeof slot->message, "%s", message);
}

static bool needs_template(const Document *document)
{
    if (document->kind != DOCUMENT_MESSAGES) return false;
    for (int i = 0; i < document->n_messages; i++)
        if (document->message[i].role != ROLE_PRETRAIN) return true;
    return false;
}

static Status encode_checked(TrainedTokens *tokens, const Document *document, const Loader *loader)
{
    if (!loader->tokenizer)
        return FAIL(ERR_USAGE,
                    "the model's folder has no tokenizer.json: only ids rows can be read");
    if (!loader->chat && needs_template(document))
        return FAIL(loader->chat_status, "%s", loader->chat_fault);
    TRY(document_encode(tokens, document, loader->chat, loader->tokenizer, loader->eos_id));
    if (tokens->ids.n > INT32_MAX)
        return FAIL(ERR_UNSUPPORTED, "%lld tokens are too many for one sample (at most %d)",
                    (long long)tokens->ids.n, INT32_MAX);
    for (int64_t t = 0; t < tokens->ids.n; t++)
        if (tokens->ids.id[t] >= loader->config->vocab_size)
            return FAIL(
                ERR_USAGE,
                "the tokenizer gives id %d, but the model's vocab_size is %lld: they do not "
                "belong together",
                tokens->ids.id[t], (long long)loader->config->vocab_size);
    return OK;
}

/** Runs in any thread: the error's text is kept in the slot, since messages belong to threads. */
static void slot_encode(LoaderSlot *slot, const Loader *loader, const char *path)
{
    if (slot->status != OK || slot->document.kind == DOCUMENT_IDS) return;
    trained_tokens_clear(&slot->tokens);
    Status status = encode_checked(&slot->tokens, &slot->document, loader);
    if (status != OK) slot_fail(slot, status, path, status_message());
}

/** Fill slots from the file; *n = 0 at its end. A bad line that may not be skipped is the last one. */
static void read_batch(Loader *loader, JsonlReader *reader, int *n)
{
    const DatasetConfig *config = loader->config;
    size_t bytes = 0;
    arena_reset(&loader->batch);
    for (*n = 0; *n < BATCH_LINES && bytes < BATCH_BYTES;) {
        LoaderSlot *slot = &loader->slot[*n];
        json_t *value = NULL;
        slot->status = jsonl_next(reader, &value);
        if (slot->status == OK && !value) return;
        slot->line = reader->line;
        if (slot->status == OK)
            slot->status = document_parse(&slot->document, value, reader->place, config->format,
                                          config->vocab_size, &loader->batch);
        bytes += reader->text_bytes;
        ++*n;
        if (slot->status == OK) continue;
        slot_fail(slot, slot->status, NULL, status_message());
        if (!config->skip_bad_lines || slot->status != ERR_FORMAT) return;
    }
}

/** Put a slot's sample into the store, or say what was wrong with its line. */
static Status keep_slot(TokenStore *store, TokenCounts *counts, const LoaderSlot *slot,
                        const Loader *loader)
{
    if (slot->status == ERR_FORMAT && loader->config->skip_bad_lines) {
        if (counts->n_bad++ == 0) log_warning(loader->log, "%s: skipped", slot->message);
        return OK;
    }
    if (slot->status != OK) return FAIL(slot->status, "%s", slot->message);
    counts->n_lines++;
    if (slot->document.kind == DOCUMENT_IDS)
        return token_store_add(store, &slot->document.row, true);
    counts->n_no_eos += slot->document.kind == DOCUMENT_TEXT && loader->eos_id < 0;
    int64_t n = slot->tokens.ids.n;
    if (n == 0) {
        counts->n_empty++;
        return OK;
    }
    int32_t cu[2] = {0, (int32_t)n};
    Row row = {.n_tokens = n,
               .id_t = slot->tokens.ids.id,
               .trained_t = slot->tokens.trained,
               .n_segments = 1,
               .cu_seqlens = cu};
    return token_store_add(store, &row, false);
}

static Status read_lines(TokenStore *store, TokenCounts *counts, Loader *loader,
                         JsonlReader *reader, const char *path)
{
    int n = 0;
    for (read_batch(loader, reader, &n); n > 0; read_batch(loader, reader, &n)) {
        LoaderSlot *slot = loader->slot;
#pragma omp parallel for schedule(dynamic) num_threads(loader->n_threads)
        for (int i = 0; i < n; i++) slot_encode(&slot[i], loader, path);
        /* In the order of the lines, whichever thread was first: the first error is the first bad line's. */
        for (int i = 0; i < n; i++) TRY(keep_slot(store, counts, &slot[i], loader));
        log_progress(loader->log, "data: %s: %lld samples, %lld tokens", path,
                     (long long)store->n_items, (long long)store->n_tokens);
    }
    return OK;
}

/** Read, tokenise, and cache if asked to. The store is the file's own. */
static Status tokenise_file(TokenStore *store, TokenCounts *counts, Loader *loader,
                            const char *path)
{
    JsonlReader reader;
    TRY(jsonl_open(&reader, path));
    Status st = read_lines(store, counts, loader, &reader, path);
    jsonl_close(&reader);
    return st;
}

static void add_counts(TokenCounts *sum, const TokenCounts *counts)
{
    sum->n_lines += counts->n_lines;
    sum->n_bad += counts->n_bad;
    sum->n_empty += counts->n_empty;
    sum->n_no_eos += counts->n_no_eos;
}

Status loader_file(Loader *loader, const char *path)
{
    const DatasetConfig *config = loader->config;
    TokenCounts counts = {0};
    TokenCacheFile file = {0};
    bool found = false;
    loader->n_files++;
    if (config->cache_dir) {
        TRY(token_cache_find(&file, config->cache_dir, path, loader->options, &loader->arena));
        TRY(token_cache_read(&loader->samples, &counts, &found, &file, config->vocab_size,
                             loader->log));
    }
    if (!found) {
        TokenStore own;
        token_store_init(&own);
        Status st = tokenise_file(&own, &counts, loader, path);
        if (st == OK) st = token_store_append(&loader->samples, &own);
        /* A cache that cannot be written costs time, not the run. */
        if (st == OK && config->cache_dir && token_cache_write(&own, &counts, &file) != OK)
            log_warning(loader->log, "%s: not cached", status_message());
        token_store_free(&own);
        TRY(st);
    }
    if (counts.n_bad > 0)
        log_warning(loader->log, "%s: %lld bad lines skipped", path, (long long)counts.n_bad);
    add_counts(&loader->counts, &counts);
    return OK;
}

/** The template, if it can be told now; "auto" that cannot fails only when a conversation comes. */
static Status settle_template(Loader *loader)
{
    const char *name = loader->config->chat_template ? loader->config->chat_template : "auto";
    loader->chat_status = chat_template_find(&loader->chat, name, loader->config->model_type);
    if (loader->chat_status == OK) return OK;
    if (strcmp(name, "auto") != 0) return loader->chat_status;
    loader->chat = NULL;
    loader->chat_fault = text_copy(&loader->arena, status_message());
    return OK;
}

/** What the ids of a file depend on, in words, for the cache's key. */
static Status describe_options(Loader *loader)
{
    const DatasetConfig *config = loader->config;
    if (!config->cache_dir) return OK;
    char tokenizer[HASH_HEX_BYTES] = "none";
    if (config->tokenizer_path) TRY(hash_file(tokenizer, config->tokenizer_path));
    loader->options =
        text_format(&loader->arena,
                    "tokenizer %s\nformat %s\nchat_template %s\neos %d\nvocab_size %lld\nskip %d",
                    tokenizer, data_format_names[config->format],
                    loader->chat ? chat_template_name(loader->chat) : "unsettled",
                    (int)loader->eos_id, (long long)config->vocab_size, config->skip_bad_lines);
    return OK;
}

Status loader_open(Loader *loader, const DatasetConfig *config, const Tokenizer *tokenizer,
                   Log *log)
{
    int64_t n_threads = config->n_threads > 0 ? config->n_threads : sysconf(_SC_NPROCESSORS_ONLN);
    *loader = (Loader){.config = config,
                       .tokenizer = tokenizer,
                       .eos_id = config->append_eos ? config->eos_id : -1,
                       .n_threads = n_threads > 0 ? (int)n_threads : 1,
                       .log = log};
    arena_init(&loader->arena, "data names");
    arena_init(&loader->batch, "data batch");
    token_store_init(&loader->samples);
    loader->slot = calloc(BATCH_LINES, sizeof *loader->slot);
    if (!loader->slot) return FAIL(ERR_MEMORY, "out of memory (data)");
    TRY(settle_template(loader));
    return describe_options(loader);
}

void loader_free(Loader *loader)
{
    for (int i = 0; loader->slot && i < BATCH_LINES; i++)
        trained_tokens_free(&loader->slot[i].tokens);
    free(loader->slot);
    loader->slot = NULL;
    token_store_free(&loader->samples);
    arena_free(&loader->batch);
    arena_free(&loader->arena);
}
