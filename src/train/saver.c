#include "train/saver.h"
#include "base/clock.h"
#include "base/worker.h"
#include "io/file.h"
#include "train/manifest.h"
#include "train/step_folder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef enum SavePhase { SAVE_NONE, SAVE_PARTS, SAVE_FOLDER } SavePhase;

enum { N_KINDS = 3, SPARE_BYTES = 1 << 20 };

/* The tensors of a checkpoint and the folder of each kind. */
static const struct {
    ParamTensor what;
    const char *below; /* "": the checkpoint itself */
} kinds[N_KINDS] = {{PARAM_MASTER, ""},
                    {PARAM_MOMENT_0, CHECKPOINT_MOMENT_0},
                    {PARAM_MOMENT_1, CHECKPOINT_MOMENT_1}};

struct Saver {
    Engine *engine;
    Comm *world;
    Log *log;
    int n_kinds; /* 1: no moments */
    bool *present[N_KINDS];
    const char *parent;
    bool beside;  /* training goes on meanwhile */
    ParamSet set; /* what is written: the engine's, or a copy of what this rank owns */
    int64_t copy_bytes, checkpoint_bytes;
    Worker worker;

    /* the save under way */
    SavePhase phase;
    double began; /* clock */
    Arena arena;  /* its names and lists */
    TrainState state;
    const char *dir, *temporary;
    bool named;         /* on rank 0: the folder is complete and has its name */
    const char *untidy; /* on rank 0: what went wrong after that; NULL: nothing */
    HfWriter *writer[N_KINDS];
};

/* ---- memory ----------------------------------------------------------------------------------------------- */

/* A tied copy is written as the embedding, and what is frozen never changes. */
static bool is_copied(const Param *p)
{
    return p->trainable && !p->tied_copy;
}

static Status create_param(Saver *s, Param **out, const Param *from)
{
    Arena *arena = &s->engine->arena;
    TRY(arena_alloc(arena, out, 1, sizeof **out));
    **out = *from;
    if (!is_copied(from)) return OK;
    Param *p = *out;
    p->kept = p->own;
    Tensor *part[N_KINDS] = {&p->master, &p->moment[0], &p->moment[1]};
    for (int k = 0; k < s->n_kinds; k++) {
        if (tensor_is_null(*part[k])) continue;
        *part[k] = param_own(from, kinds[k].what);
        s->copy_bytes += (int64_t)tensor_bytes(*part[k]);
        TRY(arena_alloc(arena, &part[k]->data, (size_t)tensor_size(*part[k]),
                        dtype_bytes(part[k]->dtype)));
    }
    return OK;
}

static Status create_copy(Saver *s)
{
    const ParamSet *from = &s->engine->set;
    TRY(arena_alloc(&s->engine->arena, &s->set.at, (size_t)from->n, sizeof(Param *)));
    for (int i = 0; i < from->n; i++) TRY(create_param(s, &s->set.at[i], from->at[i]));
    s->beside = true;
    return OK;
}

static void fill_copy(Saver *s)
{
    for (int i = 0; i < s->set.n; i++) {
        const Param *from = s->engine->set.at[i];
        for (int k = 0; k < s->n_kinds && is_copied(from); k++) {
            if (tensor_is_null(param_tensor(from, kinds[k].what))) continue;
            Tensor own = param_own(from, kinds[k].what);
            if (tensor_size(own))
                memcpy(param_own(s->set.at[i], kinds[k].what).data, own.data, tensor_bytes(own));
        }
    }
}

/* ---- the parts -------------------------------------------------------------------------------------------- */

static const char *kind_dir(Saver *s, int kind)
{
    return kinds[kind].below[0] ? path_join(&s->arena, s->temporary, kinds[kind].below)
                                : s->temporary;
}

/* Names and writers of a save after this step; nothing on disk yet. */
static Status open_save(Saver *s, const TrainState *state)
{
    arena_reset(&s->arena);
    s->state = *state;
    s->named = false;
    s->untidy = NULL;
    s->dir = path_join(&s->arena, s->parent, step_name(&s->arena, state->step));
    s->temporary = folder_temporary(s->dir, &s->arena);
    memset(s->writer, 0, sizeof s->writer);
    s->checkpoint_bytes = 0;
    for (int k = 0; k < s->n_kinds; k++) {
        HfWrite how = {.dir = kind_dir(s, k),
                       .what = kinds[k].what,
                       .dtype = DTYPE_F32,
                       .aliases = kinds[k].what == PARAM_MASTER};
        TRY(hf_writer_create(&s->writer[k], s->engine->layout, &how, s->present[k],
                             s->world->rank == 0, &s->arena));
        s->checkpoint_bytes += hf_writer_bytes(s->writer[k]);
    }
    return OK;
}

/* By rank 0. */
static Status make_files(Saver *s)
{
    int64_t beside;
    TRY(dir_create(s->parent));
    TRY(hf_side_files_bytes(&beside, s->engine->side_files, &s->arena));
    TRY(dir_require_space(s->parent, s->checkpoint_bytes + beside + SPARE_BYTES));
    TRY(folder_begin(&s->temporary, s->dir, &s->arena));
    for (int k = 0; k < s->n_kinds; k++) {
        TRY(dir_create(kind_dir(s, k)));
        TRY(hf_writer_begin(s->writer[k]));
    }
    return OK;
}

static Status write_parts(void *arg)
{
    Saver *s = arg;
    for (int k = 0; k < s->n_kinds; k++) TRY(hf_writer_fill(s->writer[k], &s->set));
    return OK;
}

/* ---- the folder ------------------------------------------------------------------------------------------- */

