#include "model_test.h"

#include "base/rng.h"
#include "cases/fixtures.h"
#include "comm/world.h"

#include <math.h>
#include <unistd.h>

/* A model of a folder, or a part of one, and what its folder holds. */
typedef struct Loaded {
    ModelConfig *config;
    int ep_rank, ep_size; /* whose share of the experts; size 0: all */
    ParamSet whole, set;
    ShardIndex *index;
    HfSource source;
    HfLayout *layout;
} Loaded;

static void declare(Loaded *m, Arena *arena, LayerRange range)
{
    ModelPart part;
    paramset_init(&m->whole, arena, DTYPE_F32, DTYPE_F32);
    paramset_init(&m->set, arena, DTYPE_F32, DTYPE_F32);
    if (m->ep_size) m->set.ep_rank = m->ep_rank, m->set.ep_size = m->ep_size;
    model_declare_whole(&m->whole, m->config);
    model_part_declare(&part, &m->set, m->config, range, NULL, 0);
    model_link_tied(&m->set);
}

static Status load_range(Loaded *m, Arena *arena, const char *dir, LayerRange range, bool carry,
                         Log *log)
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

static Status load(Loaded *m, Arena *arena, const char *dir, bool carry)
{
    *m = (Loaded){0};
    return load_range(m, arena, dir, (LayerRange){0}, carry, NULL);
}

static const HfTensor *find(const HfLayout *layout, const char *name)
{
    for (int i = 0; i < layout->n; i++)
        if (!strcmp(layout->at[i].name, name)) return &layout->at[i];
    return NULL;
}

static const char *fixture(Bench *b, const char *name, Fixture what)
{
    const char *dir = bench_path(b, name);
    fixture_write_model(dir, &what);
    return dir;
}

static void assert_same_file(Bench *b, const char *dir, const char *other, const char *name)
{
    char *x, *y;
    size_t n, m;
    assert_ok(file_read(&b->arena, path_join(&b->arena, dir, name), &x, &n));
    assert_ok(file_read(&b->arena, path_join(&b->arena, other, name), &y, &m));
    if (n != m || memcmp(x, y, n)) fail_msg("%s differs in %s and %s", name, dir, other);
}

/* ---- the list of a folder's tensors ------------------------------------------------------------------ */

static void weights__layout_of_experts_one_by_one(void **state)
{
    Bench *b = *state;
    Loaded m;
    assert_ok(load(&m, &b->arena, fixture(b, "m", (Fixture){.kind = FIXTURE_MOE}), false));
    assert_true(m.layout->sharded);
    const HfTensor *gate = find(m.layout, "model.layers.2.mlp.experts.1.gate_proj.weight"),
                   *up = find(m.layout, "model.layers.2.mlp.experts.1.up_proj.weight"),
                   *down = find(m.layout, "model.layers.2.mlp.experts.3.down_proj.weight");
    /* [E, 2F, D] = [4, 64, 64], rows of an expert: gate, then up; [E, D, F] = [4, 64, 32] */
    assert_string_equal(gate->param, "model.layers.2.mlp.experts.gate_up_proj");
    assert_int_equal(gate->offset, 1 * 64 * 64);
    assert_int_equal(gate->count, 32 * 64);
    assert_int_equal(gate->n_dims, 2);
    assert_int_equal(gate->dim[0], 32);
    assert_int_equal(up->offset, 1 * 64 * 64 + 32 * 64);
    assert_string_equal(down->param, "model.layers.2.mlp.experts.down_proj");
    assert_int_equal(down->offset, 3 * 64 * 32);
    assert_null(find(m.layout, "model.layers.2.mlp.experts.gate_up_proj"));
    assert_string_equal(find(m.layout, "lm_head.weight")->param, "lm_head.weight");
    for (int i = 1; i < m.layout->n; i++)
        assert_true(m.layout->at[i].order >= m.layout->at[i - 1].order);
    shard_index_close(&m.index);
}

