#include "train/checkpoint.h"
#include "io/file.h"
#include "io/hash.h"
#include "io/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FORMAT_VERSION = 1 };

static const char *const moment_dirs[2] = {"exp_avg", "exp_avg_sq"};

static const char *step_name(Arena *arena, int64_t step)
{
    return text_format(arena, "step-%06lld", (long long)step);
}

/* dir/NAME -> dir/.NAME.tmp, emptied. */
static Status begin_folder(const char **out, const char *dir, Arena *arena)
{
    const char *slash = strrchr(dir, '/');
    *out = text_format(arena, "%.*s.%s.tmp", slash ? (int)(slash + 1 - dir) : 0, dir,
                       slash ? slash + 1 : dir);
    TRY(dir_remove_tree(*out));
    return dir_create(*out);
}

/* What has the name already gives way first and is removed last: a kill loses neither. */
static Status end_folder(const char *temporary, const char *dir, Arena *arena)
{
    TRY(dir_sync(temporary));
    const char *old = text_format(arena, "%s.old", temporary);
    TRY(dir_remove_tree(old));
    if (dir_exists(dir)) TRY(file_rename(old, dir));
    TRY(file_rename(dir, temporary));
    return dir_remove_tree(old);
}

/* Half a folder serves nobody, and where it fails the disk is often full. Rank 0, once no other rank writes any more. */
static void drop_folder(const char *temporary, Arena *arena)
{
    const char *why = text_copy(arena, status_message());
    if (dir_remove_tree(temporary) != OK) status_fail("%s", why); /* the first reason is told */
}

/* The number of a folder step-…, or -1. */
static int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    int64_t step = strtoll(name + 5, &end, 10);
    return *end ? -1 : step;
}

/*
 * Of the folders up to this step remove all but the newest `keep`. A later one was left by a run that was ahead of what it was
 * resumed from; counting it could remove the very folder that was just saved.
 */
static Status prune(const char *dir, int64_t keep, int64_t step, Arena *arena)
{
    char **names;
    int n;
    TRY(dir_list(arena, dir, &names, &n));
    for (int i = 0; i < n; i++) {
        int64_t own = step_of(names[i]), newer = 0;
        if (own < 0 || own > step) continue;
        for (int j = 0; j < n; j++) {
            int64_t other = step_of(names[j]);
            newer += other > own && other <= step;
        }
        if (newer >= keep) TRY(dir_remove_tree(path_join(arena, dir, names[i])));
    }
    return OK;
}

/* ---- what lies beside the weights ------------------------------------------------------------------------- */

static Status write_state(const Engine *e, const TrainState *s, const char *dir, Arena *arena)
{
    TextBuffer config;
    text_buffer_init(&config, arena);
    config_dump(&config, e->config);
    json_t *root =
        json_pack("{si sI sf sI sI sI sI sI ss ss s{ss}}", "format", FORMAT_VERSION, "step",
                  (json_int_t)s->step, "epoch", s->epoch, "position", (json_int_t)s->position,
                  "tokens", (json_int_t)s->tokens, "trained_tokens", (json_int_t)s->trained_tokens,
                  "updates", (json_int_t)s->updates, "skipped", (json_int_t)s->skipped, "config",
                  config.text, "kernel_path", e->be.name, "versions", "stagewright", SW_VERSION);
    if (!root) return FAIL(ERR_MEMORY, "%s: cannot make state.json", dir);
    Status status = json_write_file(path_join(arena, dir, "state.json"), root);
    json_decref(root);
    return status;
}

static Status size_of(const char *path, int64_t *bytes)
{
    struct stat info;
    if (stat(path, &info) != 0) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    *bytes = info.st_size;
    return OK;
}

