#include "cli/setup.h"
#include "io/file.h"
#include "io/hash.h"

#include <math.h>
#include <string.h>

Status setup_read_model(Setup *s, const char *dir)
{
    TRY(model_config_read(&s->model, dir, s->arena, &s->log));
    if (isnan(s->config.loss.balancing_alpha))
        s->config.loss.balancing_alpha =
            s->model->output_router_logits ? s->model->aux_coef : 0.001;
    /* Not settled is no error before a conversation comes. */
    const ChatTemplate *chat;
    if (chat_template_find(&chat, s->config.model.chat_template, s->model->family->model_type) ==
        OK)
        s->config.model.chat_template = chat_template_name(chat);
    return OK;
}

/* Ranks with different layouts or learning rates would wait for each other for ever, or worse, not. */
static Status same_config(const Setup *s)
{
    if (!s->world || s->world->size == 1) return OK;
    TextBuffer text;
    text_buffer_init(&text, s->arena);
    config_dump(&text, &s->config);
    int64_t bytes = (int64_t)text.length;
    TRY(world_share(s->world, &bytes, sizeof bytes));
    char *first = arena_take(s->arena, (size_t)bytes + 1);
    if (s->world->rank == 0) memcpy(first, text.text, text.length);
    TRY(world_share(s->world, first, (size_t)bytes));
    TrainConfig config;
    TRY(config_parse(&config, "process 0", first, (size_t)bytes, s->arena));
    ConfigChange *change;
    int n;
    config_diff(&config, &s->config, s->arena, &change, &n);
    for (int i = 0; i < n; i++)
        if (strcmp(change[i].key, "train.threads") != 0)
            return FAIL(ERR_USAGE,
                        "%s: %s differs between processes (found %s, expected %s of process 0)",
                        s->place, change[i].key, change[i].after, change[i].before);
    return OK;
}

Status setup_configure(Setup *out, const char *file, const TextList *sets, const char *model_path,
                       const World *world, Arena *arena)
{
    *out = (Setup){.world = world, .arena = arena, .place = config_place(file, sets->n, arena)};
    int rank = world ? world->rank : 0;
    TRY(log_open(&out->log, NULL, rank, rank == 0));
    /* All processes read the same files and would say the same. */
    out->log.silent = rank > 0;
    if (rank == 0) log_keep(&out->log, arena); /* for the run's log.txt, once there is one */
    TRY(config_load(&out->config, file, sets->at, sets->n, arena));
    if (model_path) out->config.model.path = model_path;
    int n_ranks;
    bool launched = world && world->launched;
    Status st =
        config_fit_world(&out->config, launched, world ? world->size : 1, out->place, &n_ranks);
    if (st != OK && launched && world->size == 1) /* perhaps a shell inherited it */
        return FAIL(st, "%s; %s in the environment says that a launcher started it",
                    status_message(), world->mark);
    TRY(st);
    TRY(config_fit_machine(&out->config, out->place));
    return same_config(out);
}

Status setup_create(Setup *out, const char *file, const TextList *sets, const char *model_path,
                    const World *world, Arena *arena)
{
    TRY(setup_configure(out, file, sets, model_path, world, arena));
    return setup_open_model(out, out->config.model.path);
}

/* Process 0 looks, as it does for --resume: the others wait for its checksums. */
Status setup_open_model(Setup *s, const char *dir)
{
    Status status = s->world && s->world->rank > 0 ? OK : checkpoint_check_model(dir, s->arena);
    TRY(s->world ? world_all_ok(s->world, status) : status);
    TRY(setup_read_model(s, dir));
    return setup_same_model(s);
}

Status setup_same_model(const Setup *s)
{
    if (!s->world || s->world->size == 1) return OK;
    const ModelConfig *model = s->model;
    const char *file = strcmp(model->source, model->dir) != 0
                           ? model->source
                           : path_join(s->arena, model->dir, "config.json");
    return world_same(s->world, file, model->hash);
}