/* The values that the fixture writes do not depend on the layout: neither do those that are loaded. */
static void weights__fused_and_single_experts_load_the_same_values(void **state)
{
    Bench *b = *state;
    Loaded one, fused;
    assert_ok(load(&one, &b->arena, fixture(b, "one", (Fixture){.kind = FIXTURE_MOE}), false));
    assert_ok(load(&fused, &b->arena,
                   fixture(b, "fused", (Fixture){.kind = FIXTURE_MOE, .fused = true}), false));
    assert_non_null(find(fused.layout, "model.layers.0.mlp.experts.gate_up_proj"));
    assert_null(find(fused.layout, "model.layers.0.mlp.experts.0.gate_proj.weight"));
    assert_true(fused.layout->n < one.layout->n);
    for (int i = 0; i < one.set.n; i++)
        assert_memory_equal(one.set.at[i]->value.data, fused.set.at[i]->value.data,
                            tensor_bytes(one.set.at[i]->value));
    shard_index_close(&one.index);
    shard_index_close(&fused.index);
}

static void weights__parts_hold_slices_of_the_whole(void **state)
{
    Bench *b = *state;
    const char *dir = fixture(b, "m", (Fixture){.kind = FIXTURE_DENSE_FIRST, .tied = true});
    Loaded whole, part;
    assert_ok(load(&whole, &b->arena, dir, false));
    static const LayerRange ranges[] = {
        {0, 1, true, false}, {1, 2, false, false}, {3, 1, false, true}};
    int n = 0;
    for (int r = 0; r < 3; r++) {
        part = (Loaded){0};
        assert_ok(load_range(&part, &b->arena, dir, ranges[r], false, NULL));
        for (int i = 0; i < part.set.n; i++, n++) {
            const Param *p = part.set.at[i], *want = paramset_find(&whole.set, p->name);
            assert_memory_equal(p->value.data, want->value.data, tensor_bytes(want->value));
        }
        shard_index_close(&part.index);
    }
    assert_int_equal(n, whole.set.n);
    /* the head of a tied model has the embedding's values */
    assert_memory_equal(paramset_find(&whole.set, "lm_head.weight")->value.data,
                        paramset_find(&whole.set, "model.embed_tokens.weight")->value.data,
                        512 * 64 * 4);
    shard_index_close(&whole.index);
}

/* A rank of ep has consecutive experts of each layer and all else, whatever the folder's layout; moments too. */
static void weights__shares_hold_their_experts_of_the_whole(void **state)
{
    Bench *b = *state;
    for (int k = 0; k < 6; k++) {
        int ep_size = k % 2 ? 4 : 2, how = k / 2; /* a tensor per expert, fused, random values */
        Fixture what = {.kind = FIXTURE_MOE, .fused = how == 1};
        const char *dir = fixture(b, text_format(&b->arena, "m%d", k), what);
        Loaded whole;
        assert_ok(load(&whole, &b->arena, dir, false));
        if (how == 2) hf_init(whole.config, &whole.set, 7, &b->arena);
        for (int r = 0; r < ep_size; r++) {
            Loaded part = {.ep_rank = r, .ep_size = ep_size};
            assert_ok(load_range(&part, &b->arena, dir, (LayerRange){0}, false, NULL));
            if (how == 2) hf_init(part.config, &part.set, 7, &b->arena);
            assert_int_equal(part.set.n, whole.set.n);
            for (int i = 0; i < part.set.n; i++) {
                Param *p = part.set.at[i], *want = whole.set.at[i];
                assert_int_equal(p->is_expert, strstr(p->name, "mlp.experts.") != NULL);
                assert_int_equal(p->is_expert, want->is_expert);
                assert_int_equal(p->order, want->order);
                assert_int_equal(p->value.dim[0] * (p->is_expert ? ep_size : 1),
                                 want->value.dim[0]);
                size_t n = tensor_bytes(p->value), skip = p->is_expert ? (size_t)r * n : 0;
                assert_memory_equal(p->value.data, (char *)want->value.data + skip, n);
                memset(p->value.data, 0, n);
                p->moment[0] = p->value;
            }
            if (how < 2) {
                assert_ok(hf_load_moments(part.layout, part.index, &part.set, PARAM_MOMENT_0));
                const Param *p = paramset_find(&part.set, "model.layers.1.mlp.experts.down_proj"),
                            *want = paramset_find(&whole.set, p->name);
                size_t n = tensor_bytes(p->value);
                assert_memory_equal(p->moment[0].data, (char *)want->value.data + (size_t)r * n, n);
            }
            shard_index_close(&part.index);
        }
        shard_index_close(&whole.index);
    }
}