/* All files of a folder, those one level down too. */
static Status list_files(json_t *files, const char *dir, const char *below, Arena *arena)
{
    char **names;
    int n;
    const char *here = below[0] ? path_join(arena, dir, below) : dir;
    TRY(dir_list(arena, here, &names, &n));
    for (int i = 0; i < n; i++) {
        const char *name = below[0] ? path_join(arena, below, names[i]) : names[i];
        const char *path = path_join(arena, dir, name);
        if (dir_exists(path)) {
            if (!below[0]) TRY(list_files(files, dir, name, arena));
            continue;
        }
        int64_t bytes;
        char hex[HASH_HEX_BYTES];
        TRY(size_of(path, &bytes));
        TRY(hash_file(hex, path));
        json_object_set_new(files, name,
                            json_pack("{sI ss}", "bytes", (json_int_t)bytes, "xxh3_128", hex));
    }
    return OK;
}

static Status write_manifest(const Engine *e, const char *dir, Arena *arena)
{
    json_t *files = json_object();
    Status status = list_files(files, dir, "", arena);
    json_t *root =
        json_pack("{si ss ss so so}", "format", FORMAT_VERSION, "weights", "f32", "moments",
                  e->config->optimizer.type == OPTIMIZER_ADAMW ? "f32" : "none", "files", files,
                  "source", hf_layout_to_json(e->layout));
    if (!root) return FAIL(ERR_MEMORY, "%s: cannot make manifest.json", dir);
    if (status == OK) status = json_write_file(path_join(arena, dir, "manifest.json"), root);
    json_decref(root);
    return status;
}

static Status check_manifest(const char *dir, Arena *arena)
{
    const char *path = path_join(arena, dir, "manifest.json");
    JsonDoc doc;
    TRY(json_doc_read(&doc, path));
    json_t *files = NULL, *value;
    int64_t format;
    Status status = json_expect_object(doc.root, path);
    if (status == OK) status = json_get_int(doc.root, path, "format", &format);
    if (status == OK && format != FORMAT_VERSION)
        status = FAIL(ERR_UNSUPPORTED, "%s: key format: not available (found %lld, expected %d)",
                      path, (long long)format, FORMAT_VERSION);
    if (status == OK) status = json_get_object(doc.root, path, "files", &files);
    const char *name;
    if (status == OK) json_object_foreach(files, name, value)
        {
            int64_t bytes = 0, wanted = 0;
            char hex[HASH_HEX_BYTES];
            const char *sum, *file = path_join(arena, dir, name);
            if (strstr(name, ".."))
                status = FAIL(ERR_FORMAT, "%s: file %s: outside the folder", path, name);
            if (status == OK) status = json_get_int(value, path, "bytes", &wanted);
            if (status == OK) status = json_get_string(value, path, "xxh3_128", &sum);
            if (status == OK) status = size_of(file, &bytes);
            if (status == OK && bytes != wanted)
                status = FAIL(ERR_FORMAT, "%s: %lld bytes (expected %lld from the manifest)", file,
                              (long long)bytes, (long long)wanted);
            if (status == OK) status = hash_file(hex, file);
            if (status == OK && strcmp(sum, hex) != 0)
                status = FAIL(ERR_FORMAT, "%s: checksum %s (expected %s from the manifest)", file,
                              hex, sum);
            if (status != OK) break;
        }
    json_doc_free(&doc);
    return status;
}

/* ---- save ------------------------------------------------------------------------------------------------- */

static Status prepare(const Engine *e, const char *dir, const char **temporary, Arena *arena)
{
    TRY(begin_folder(temporary, dir, arena));
    for (int k = 0; k < 2 && e->config->optimizer.type == OPTIMIZER_ADAMW; k++)
        TRY(dir_create(path_join(arena, *temporary, moment_dirs[k])));
    return hf_copy_side_files(*temporary, e->side_files, arena);
}

static Status finish(Engine *e, const TrainState *state, const char *temporary, const char *dir,
                     Arena *arena)
{
    const char *parent = path_join(arena, e->config->train.output, "checkpoints");
    TRY(write_state(e, state, temporary, arena));
    TRY(write_manifest(e, temporary, arena));
    TRY(end_folder(temporary, dir, arena));
    const char *name = text_format(arena, "%s\n", step_name(arena, state->step));
    TRY(file_write_atomic(path_join(arena, parent, "latest"), name, strlen(name)));
    TRY(engine_set_side_files(e, dir)); /* the run may have been resumed from one that goes now */
    return prune(parent, e->config->checkpoint.keep, state->step, arena);
}