Status setup_schedule(Schedule **out, Setup *s, int64_t n_mb, const char *microbatches_are)
{
    const ParallelSection *parallel = &s->config.parallel;
    Status st = engine_schedule(out, parallel, (int)n_mb, s->arena);
    if (st == ERR_USAGE)
        return FAIL(st, "%s: parallel.schedule: %s; microbatches are %s", s->place,
                    status_message(), microbatches_are);
    TRY(st);
    if (parallel->layer_split.at && parallel->layer_split.n != (*out)->n_stages)
        return FAIL(ERR_USAGE,
                    "%s: parallel.layer_split: needs a count for each stage (found %d counts, "
                    "expected %d of %s)",
                    s->place, parallel->layer_split.n, (*out)->n_stages, parallel->schedule);
    if (!(*out)->ascending)
        log_warning(&s->log,
                    "%s: microbatches are not in ascending order on every stage: results will not "
                    "equal those of other schedules bit for bit",
                    parallel->schedule);
    return OK;
}

void setup_free(Setup *setup)
{
    tokenizer_free(&setup->tokenizer);
    log_close(&setup->log);
}

static uint64_t hash_rows(uint64_t before, const Row *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        size_t tokens = (size_t)row[i].n_tokens;
        const uint64_t parts[] = {
            before, hash_bytes(row[i].id_t, tokens * sizeof *row[i].id_t),
            hash_bytes(row[i].trained_t, tokens),
            row[i].label_t ? hash_bytes(row[i].label_t, tokens * sizeof *row[i].label_t) : 0,
            hash_bytes(row[i].cu_seqlens,
                       ((size_t)row[i].n_segments + 1) * sizeof *row[i].cu_seqlens)};
        before = hash_bytes(parts, sizeof parts);
    }
    return before;
}

Status setup_same_rows(const Setup *s, const char *key, const Row *row, int64_t n)
{
    return s->world->size > 1 ? world_same(s->world, key, hash_rows(0, row, n)) : OK;
}

uint64_t setup_hash_data(const Dataset *data)
{
    uint64_t hash = 0;
    for (int64_t i = 0, n = dataset_n_rows(data); i < n; i++) {
        Row row;
        dataset_rows(data, i, 1, &row);
        hash = hash_rows(hash, &row, 1);
    }
    return hash;
}

Status setup_same_data(const Setup *s, const char *key, const Dataset *data)
{
    return s->world->size > 1 ? world_same(s->world, key, setup_hash_data(data)) : OK;
}

Status setup_tokenizer(Setup *s, bool needed)
{
    if (s->tokenizer) return OK;
    const char *path = path_join(s->arena, s->model->dir, "tokenizer.json");
    if (!file_exists(path))
        return needed ? FAIL(ERR_IO, "%s: not there, and text needs a tokenizer", path) : OK;
    return tokenizer_open(&s->tokenizer, s->model->dir, s->arena, &s->log);
}

int32_t setup_eos(const Setup *s)
{
    if (s->model->n_eos) return s->model->eos[0];
    return s->tokenizer ? tokenizer_eos(s->tokenizer) : -1;
}

Status setup_dataset(Dataset **out, Setup *s, const char *key, const ConfigSources *sources,
                     bool shuffle)
{
    const DataSection *d = &s->config.data;
    TRY(setup_tokenizer(s, false));
    DataSource *list;
    TRY(arena_alloc(s->arena, &list, (size_t)sources->n, sizeof *list));
    for (int i = 0; i < sources->n; i++)
        list[i] = (DataSource){sources->at[i].path,
                               isnan(sources->at[i].ratio) ? 1 : sources->at[i].ratio};
    DatasetConfig config = {
        .key = key,
        .source = list,
        .n_sources = sources->n,
        .format = d->format,
        .pack = d->pack,
        .max_length = d->max_length,
        .append_eos = d->append_eos,
        .skip_bad_lines = d->skip_bad_lines,
        .shuffle = shuffle,
        .seed = (uint64_t)d->seed,
        .cache_dir = d->cache_dir,
        .vocab_size = s->model->vocab,
        .eos_id = setup_eos(s),
        .chat_template = s->config.model.chat_template,
        .model_type = s->model->family->model_type,
        .tokenizer_path =
            s->tokenizer ? path_join(s->arena, s->model->dir, "tokenizer.json") : NULL,
        .n_threads = engine_threads(&s->config, s->world ? s->world->n_cpus : 1),
    };
    return dataset_open(out, &config, s->tokenizer, &s->log);
}