/* ---- random values ----------------------------------------------------------------------------------- */

static void weights__random_values_are_those_of_seed_name_and_index(void **state)
{
    Bench *b = *state;
    Loaded whole = {0};
    assert_ok(config_of(&whole.config, &b->arena, MOE_JSON,
                        "{\"tie_word_embeddings\": true, \"attention_bias\": true}", NULL));
    declare(&whole, &b->arena, (LayerRange){0, 4, true, true});
    assert_ok(paramset_layout(&whole.set, false));
    hf_init(whole.config, &whole.set, 42, &b->arena);
    const float *router = paramset_find(&whole.set, "model.layers.0.mlp.gate.weight")->value.data,
                *down =
                    paramset_find(&whole.set, "model.layers.3.mlp.experts.down_proj")->value.data,
                *norm =
                    paramset_find(&whole.set, "model.layers.2.input_layernorm.weight")->value.data,
                *bias =
                    paramset_find(&whole.set, "model.layers.1.self_attn.q_proj.bias")->value.data;
    uint64_t key = rng_key(42, "model.layers.0.mlp.gate.weight");
    for (uint64_t i = 0; i < 4 * 16; i++)
        assert_true(router[i] == (float)(0.3 * rng_normal(key, i)));
    /* an expert is keyed by its own name in the folder with a tensor per expert */
    key = rng_key(42, "model.layers.3.mlp.experts.2.down_proj.weight");
    for (uint64_t i = 0; i < 16 * 12; i++)
        assert_true(down[2 * 16 * 12 + i] == (float)(0.3 * rng_normal(key, i)));
    for (int i = 0; i < 16; i++) assert_true(norm[i] == 1);
    for (int i = 0; i < 32; i++) assert_true(bias[i] == 0);
    assert_memory_equal(paramset_find(&whole.set, "lm_head.weight")->value.data,
                        paramset_find(&whole.set, "model.embed_tokens.weight")->value.data,
                        50 * 16 * 4);
    static const LayerRange ranges[][3] = {
        {{0, 1, true, false}, {1, 3, false, true}},
        {{0, 3, true, false}, {3, 1, false, true}},
        {{0, 1, true, false}, {1, 1, false, false}, {2, 2, false, true}}};
    for (int k = 0; k < 3; k++)
        for (int r = 0; r < 3 && ranges[k][r].n; r++) {
            Loaded part = {.config = whole.config};
            declare(&part, &b->arena, ranges[k][r]);
            assert_ok(paramset_layout(&part.set, true));
            hf_init(part.config, &part.set, 42, &b->arena);
            for (int i = 0; i < part.set.n; i++) {
                const Param *p = part.set.at[i], *want = paramset_find(&whole.set, p->name);
                assert_memory_equal(p->value.data, want->value.data, tensor_bytes(p->value));
            }
        }
    hf_init(whole.config, &whole.set, 43, &b->arena);
    assert_true(router[0] !=
                (float)(0.3 * rng_normal(rng_key(42, "model.layers.0.mlp.gate.weight"), 0)));
}

/* ---- folders that are refused ------------------------------------------------------------------------ */

/* A folder of DENSE_JSON with one tensor changed. */
typedef enum {
    CHANGE_NONE,
    CHANGE_DROP,
    CHANGE_SHAPE,
    CHANGE_DTYPE,
    CHANGE_ADD,
    CHANGE_ALIAS,
    CHANGE_ALIAS_DTYPE
} Change;