static Status fill_folder(Saver *s)
{
    Engine *e = s->engine;
    const char *metrics = path_join(&s->arena, e->config->train.output, "metrics.jsonl");
    if (file_exists(metrics)) TRY(file_sync(metrics)); /* its steps outlast what they led to */
    for (int k = 0; k < s->n_kinds; k++) {
        TRY(hf_writer_finish(s->writer[k]));
        TRY(dir_sync(kind_dir(s, k)));
    }
    TRY(hf_copy_side_files(s->temporary, e->side_files, &s->arena));
    TRY(checkpoint_write_state(e, &s->state, s->temporary, &s->arena));
    return manifest_write(e, s->temporary, &s->arena);
}

static Status tidy(Saver *s)
{
    int64_t keep = s->engine->config->checkpoint.keep;
    Status named = checkpoint_set_latest(s->dir, &s->arena);
    TRY(folder_forget(s->dir, &s->arena));
    TRY(folder_prune(s->parent, keep, s->state.step, &s->arena));
    return named;
}

/* By a thread of rank 0. With its name the checkpoint is there, whatever comes after. */
static Status complete(void *arg)
{
    Saver *s = arg;
    TRY(fill_folder(s));
    TRY(folder_end(s->dir, &s->arena));
    s->named = true;
    if (tidy(s) != OK) s->untidy = text_copy(&s->arena, status_message());
    return OK;
}

/* ---- the save as a whole ---------------------------------------------------------------------------------- */

static Status end_save(Saver *s, Status status)
{
    bool first = s->world->rank == 0;
    s->phase = SAVE_NONE;
    if (s->named) { /* what side files came from may be gone */
        log_line(s->log, "saved %s (%.4g MB in %.2f s)", s->dir, (double)s->checkpoint_bytes / 1e6,
                 saver_seconds(s));
        if (s->untidy) log_warning(s->log, "%s is saved, but %s", s->dir, s->untidy);
        Status own = engine_set_side_files(s->engine, s->dir);
        if (status == OK) status = own;
    }
    if (status == OK) return OK;
    for (int k = 0; k < s->n_kinds; k++) hf_writer_abort(s->writer[k]);
    if (first) folder_drop(s->dir, &s->arena);
    return status;
}

Status saver_start(Saver *s, const TrainState *state)
{
    assert(s->phase == SAVE_NONE);
    s->began = clock_seconds();
    Status status = comm_agree(s->world, open_save(s, state));
    if (status == OK) status = comm_agree(s->world, s->world->rank == 0 ? make_files(s) : OK);
    if (status != OK) return end_save(s, status);
    if (s->beside) fill_copy(s);
    s->phase = SAVE_PARTS;
    worker_give(&s->worker, write_parts, s);
    return OK;
}

bool saver_part_done(Saver *s)
{
    return s->phase != SAVE_NONE && worker_idle(&s->worker);
}

static Status count_parts(Saver *s)
{
    for (int k = 0; k < s->n_kinds; k++) TRY(hf_writer_count(s->writer[k], s->world));
    return OK;
}

Status saver_advance(Saver *s)
{
    Status status = comm_agree_on_work(s->world, &s->worker);
    if (status != OK || s->phase == SAVE_FOLDER) return end_save(s, status);
    status = count_parts(s);
    if (status != OK) return end_save(s, status);
    s->phase = SAVE_FOLDER;
    if (s->world->rank == 0) worker_give(&s->worker, complete, s);
    return OK;
}

Status saver_settle(Saver *s)
{
    while (s->phase != SAVE_NONE) TRY(saver_advance(s));
    return OK;
}

/* ---- begin and end ---------------------------------------------------------------------------------------- */

static Status create_local(Saver *s)
{
    Engine *e = s->engine;
    const CheckpointSection *config = &e->config->checkpoint;
    s->set = e->set;
    s->parent = path_join(&e->arena, e->config->train.output, "checkpoints");
    /* Without an interval there is the last save alone, which is waited for. */
    if (config->async && config->interval > 0) TRY(create_copy(s));
    TRY(worker_start(&s->worker));
    /* For a checkpoint's size, and so that the lists have their memory. */
    return open_save(s, &(TrainState){0});
}

Status saver_create(Saver **out, Engine *e, Log *log)
{
    Saver *s = *out = calloc(1, sizeof *s);
    TRY(comm_agree(e->mesh->world, s ? OK : FAIL(ERR_MEMORY, "out of memory: saving")));
    s->engine = e;
    s->world = e->mesh->world;
    s->log = log;
    s->n_kinds = e->config->optimizer.type == OPTIMIZER_ADAMW ? N_KINDS : 1;
    arena_init(&s->arena, "save");
    for (int k = 1; k < s->n_kinds; k++)
        TRY(engine_present(&s->present[k], e, kinds[k].what, &e->arena));
    return comm_agree(s->world, create_local(s));
}

void saver_free(Saver **saver)
{
    Saver *s = *saver;
    if (!s) return;
    worker_stop(&s->worker);
    arena_free(&s->arena);
    free(s);
    *saver = NULL;
}

int64_t saver_copy_bytes(const Saver *s)
{
    return s->copy_bytes;
}

int64_t saver_checkpoint_bytes(const Saver *s)
{
    return s->checkpoint_bytes;
}

bool saver_is_beside(const Saver *s)
{
    return s->beside;
}

bool saver_is_busy(const Saver *s)
{
    return s->phase != SAVE_NONE;
}

double saver_seconds(const Saver *s)
{
    return clock_seconds() - s->began;
}

int64_t saver_step(const Saver *s)
{
    return s->state.step;
}
