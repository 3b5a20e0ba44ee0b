#include "train/checkpoint.h"
#include "base/clock.h"
#include "io/file.h"
#include "io/json.h"
#include "train/manifest.h"
#include "train/step_folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1 };

static const int64_t most_counted = (int64_t)1 << 53; /* of a count: room for what a run adds */

static const char *const moment_dirs[2] = {CHECKPOINT_MOMENT_0, CHECKPOINT_MOMENT_1};

Status checkpoint_write_state(const Engine *e, const TrainState *s, const char *dir, Arena *arena)
{
    TextBuffer config;
    text_buffer_init(&config, arena);
    config_dump(&config, e->config);
    const char *hash = text_format(arena, "%016llx", (unsigned long long)s->rows_hash);
    json_t *root =
        json_pack("{si sI sf sI sI sI sI sI sI ss ss ss s{ss}}", "format", FORMAT_VERSION, "step",
                  (json_int_t)s->step, "epoch", s->epoch, "position", (json_int_t)s->position,
                  "tokens", (json_int_t)s->tokens, "trained_tokens", (json_int_t)s->trained_tokens,
                  "updates", (json_int_t)s->updates, "skipped", (json_int_t)s->skipped, "rows",
                  (json_int_t)s->n_rows, "rows_hash", hash, "config", config.text, "kernel_path",
                  e->be.name, "versions", "stagewright", SW_VERSION);
    if (!root) return FAIL(ERR_MEMORY, "%s: cannot make state.json", dir);
    Status status = json_write_file(path_join(arena, dir, "state.json"), root);
    json_decref(root);
    return status;
}

bool checkpoint_is(const char *dir)
{
    char path[4096];
    return snprintf(path, sizeof path, "%s/manifest.json", dir) < (int)sizeof path &&
           file_exists(path);
}

Status checkpoint_newest(const char **out, const char *output, Arena *arena)
{
    *out = NULL;
    const char *parent = path_join(arena, output, "checkpoints");
    char **names;
    int n;
    int64_t newest = -1;
    if (!dir_exists(parent)) return OK;
    TRY(dir_list(arena, parent, &names, &n));
    for (int i = 0; i < n; i++) {
        if (step_of(names[i]) <= newest) continue;
        newest = step_of(names[i]);
        *out = path_join(arena, parent, names[i]);
    }
    return OK;
}

Status checkpoint_set_latest(const char *dir, Arena *arena)
{
    const char *slash = strrchr(dir, '/'), *name = slash ? slash + 1 : dir;
    const char *path = text_format(arena, "%.*s" CHECKPOINT_LATEST, (int)(name - dir), dir);
    const char *line = text_format(arena, "%s\n", name);
    return file_write_atomic(path, line, strlen(line));
}

/* A checkpoint made before there was this key goes on with any rows. */
static Status read_rows(TrainState *s, const json_t *root, const char *place)
{
    const char *hash;
    double rows = s->epoch > 0 ? round((double)s->position / s->epoch) : 0;
    TRY(json_get_int_or(root, place, "rows", (int64_t)fmin(rows, (double)most_counted),
                        &s->n_rows));
    TRY(json_get_string_or(root, place, "rows_hash", "0000000000000000", &hash));
    s->rows_hash = strtoull(hash, NULL, 16);
    if (s->n_rows >= 0 && s->n_rows <= most_counted && strlen(hash) == 16 &&
        strspn(hash, "0123456789abcdef") == 16)
        return OK;
    return FAIL(ERR_FORMAT,
                "%s: key rows or rows_hash: expected 0 to 2^53 and 16 hexadecimal digits (found "
                "%lld and %zu characters)",
                place, (long long)s->n_rows, strlen(hash));
}

Status checkpoint_state_of_json(CheckpointInfo *out, const json_t *root, const char *place,
                                Arena *arena)
{
    const char *config, *kernel;
    TrainState s = {0};
    const struct {
        const char *key;
        int64_t *at;
    } fields[] = {{"step", &s.step},       {"position", &s.position},
                  {"tokens", &s.tokens},   {"trained_tokens", &s.trained_tokens},
                  {"updates", &s.updates}, {"skipped", &s.skipped}};
    int64_t format;
    TRY(json_expect_object(root, place));
    TRY(json_get_int(root, place, "format", &format));
    if (format != FORMAT_VERSION)
        return FAIL(ERR_UNSUPPORTED, "%s: key format: not available (found %lld, expected %d)",
                    place, (long long)format, FORMAT_VERSION);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        TRY(json_get_int(root, place, fields[i].key, fields[i].at));
        if (*fields[i].at < 0 || *fields[i].at > most_counted)
            return FAIL(ERR_FORMAT, "%s: key %s: out of range (found %lld, expected 0 to 2^53)",
                        place, fields[i].key, (long long)*fields[i].at);
    }
    TRY(json_get_real_or(root, place, "epoch", 0, &s.epoch)); /* follows from position and data */
    TRY(read_rows(&s, root, place));
    TRY(json_get_string(root, place, "config", &config));
    TRY(json_get_string(root, place, "kernel_path", &kernel));
    *out = (CheckpointInfo){
        .state = s, .config = text_copy(arena, config), .kernel_path = text_copy(arena, kernel)};
    return OK;
}

Status checkpoint_read(CheckpointInfo *out, const char *dir, Arena *arena)
{
    TRY(manifest_check(dir, true, arena));
    const char *path = path_join(arena, dir, "state.json");
    JsonDoc doc;
    TRY(json_doc_read(&doc, path));
    Status status = checkpoint_state_of_json(out, doc.root, path, arena);
    json_doc_free(&doc);
    TRY(status);
    const char *slash = strrchr(dir, '/');
    int64_t step = step_of(slash ? slash + 1 : dir); /* -1: called otherwise, as a copy may be */
    if (step >= 0 && step != out->state.step)
        return FAIL(ERR_FORMAT,
                    "%s: key step: not that of its folder's name (found %lld, expected %lld)", path,
                    (long long)out->state.step, (long long)step);
    return OK;
}

Status checkpoint_check_model(const char *dir, Arena *arena)
{
    return checkpoint_is(dir) ? manifest_check(dir, false, arena) : OK;
}

Status checkpoint_load_moments(Engine *e, const char *dir)
{
    double begin = clock_seconds();
    for (int k = 0; k < 2 && e->config->optimizer.type == OPTIMIZER_ADAMW; k++) {
        ArenaMark mark = arena_mark(&e->step);
        ShardIndex *index;
        const char *moments = path_join(&e->step, dir, moment_dirs[k]);
        if (!dir_exists(moments))
            return FAIL(ERR_USAGE,
                        "%s: holds no moments for optimizer.type adamw (made by a run with sgd): "
                        "start a new run from it, as model.path",
                        dir);
        TRY(shard_index_open(&index, moments, &e->step, NULL));
        Status status =
            hf_load_moments(e->layout, index, &e->set, PARAM_MOMENT_0 + (ParamTensor)k, &e->step);
        shard_index_close(&index);
        arena_rewind(&e->step, mark);
        if (status != OK) return status;
    }
    e->load_seconds += clock_seconds() - begin;
    return OK;
}