static const char *write_folder(Bench *b, const char *name, const char *patch, const char *tensor,
                                Change change, DType dtype)
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

static void weights__refused_folders_name_tensor_and_file(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *patch, *tensor;
        Change change;
        DType dtype;
        Status code; /* OK: loads */
        const char *word;
    } rows[] = {
        {NULL, NULL, CHANGE_NONE, DTYPE_F32, OK, ""},
        {NULL, "model.norm.weight", CHANGE_DROP, DTYPE_F32, ERR_FORMAT, "missing"},
        {NULL, "lm_head.weight", CHANGE_DROP, DTYPE_F32, ERR_FORMAT, "missing"},
        {NULL, "model.layers.1.mlp.up_proj.weight", CHANGE_DROP, DTYPE_F32, ERR_FORMAT, "missing"},
        {NULL, "model.layers.1.self_attn.q_norm.weight", CHANGE_SHAPE, DTYPE_F32, ERR_FORMAT,
         "shape [3, 5], expected [128]"},
        {NULL, "model.layers.0.mlp.gate_proj.weight", CHANGE_SHAPE, DTYPE_F32, ERR_FORMAT,
         "shape [3, 5], expected [24, 16]"},
        {NULL, "model.layers.0.mlp.gate_proj.weight", CHANGE_DTYPE, DTYPE_F16, OK, ""},
        {NULL, "model.layers.0.mlp.gate_proj.weight", CHANGE_DTYPE, DTYPE_BF16, OK, ""},
        {NULL, "model.layers.0.mlp.gate_proj.weight", CHANGE_DTYPE, DTYPE_F64, ERR_UNSUPPORTED,
         "dtype not available"},
        {NULL, "model.layers.0.mlp.gate_proj.weight", CHANGE_DTYPE, DTYPE_I32, ERR_UNSUPPORTED,
         "dtype not available"},
        {NULL, "model.layers.2.input_layernorm.weight", CHANGE_ADD, DTYPE_F32, ERR_FORMAT,
         "model.extra_tensors: carry"},
        {NULL, "model.layers.0.mlp.gate.weight", CHANGE_ADD, DTYPE_F32, ERR_FORMAT,
         "unknown to model_type qwen3"},
        {NULL, "model.layers.00.input_layernorm.weight", CHANGE_ADD, DTYPE_F32, ERR_FORMAT,
         "unknown"},
        {"{\"tie_word_embeddings\": true}", NULL, CHANGE_NONE, DTYPE_F32, OK, ""},
        {"{\"tie_word_embeddings\": true}", "", CHANGE_ALIAS_DTYPE, DTYPE_F32, OK, ""},
        {"{\"tie_word_embeddings\": true}", "lm_head.weight", CHANGE_ALIAS, DTYPE_F32, ERR_FORMAT,
         "differs from model.embed_tokens.weight"},
        {"{\"tie_word_embeddings\": true}", "", CHANGE_ALIAS_DTYPE, DTYPE_BF16, ERR_FORMAT,
         "differs from model.embed_tokens.weight"},
        {"{\"num_hidden_layers\": 3}", "model.layers.2.mlp.down_proj.weight", CHANGE_DROP,
         DTYPE_F32, ERR_FORMAT, "missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *dir = write_folder(b, text_format(&b->arena, "m%d", (int)i), rows[i].patch,
                                       rows[i].tensor, rows[i].change, rows[i].dtype);
        Loaded m;
        Status status = load(&m, &b->arena, dir, false);
        shard_index_close(&m.index);
        if (rows[i].code == OK && status == OK) continue;
        if (status == OK) fail_msg("row %d loads", (int)i);
        assert_fails(status, rows[i].code, rows[i].word);
        if (rows[i].tensor) assert_fails(status, rows[i].code, rows[i].tensor);
        assert_fails(status, rows[i].code, dir);
    }
}

