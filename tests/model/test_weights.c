/* Weights that come in: the list of a folder's tensors, their values, random ones, and what is refused. */
#include "weights_test.h"

#include "base/rng.h"

#include <unistd.h>

/* ---- the list of a folder's tensors ------------------------------------------------------------------ */

static const HfTensor *find(const HfLayout *layout, const char *name)
{
    for (int i = 0; i < layout->n; i++)
        if (!strcmp(layout->at[i].name, name)) return &layout->at[i];
    return NULL;
}

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
                assert_ok(
                    hf_load_moments(part.layout, part.index, &part.set, PARAM_MOMENT_0, &b->arena));
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