/* All of a checkpoint into the folder that `prepare` made, and its name at the end. */
static Status write_checkpoint(Engine *e, const TrainState *state, const char *temporary,
                               const char *dir, Arena *arena)
{
    Comm *world = e->mesh->world;
    TRY(comm_agree(world, world->rank == 0 ? prepare(e, dir, &temporary, arena) : OK));
    HfWrite how = {.dir = temporary, .what = PARAM_MASTER, .dtype = DTYPE_F32, .aliases = true};
    TRY(hf_write(e->layout, &e->set, world, &how, NULL, arena));
    for (int k = 0; k < 2 && e->config->optimizer.type == OPTIMIZER_ADAMW; k++) {
        HfWrite moments = {.dir = path_join(arena, temporary, moment_dirs[k]),
                           .what = PARAM_MOMENT_0 + (ParamTensor)k,
                           .dtype = DTYPE_F32};
        bool *present;
        TRY(engine_present(&present, e, moments.what, arena));
        TRY(hf_write(e->layout, &e->set, world, &moments, present, arena));
    }
    return comm_agree(world, world->rank == 0 ? finish(e, state, temporary, dir, arena) : OK);
}

Status checkpoint_save(Engine *e, const TrainState *state, Log *log)
{
    bool first = e->mesh->world->rank == 0;
    Arena *arena = &e->step;
    ArenaMark mark = arena_mark(arena);
    const char *parent = path_join(arena, e->config->train.output, "checkpoints");
    const char *dir = path_join(arena, parent, step_name(arena, state->step));
    const char *temporary = text_format(arena, "%s/.%s.tmp", parent, step_name(arena, state->step));
    Status status = write_checkpoint(e, state, temporary, dir, arena);
    if (status == OK && first) log_line(log, "saved %s", dir);
    if (status != OK && first) drop_folder(temporary, arena);
    arena_rewind(arena, mark);
    return status;
}

/* ---- load ------------------------------------------------------------------------------------------------- */

bool checkpoint_is(const char *dir)
{
    char path[4096];
    return snprintf(path, sizeof path, "%s/manifest.json", dir) < (int)sizeof path &&
           file_exists(path);
}

Status checkpoint_latest(const char **out, const char *output, Arena *arena)
{
    *out = NULL;
    const char *parent = path_join(arena, output, "checkpoints"),
               *path = path_join(arena, parent, "latest");
    if (!file_exists(path)) return OK;
    char *name;
    TRY(file_read(arena, path, &name, NULL));
    name[strcspn(name, "\r\n")] = '\0';
    const char *dir = path_join(arena, parent, name);
    if (strncmp(name, "step-", 5) != 0 || strchr(name, '/') || !dir_exists(dir))
        return FAIL(ERR_FORMAT, "%s: names no checkpoint (found %s)", path, name);
    *out = dir;
    return OK;
}

Status checkpoint_state_of_json(CheckpointInfo *out, const json_t *root, const char *place,
                                Arena *arena)
{
    const int64_t most = (int64_t)1 << 53; /* room for what a run adds */
    const char *config, *kernel;
    TrainState s = {0};
    const struct {
        const char *key;
        int64_t *at;
    } fields[] = {{"step", &s.step},       {"position", &s.position},
                  {"tokens", &s.tokens},   {"trained_tokens", &s.trained_tokens},
                  {"updates", &s.updates}, {"skipped", &s.skipped}};
    TRY(json_expect_object(root, place));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        TRY(json_get_int(root, place, fields[i].key, fields[i].at));
        if (*fields[i].at < 0 || *fields[i].at > most)
            return FAIL(ERR_FORMAT, "%s: key %s: out of range (found %lld, expected 0 to 2^53)",
                        place, fields[i].key, (long long)*fields[i].at);
    }
    TRY(json_get_real_or(root, place, "epoch", 0, &s.epoch)); /* follows from position and data */
    TRY(json_get_string(root, place, "config", &config));
    TRY(json_get_string(root, place, "kernel_path", &kernel));
    *out = (CheckpointInfo){
        .state = s, .config = text_copy(arena, config), .kernel_path = text_copy(arena, kernel)};
    return OK;
}