static void weights__unlisted_tensors_are_used_with_one_warning(void **state)
{
    Bench *b = *state;
    const char *dir = fixture(b, "m", (Fixture){.kind = FIXTURE_DENSE});
    const char *index = path_join(&b->arena, dir, "model.safetensors.index.json");
    JsonDoc doc;
    assert_ok(json_doc_read(&doc, index));
    json_t *map = json_object_get(doc.root, "weight_map");
    assert_int_equal(json_object_del(map, "model.layers.1.mlp.up_proj.weight"), 0);
    assert_int_equal(json_object_del(map, "model.layers.1.mlp.down_proj.weight"), 0);
    assert_ok(json_write_file(index, doc.root));
    json_doc_free(&doc);
    Loaded m = {0};
    Log log;
    const char *path = bench_path(b, "log.txt");
    assert_ok(log_open(&log, path, 0, false));
    int saved = dup(STDERR_FILENO);
    assert_non_null(freopen("/dev/null", "w", stderr));
    Status status = load_range(&m, &b->arena, dir, (LayerRange){0}, false, &log);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    log_close(&log);
    assert_ok(status);
    char *text;
    assert_ok(file_read(&b->arena, path, &text, NULL));
    assert_non_null(strstr(text, "2 tensors are in a shard but not in the index"));
    shard_index_close(&m.index);
}

/* ---- writing ----------------------------------------------------------------------------------------- */

typedef struct WriteJob {
    const char *from, *to;
    const int64_t *split; /* layers of each rank */
    HfWrite how;
    bool carry;
} WriteJob;

static Status write_body(Comm *world, void *arg)
{
    const WriteJob *job = arg;
    LayerRange range = {.n = job->split[world->rank],
                        .has_embedding = world->rank == 0,
                        .has_head = world->rank == world->size - 1};
    for (int r = 0; r < world->rank; r++) range.first += job->split[r];
    Arena arena;
    arena_init(&arena, "rank");
    Loaded m = {0};
    Status status = load_range(&m, &arena, job->from, range, job->carry, NULL);
    HfWrite how = job->how;
    how.dir = job->to;
    if (status == OK) status = hf_write(m.layout, &m.set, world, &how, NULL, &arena);
    shard_index_close(&m.index);
    arena_free(&arena);
    return status;
}

static const char *write_copy(Bench *b, const char *from, const char *name, int n_ranks,
                              const int64_t *split, HfWrite how, bool carry)
{
    WriteJob job = {
        .from = from, .to = bench_path(b, name), .split = split, .how = how, .carry = carry};
    assert_ok(dir_create(job.to));
    assert_ok(world_run_threads(n_ranks, write_body, &job));
    return job.to;
}

/* The written folder, whatever the number of ranks, is the source's: the same files with the same bytes. */
static void weights__written_by_any_number_of_ranks_the_folder_is_the_sources(void **state)
{
    Bench *b = *state;
    static const int64_t splits[][3] = {{4}, {2, 2}, {1, 2, 1}};
    static const Fixture fixtures[] = {
        {.kind = FIXTURE_MOE},
        {.kind = FIXTURE_MOE, .fused = true, .dtype = FIXTURE_BF16, .n_shards = 3},
        {.kind = FIXTURE_TIED, .dtype = FIXTURE_F16, .n_shards = 1},
        {.kind = FIXTURE_DENSE_FIRST},
        {.kind = FIXTURE_DENSE, .n_shards = 1},
    };
    for (size_t f = 0; f < sizeof fixtures / sizeof *fixtures; f++) {
        const char *from = fixture(b, text_format(&b->arena, "from%d", (int)f), fixtures[f]);
        const char *to[3];
        char **names, **source;
        int n, n_source, n_weights = 0;
        for (int k = 0; k < 3; k++)
            to[k] = write_copy(
                b, from, text_format(&b->arena, "to%d-%d", (int)f, k), k + 1, splits[k],
                (HfWrite){.dtype = DTYPE_COUNT, .keep_files = true, .aliases = true}, false);
        assert_ok(dir_list(&b->arena, to[0], &names, &n));
        for (int k = 1; k < 3; k++)
            for (int i = 0; i < n; i++) assert_same_file(b, to[0], to[k], names[i]);
        assert_ok(dir_list(&b->arena, from, &source, &n_source));
        for (int i = 0; i < n_source; i++) n_weights += strcmp(source[i], "config.json") != 0;
        assert_int_equal(n, n_weights);
        /* read again, it is the same model with the same list of tensors */
        Loaded old, new;
        assert_ok(load(&old, &b->arena, from, false));
        assert_ok(file_copy(path_join(&b->arena, to[0], "config.json"),
                            path_join(&b->arena, from, "config.json")));
        assert_ok(load(&new, &b->arena, to[0], false));
        assert_int_equal(old.layout->n, new.layout->n);
        for (int i = 0; i < old.layout->n; i++) {
            const HfTensor *x = &old.layout->at[i], *y = &new.layout->at[i];
            assert_string_equal(x->name, y->name);
            assert_int_equal(x->dtype, y->dtype);
            assert_string_equal(x->file, y->file);
        }
        for (int i = 0; i < old.set.n; i++)
            assert_memory_equal(old.set.at[i]->value.data, new.set.at[i]->value.data,
                                tensor_bytes(old.set.at[i]->value));
        assert_true(old.index->total_size == new.index->total_size);
        shard_index_close(&old.index);
        shard_index_close(&new.index);
    }
}

