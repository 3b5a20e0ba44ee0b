/* Weights that go out: files, the list that a manifest keeps, and what lies beside them. */
#include "weights_test.h"

#include "comm/world.h"

static void assert_same_file(Bench *b, const char *dir, const char *other, const char *name)
{
    char *x, *y;
    size_t n, m;
    assert_ok(file_read(&b->arena, path_join(&b->arena, dir, name), &x, &n));
    assert_ok(file_read(&b->arena, path_join(&b->arena, other, name), &y, &m));
    if (n != m || memcmp(x, y, n)) fail_msg("%s differs in %s and %s", name, dir, other);
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
        {"{\"sharded\": true, \"tensors\": {\"a\": {\"dtype\": \"f32\", \"file\": "
         "\".x.safetensors\"}}}",
         "plain name"},
        {"{\"sharded\": true, \"tensors\": {\"a\": {\"dtype\": \"f32\", \"file\": "
         "\"config.json\"}}}",
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
