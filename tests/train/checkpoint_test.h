#pragma once
/** What the tests of checkpoints and exports share: ranks that save, load and export. */
#include "train_test.h"

#include "io/hash.h"
#include "train/export.h"
#include "train/optimizer.h"
#include "train/saver.h"

/* Ranks that make an engine, fill its moments, and do something with checkpoints. */
typedef struct Job {
    const TrainConfig *config;
    const ModelConfig *model;
    const char *weights; /* NULL: random values */
    TrainState state;
    int64_t save_steps[6];  /* one after the other, 0 ends */
    const char *moments_of; /* load moments from there and compare */
    const char *export_to;
    DType dtype;
    int64_t max_shard_bytes;
} Job;

static inline float moment_value(const Param *p, int which, int64_t i)
{
    return (float)((double)(p->order * 1000 + i) * 1e-3 + 0.5 * which);
}

/* The moments are functions of the parameter's place in the model: known whatever the layout. */
static inline Status check_moments(const Engine *e)
{
    for (int i = 0; i < e->set.n; i++) {
        const Param *p = e->set.at[i];
        Param as = *p;
        if (p->tied_copy) as.order = 0; /* the embedding's */
        for (int k = 0; k < 2 && p->trainable; k++)
            for (int64_t j = 0; j < tensor_size(p->moment[k]); j++)
                if (((float *)p->moment[k].data)[j] != moment_value(&as, k, j))
                    return FAIL(ERR_FAILED, "moment %d of %s differs at %lld", k, p->name,
                                (long long)j);
    }
    return OK;
}

/* As the next step would change them. */
static inline void spoil(Engine *e)
{
    for (int i = 0; i < e->set.n; i++) {
        const Param *p = e->set.at[i];
        Tensor part[] = {p->master, p->moment[0], p->moment[1]};
        for (int k = 0; k < 3 && p->trainable; k++)
            if (part[k].data) memset(part[k].data, 0x41, tensor_bytes(part[k]));
    }
}

static inline Status body(Comm *world, void *arg)
{
    const Job *job = arg;
    EngineSetup setup = {.config = job->config,
                         .model = job->model,
                         .n_train = 2,
                         .max_positions = 8,
                         .row_tokens = 8,
                         .weights = job->weights};
    Engine *e;
    TRY(engine_create(&e, &setup, world, NULL));
    if (e->source) return FAIL(ERR_FAILED, "files that are read stay mapped, and their disk used");
    Status status = optimizer_create_moments(&e->set, job->config->optimizer.type, &e->arena);
    if (status == OK && job->moments_of) {
        status = checkpoint_load_moments(e, job->moments_of);
        if (status == OK) status = check_moments(e);
    } else if (status == OK && job->config->optimizer.type == OPTIMIZER_ADAMW) {
        for (int i = 0; i < e->set.n; i++) {
            Param *p = e->set.at[i], as = *p;
            if (p->tied_copy) as.order = 0;
            for (int k = 0; k < 2 && p->trainable; k++)
                for (int64_t j = 0; j < tensor_size(p->moment[k]); j++)
                    ((float *)p->moment[k].data)[j] = moment_value(&as, k, j);
        }
    }
    status = comm_agree(world, status);
    Saver *saver = NULL;
    if (status == OK && job->save_steps[0]) status = saver_create(&saver, e, NULL);
    for (int i = 0; i < 6 && job->save_steps[i] && status == OK; i++) {
        TrainState state = job->state;
        state.step = job->save_steps[i];
        status = saver_start(saver, &state);
        if (saver && saver_is_beside(saver)) spoil(e); /* the copy is what counts */
        if (status == OK) status = saver_settle(saver);
    }
    saver_free(&saver);
    if (status == OK && job->export_to)
        status = export_folder(e, job->export_to, job->dtype, job->max_shard_bytes);
    engine_free(&e);
    return status;
}

static const TrainState example = {.step = 7,
                                   .position = 56,
                                   .epoch = 1.75,
                                   .tokens = 1234,
                                   .trained_tokens = 1000,
                                   .updates = 6,
                                   .skipped = 1,
                                   .n_rows = 32,
                                   .rows_hash = 0x8123456789abcdef};

/* Save after step 7 in pp ranks, to BENCH/NAME; the checkpoint's folder. */
static inline const char *save(Bench *b, const char *name, const char *patch, int pp,
                               const char *key)
{
    const char *output = bench_path(b, name);
    Job job = {.model = model_with(b, patch), .state = example, .save_steps = {7}};
    job.config =
        CONFIG(b, text_format(&b->arena, "parallel.pp_size=%d", pp),
               text_format(&b->arena, "train.output=%s", output), key ? key : "train.seed=42");
    assert_ok(world_run_threads(pp, body, &job));
    return path_join(&b->arena, output, "checkpoints/step-000007");
}

static inline void same_files(Bench *b, const char *dir, const char *other, int *n_files)
{
    char **names;
    int n;
    assert_ok(dir_list(&b->arena, dir, &names, &n));
    for (int i = 0; i < n; i++) {
        const char *x = path_join(&b->arena, dir, names[i]),
                   *y = path_join(&b->arena, other, names[i]);
        if (dir_exists(x)) {
            same_files(b, x, y, n_files);
            continue;
        }
        /* these name the run's own output and layout */
        if (!strcmp(names[i], "state.json") || !strcmp(names[i], "manifest.json")) continue;
        char a[HASH_HEX_BYTES], c[HASH_HEX_BYTES];
        assert_ok(hash_file(a, x));
        assert_ok(hash_file(c, y));
        if (strcmp(a, c)) fail_msg("%s differs", names[i]);
        ++*n_files;
    }
}