static void weights__forced_dtype_shards_and_one_file(void **state)
{
    Bench *b = *state;
    const char *from = fixture(b, "from", (Fixture){.kind = FIXTURE_MOE, .dtype = FIXTURE_BF16});
    const char *f32 =
        write_copy(b, from, "f32", 2, (int64_t[]){3, 1}, (HfWrite){.dtype = DTYPE_F32}, false);
    ShardIndex *index;
    assert_ok(shard_index_open(&index, f32, &b->arena, NULL));
    assert_false(index->has_index);
    for (int i = 0; i < index->n; i++) assert_int_equal(index->tensor[i].entry->dtype, DTYPE_F32);
    shard_index_close(&index);
    const char *small = write_copy(b, from, "small", 2, (int64_t[]){3, 1},
                                   (HfWrite){.dtype = DTYPE_F32, .max_shard_bytes = 200000}, false);
    assert_ok(shard_index_open(&index, small, &b->arena, NULL));
    assert_true(index->has_index && index->n_files > 3);
    Loaded a, c;
    assert_ok(file_copy(path_join(&b->arena, small, "config.json"),
                        path_join(&b->arena, from, "config.json")));
    assert_ok(load(&a, &b->arena, small, false));
    assert_ok(load(&c, &b->arena, from, false));
    for (int i = 0; i < a.set.n; i++)
        assert_memory_equal(a.set.at[i]->value.data, c.set.at[i]->value.data,
                            tensor_bytes(a.set.at[i]->value));
    shard_index_close(&a.index);
    shard_index_close(&c.index);
    shard_index_close(&index);
    const char *one = write_copy(
        b, from, "one", 2, (int64_t[]){3, 1},
        (HfWrite){.dtype = DTYPE_F32, .only_file = "x.safetensors", .max_shard_bytes = 1000},
        false);
    char **names;
    int n;
    assert_ok(dir_list(&b->arena, one, &names, &n));
    assert_int_equal(n, 1);
    assert_string_equal(names[0], "x.safetensors");
}

