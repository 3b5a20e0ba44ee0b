#pragma once
/** What the tests of reading and of writing weights share: models of folders, and folders with one tensor changed. */
#include "model_test.h"

#include "cases/fixtures.h"

/** A model of a folder, or a part of one, and what its folder holds. */
typedef struct Loaded {
    ModelConfig *config;
    int ep_rank, ep_size; /* whose share of the experts; size 0: all */
    ParamSet whole, set;
    ShardIndex *index;
    HfSource source;
    HfLayout *layout;
} Loaded;

static inline void declare(Loaded *m, Arena *arena, LayerRange range)
{
    ModelPart part;
    paramset_init(&m->whole, arena, DTYPE_F32, DTYPE_F32);
    paramset_init(&m->set, arena, DTYPE_F32, DTYPE_F32);
    if (m->ep_size) m->set.ep_rank = m->ep_rank, m->set.ep_size = m->ep_size;
    model_declare_whole(&m->whole, m->config);
    model_part_declare(&part, &m->set, m->config, range, NULL, 0);
    model_link_tied(&m->set);
}

static inline Status load_range(Loaded *m, Arena *arena, const char *dir, LayerRange range,
                                bool carry, Log *log)
{
    TRY(model_config_read(&m->config, dir, arena, NULL));
    if (range.n == 0) range = (LayerRange){0, m->config->n_layers, true, true};
    declare(m, arena, range);
    TRY(paramset_layout(&m->set, true));
    TRY(shard_index_open(&m->index, dir, arena, NULL));
    TRY(hf_source_read(&m->source, dir, m->index, arena));
    TRY(hf_layout_create(&m->layout, m->config, &m->whole, &m->source, DTYPE_F32, carry, arena));
    Arena scratch;
    arena_init(&scratch, "scratch");
    Status status = hf_load(m->layout, m->index, &m->set, &scratch, log);
    arena_free(&scratch);
    return status;
}

static inline Status load(Loaded *m, Arena *arena, const char *dir, bool carry)
{
    *m = (Loaded){0};
    return load_range(m, arena, dir, (LayerRange){0}, carry, NULL);
}

static inline const char *fixture(Bench *b, const char *name, Fixture what)
{
    const char *dir = bench_path(b, name);
    fixture_write_model(dir, &what);
    return dir;
}

/** A folder of DENSE_JSON with one tensor changed. */
typedef enum {
    CHANGE_NONE,
    CHANGE_DROP,
    CHANGE_SHAPE,
    CHANGE_DTYPE,
    CHANGE_ADD,
    CHANGE_ALIAS,
    CHANGE_ALIAS_DTYPE
} Change;

static inline const char *write_folder(Bench *b, const char *name, const char *patch,
                                       const char *tensor, Change change, DType dtype)
{
    const char *dir = bench_path(b, name);
    assert_ok(dir_create(dir));
    char *text = json_patched(&b->arena, DENSE_JSON, patch);
    assert_ok(file_write_atomic(path_join(&b->arena, dir, "config.json"), text, strlen(text)));
    Loaded m = {0};
    assert_ok(model_config_read(&m.config, dir, &b->arena, NULL));
    declare(&m, &b->arena, (LayerRange){0, m.config->n_layers, true, true});
    assert_ok(hf_layout_create(&m.layout, m.config, &m.whole, NULL, DTYPE_F32, false, &b->arena));
    TensorDecl *decl = ARENA_NEW(&b->arena, TensorDecl, m.layout->n + 1);
    static const int64_t odd[2] = {3, 5};
    static const int64_t embedding[2] = {50, 16};
    int n = 0;
    for (int i = 0; i < m.layout->n; i++) {
        const HfTensor *t = &m.layout->at[i];
        bool this = tensor && !strcmp(t->name, tensor);
        if (this && change == CHANGE_DROP) continue;
        decl[n] = (TensorDecl){t->name, DTYPE_F32, t->n_dims, t->dim};
        if (this && change == CHANGE_SHAPE) decl[n] = (TensorDecl){t->name, DTYPE_F32, 2, odd};
        if (this && change == CHANGE_DTYPE) decl[n].dtype = dtype;
        n++;
    }
    if (change == CHANGE_ADD) decl[n++] = (TensorDecl){tensor, dtype, 2, odd};
    if (change == CHANGE_ALIAS || change == CHANGE_ALIAS_DTYPE)
        decl[n++] = (TensorDecl){"lm_head.weight", dtype, 2, embedding};
    SafetensorsWriter *writer;
    assert_ok(safetensors_writer_create(&writer, path_join(&b->arena, dir, "model.safetensors"),
                                        decl, n, &b->arena));
    assert_ok(safetensors_writer_begin(writer));
    for (int i = 0; i < n; i++) {
        int64_t count = 1;
        for (int d = 0; d < decl[i].n_dims; d++) count *= decl[i].dim[d];
        unsigned char *bytes = arena_take_zeroed(&b->arena, (size_t)count * 8 + 8);
        /* the same values whatever the name, so that the head equals the embedding, but for CHANGE_ALIAS's last byte */
        for (int64_t k = 0; k < count * 8; k++) bytes[k] = (unsigned char)(k * 7 % 60);
        if (change == CHANGE_ALIAS && tensor && !strcmp(decl[i].name, "lm_head.weight"))
            bytes[count * 4 - 1] ^= 1;
        assert_ok(safetensors_write_raw(writer, decl[i].name, 0, count, bytes));
    }
    assert_ok(safetensors_writer_finish(&writer));
    return dir;
}