Status checkpoint_read(CheckpointInfo *out, const char *dir, Arena *arena)
{
    TRY(check_manifest(dir, arena));
    const char *path = path_join(arena, dir, "state.json");
    JsonDoc doc;
    TRY(json_doc_read(&doc, path));
    Status status = checkpoint_state_of_json(out, doc.root, path, arena);
    json_doc_free(&doc);
    return status;
}

Status checkpoint_load_moments(Engine *e, const char *dir)
{
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
        Status status = hf_load_moments(e->layout, index, &e->set, PARAM_MOMENT_0 + (ParamTensor)k);
        shard_index_close(&index);
        arena_rewind(&e->step, mark);
        if (status != OK) return status;
    }
    return OK;
}

/* ---- export ----------------------------------------------------------------------------------------------- */

static Status begin_export(const char *dir, const char *from, DType dtype, Arena *arena)
{
    const char *temporary;
    TRY(begin_folder(&temporary, dir, arena));
    return hf_write_config(temporary, from, dtype, arena);
}

/* All ranks write; rank 0 has made the temporary folder. */
static Status fill_export(Engine *e, const char *temporary, const char *dir, DType dtype,
                          int64_t max_shard_bytes)
{
    Comm *world = e->mesh->world;
    HfWrite how = {.dir = temporary,
                   .what = PARAM_MASTER,
                   .dtype = dtype,
                   .aliases = true,
                   .keep_files = max_shard_bytes == 0,
                   .max_shard_bytes = max_shard_bytes};
    TRY(hf_write(e->layout, &e->set, world, &how, NULL, &e->step));
    return comm_agree(world, world->rank == 0 ? end_folder(temporary, dir, &e->step) : OK);
}

Status export_folder(Engine *e, const char *dir, DType dtype, int64_t max_shard_bytes)
{
    Comm *world = e->mesh->world;
    bool first = world->rank == 0;
    Arena *arena = &e->step;
    ArenaMark mark = arena_mark(arena);
    size_t length = strlen(dir);
    while (length > 1 && dir[length - 1] == '/') length--;
    dir = text_copy_n(arena, dir, length); /* a shell completes "out" to "out/" */
    const char *slash = strrchr(dir, '/'), *name = slash ? slash + 1 : dir;
    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return FAIL(ERR_USAGE, "%s: no name for a new folder", dir);
    const char *temporary = text_format(arena, "%.*s.%s.tmp", (int)(name - dir), dir, name);
    Status status = comm_agree(world, first ? begin_export(dir, e->side_files, dtype, arena) : OK);
    if (status == OK) status = AFTER_START(fill_export(e, temporary, dir, dtype, max_shard_bytes));
    if (status != OK && first) drop_folder(temporary, arena);
    arena_rewind(arena, mark);
    return status;
}

Status export_step(Engine *e, int64_t step, Log *log)
{
    Arena *arena = &e->step;
    ArenaMark mark = arena_mark(arena);
    const char *parent = path_join(arena, e->config->train.output, "hf");
    const char *dir = path_join(arena, parent, step < 0 ? "final" : step_name(arena, step));
    TRY(export_folder(e, dir, e->config->checkpoint.hf_dtype, 0));
    Status status = OK;
    if (e->mesh->world->rank == 0) {
        log_line(log, "exported %s", dir);
        if (e->config->checkpoint.hf_keep > 0)
            status =
                prune(parent, e->config->checkpoint.hf_keep, step < 0 ? INT64_MAX : step, arena);
    }
    arena_rewind(arena, mark);
    return comm_agree(e->mesh->world, status);
}