static void weights__carried_tensors_and_aliases_go_out_as_they_came(void **state)
{
    Bench *b = *state;
    const char *extra = write_folder(b, "extra", NULL, "model.layers.9.odd", CHANGE_ADD, DTYPE_I32);
    for (int k = 0; k < 2; k++) {
        const char *to = write_copy(
            b, extra, k ? "extra2" : "extra1", k + 1, k ? (int64_t[]){1, 1} : (int64_t[]){2},
            (HfWrite){.dtype = k ? DTYPE_COUNT : DTYPE_F32, .keep_files = true, .aliases = true},
            true);
        ShardIndex *index, *old;
        assert_ok(shard_index_open(&index, to, &b->arena, NULL));
        assert_ok(shard_index_open(&old, extra, &b->arena, NULL));
        const ShardTensor *x = shard_index_find(index, "model.layers.9.odd"),
                          *y = shard_index_find(old, "model.layers.9.odd");
        assert_int_equal(x->entry->dtype, DTYPE_I32); /* a forced dtype is for what we know */
        assert_memory_equal(safetensors_bytes(x->file, x->entry),
                            safetensors_bytes(y->file, y->entry), 60);
        shard_index_close(&index);
        shard_index_close(&old);
    }
    const char *tied = write_folder(b, "tied", "{\"tie_word_embeddings\": true}", "",
                                    CHANGE_ALIAS_DTYPE, DTYPE_F32);
    const char *to =
        write_copy(b, tied, "tied2", 2, (int64_t[]){1, 1},
                   (HfWrite){.dtype = DTYPE_COUNT, .keep_files = true, .aliases = true}, false);
    assert_same_file(b, tied, to, "model.safetensors");
    to = write_copy(b, tied, "tied3", 1, (int64_t[]){2}, (HfWrite){.dtype = DTYPE_F32}, false);
    ShardIndex *index;
    assert_ok(shard_index_open(&index, to, &b->arena, NULL));
    assert_null(shard_index_find(index, "lm_head.weight"));
    shard_index_close(&index);
}

/* ---- the source's list as JSON ----------------------------------------------------------------------- */

static void weights__source_list_survives_json(void **state)
{
    Bench *b = *state;
    Loaded m;
    assert_ok(load(&m, &b->arena,
                   fixture(b, "m", (Fixture){.kind = FIXTURE_MOE, .dtype = FIXTURE_BF16}), false));
    json_t *json = hf_layout_to_json(m.layout);
    HfSource back;
    assert_ok(hf_source_of_json(&back, json, "manifest", &b->arena));
    json_decref(json);
    assert_int_equal(back.n, m.source.n);
    assert_int_equal(back.sharded, m.source.sharded);
    for (int i = 0; i < back.n; i++) {
        assert_string_equal(back.name[i], m.source.name[i]);
        assert_string_equal(back.file[i], m.source.file[i]);
        assert_int_equal(back.dtype[i], m.source.dtype[i]);
    }
    HfLayout *again;
    assert_ok(hf_layout_create(&again, m.config, &m.whole, &back, DTYPE_F32, false, &b->arena));
    assert_int_equal(again->n, m.layout->n);
    shard_index_close(&m.index);
}

static void weights__broken_source_lists_are_refused(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *text, *word;
    } rows[] = {
        {"{}", "sharded"},
        {"{\"sharded\": 1, \"tensors\": {}}", "sharded"},
        {"{\"sharded\": true}", "tensors"},
        {"{\"sharded\": true, \"tensors\": []}", "tensors"},
        {"{\"sharded\": true, \"tensors\": {\"a\": 1}}", "tensor a"},
        {"{\"sharded\": true, \"tensors\": {\"a\": {}}}", "dtype"},
        {"{\"sharded\": true, \"tensors\": {\"a\": {\"dtype\": \"f32\", \"file\": \"../x\"}}}",
         "plain name"},
        {"{\"sharded\": true, \"tensors\": {\"a\": {\"dtype\": \"f32\", \"file\": \".x\"}}}",
         "plain name"},
        {"{\"sharded\": true, \"tensors\": {\"b\": {\"dtype\": \"f32\"}, \"a\": {\"dtype\": "
         "\"f32\"}}}",
         "sorted"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        JsonDoc doc;
        HfSource source;
        assert_ok(json_doc_parse(&doc, "test", rows[i].text, strlen(rows[i].text)));
        Status status = hf_source_of_json(&source, doc.root, "DIR/manifest.json", &b->arena);
        json_doc_free(&doc);
        assert_fails(status, ERR_FORMAT, rows[i].word);
        assert_fails(status, ERR_FORMAT, "DIR/manifest.json");
    }
}

/* ---- what lies beside the weights -------------------------------------------------------------------- */

