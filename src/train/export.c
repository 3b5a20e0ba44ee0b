#include "train/export.h"
#include "io/file.h"
#include "train/step_folder.h"

#include <string.h>

static Status begin_export(const char *dir, const char *from, DType dtype, Arena *arena)
{
    const char *temporary;
    TRY(folder_begin(&temporary, dir, arena));
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
    TRY(comm_agree(world, world->rank == 0 ? folder_end(dir, &e->step) : OK));
    return comm_agree(world, world->rank == 0 ? folder_forget(dir, &e->step) : OK);
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
    const char *temporary = folder_temporary(dir, arena);
    Status status = comm_agree(world, first ? begin_export(dir, e->side_files, dtype, arena) : OK);
    if (status == OK) status = AFTER_START(fill_export(e, temporary, dir, dtype, max_shard_bytes));
    if (status != OK && first) folder_drop(dir, arena);
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
            status = folder_prune(parent, e->config->checkpoint.hf_keep,
                                  step < 0 ? INT64_MAX : step, arena);
    }
    arena_rewind(arena, mark);
    return comm_agree(e->mesh->world, status);
}