static void put_file(Bench *b, const char *dir, const char *name, const char *text)
{
    assert_ok(file_write_atomic(path_join(&b->arena, dir, name), text, strlen(text)));
}

static void weights__side_files_are_copied_byte_for_byte(void **state)
{
    Bench *b = *state;
    const char *from = bench_path(b, "from"), *to = bench_path(b, "to");
    assert_ok(dir_create(from));
    assert_ok(dir_create(to));
    static const char *const kept[] = {"config.json",
                                       "generation_config.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "chat_template.jinja",
                                       "merges.txt",
                                       "README.md"};
    static const char *const left[] = {"model.safetensors",
                                       "model-00001-of-00002.safetensors",
                                       "model.safetensors.index.json",
                                       "pytorch_model.bin",
                                       "manifest.json",
                                       "state.json",
                                       ".hidden"};
    for (int i = 0; i < 7; i++) {
        put_file(b, from, kept[i], text_format(&b->arena, "{ \"x\" :  %d}\r\n", i));
        put_file(b, from, left[i], "weights");
    }
    assert_ok(dir_create(path_join(&b->arena, from, "folder")));
    assert_ok(hf_copy_side_files(to, from, &b->arena));
    char **names;
    int n;
    assert_ok(dir_list(&b->arena, to, &names, &n));
    assert_int_equal(n, 7);
    for (int i = 0; i < 7; i++) assert_same_file(b, from, to, kept[i]);
}

static void weights__config_changes_in_its_dtype_alone(void **state)
{
    Bench *b = *state;
    const char *from = bench_path(b, "from"), *to = bench_path(b, "to");
    assert_ok(dir_create(from));
    assert_ok(dir_create(to));
    static const struct {
        const char *before, *after; /* with DTYPE_BF16 */
    } rows[] = {
        {"{\"a\": 1,\n  \"torch_dtype\" :\t\"float32\", \"b\": [1]}\n",
         "{\"a\": 1,\n  \"torch_dtype\" :\t\"bfloat16\", \"b\": [1]}\n"},
        {"{\"dtype\": \"float16\"}", "{\"dtype\": \"bfloat16\"}"},
        {"{\"dtype\": \"float32\", \"torch_dtype\": \"torch.float32\"}",
         "{\"dtype\": \"bfloat16\", \"torch_dtype\": \"bfloat16\"}"},
        {"{\"x\": \"dtype\", \"dtype\": null}", "{\"x\": \"dtype\", \"dtype\": null}"},
        {"{\"a\": 1}", "{\"a\": 1}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_file(b, from, "config.json", rows[i].before);
        char *text;
        assert_ok(hf_write_config(to, from, DTYPE_COUNT, &b->arena));
        assert_same_file(b, from, to, "config.json");
        assert_ok(hf_write_config(to, from, DTYPE_BF16, &b->arena));
        assert_ok(file_read(&b->arena, path_join(&b->arena, to, "config.json"), &text, NULL));
        assert_string_equal(text, rows[i].after);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(weights__layout_of_experts_one_by_one),
        BENCH_TEST(weights__fused_and_single_experts_load_the_same_values),
        BENCH_TEST(weights__parts_hold_slices_of_the_whole),
        BENCH_TEST(weights__shares_hold_their_experts_of_the_whole),
        BENCH_TEST(weights__random_values_are_those_of_seed_name_and_index),
        BENCH_TEST(weights__refused_folders_name_tensor_and_file),
        BENCH_TEST(weights__unlisted_tensors_are_used_with_one_warning),
        BENCH_TEST(weights__written_by_any_number_of_ranks_the_folder_is_the_sources),
        BENCH_TEST(weights__forced_dtype_shards_and_one_file),
        BENCH_TEST(weights__carried_tensors_and_aliases_go_out_as_they_came),
        BENCH_TEST(weights__source_list_survives_json),
        BENCH_TEST(weights__broken_source_lists_are_refused),
        BENCH_TEST(weights__side_files_are_copied_byte_for_byte),
        BENCH_TEST(weights__config_changes_in_its_dtype_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
