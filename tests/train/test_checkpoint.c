#include "train_test.h"

#include "io/hash.h"
#include "train/export.h"
#include "train/optimizer.h"
#include "train/saver.h"

#include <unistd.h>

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

static float moment_value(const Param *p, int which, int64_t i)
{
    return (float)((double)(p->order * 1000 + i) * 1e-3 + 0.5 * which);
}

/* The moments are functions of the parameter's place in the model: known whatever the layout. */
static Status check_moments(const Engine *e)
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
static void spoil(Engine *e)
{
    for (int i = 0; i < e->set.n; i++) {
        const Param *p = e->set.at[i];
        Tensor part[] = {p->master, p->moment[0], p->moment[1]};
        for (int k = 0; k < 3 && p->trainable; k++)
            if (part[k].data) memset(part[k].data, 0x41, tensor_bytes(part[k]));
    }
}

static Status body(Comm *world, void *arg)
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
static const char *save(Bench *b, const char *name, const char *patch, int pp, const char *key)
{
    const char *output = bench_path(b, name);
    Job job = {.model = model_with(b, patch), .state = example, .save_steps = {7}};
    job.config =
        CONFIG(b, text_format(&b->arena, "parallel.pp_size=%d", pp),
               text_format(&b->arena, "train.output=%s", output), key ? key : "train.seed=42");
    assert_ok(world_run_threads(pp, body, &job));
    return path_join(&b->arena, output, "checkpoints/step-000007");
}

static void same_files(Bench *b, const char *dir, const char *other, int *n_files)
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

static void checkpoint__says_what_was_saved(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL);
    CheckpointInfo info;
    assert_true(checkpoint_is(dir));
    assert_false(checkpoint_is(b->dir));
    assert_ok(checkpoint_read(&info, dir, &b->arena));
    assert_memory_equal(&info.state, &example, sizeof example);
    assert_non_null(info.kernel_path);
    TrainConfig config;
    assert_ok(config_parse(&config, "checkpoint", info.config, strlen(info.config), &b->arena));
    assert_string_equal(config.train.output, bench_path(b, "a"));
    const char *latest;
    assert_ok(checkpoint_newest(&latest, bench_path(b, "a"), &b->arena));
    assert_string_equal(latest, dir);
    /* nothing temporary stays */
    char **names;
    int n;
    assert_ok(
        dir_list(&b->arena, path_join(&b->arena, bench_path(b, "a"), "checkpoints"), &names, &n));
    assert_int_equal(n, 2);
}

static void checkpoint__does_not_depend_on_the_layout(void **state)
{
    Bench *b = *state;
    static const char *const patches[] = {NULL, "{\"tie_word_embeddings\": true}"};
    for (int k = 0; k < 2; k++) {
        const char *one = save(b, text_format(&b->arena, "one%d", k), patches[k], 1, NULL);
        for (int pp = 2; pp <= 3; pp++) {
            const char *more =
                save(b, text_format(&b->arena, "more%d-%d", k, pp), patches[k], pp, NULL);
            int n = 0;
            same_files(b, one, more, &n);
            assert_int_equal(n, 4); /* config.json, weights, two moments */
        }
        /* and any layout reads it */
        for (int pp = 1; pp <= 4; pp++) {
            Job job = {.weights = one, .moments_of = one};
            ModelConfig *model;
            assert_ok(model_config_read(&model, one, &b->arena, NULL));
            job.model = model;
            job.config = CONFIG(b, text_format(&b->arena, "parallel.pp_size=%d", pp));
            assert_ok(world_run_threads(pp, body, &job));
        }
    }
}

static void checkpoint__frozen_parameters_have_no_moments_and_sgd_has_none(void **state)
{
    Bench *b = *state;
    const char *dir =
        save(b, "frozen", NULL, 2,
             "optimizer.groups=[{match: model.embed_tokens.weight, trainable: false}]");
    ShardIndex *index;
    assert_ok(shard_index_open(&index, path_join(&b->arena, dir, "exp_avg"), &b->arena, NULL));
    assert_null(shard_index_find(index, "model.embed_tokens.weight"));
    assert_non_null(shard_index_find(index, "lm_head.weight"));
    shard_index_close(&index);
    Job job = {.weights = dir, .moments_of = dir, .model = model_with(b, NULL)};
    job.config = CONFIG(b, "parallel.pp_size=1",
                        "optimizer.groups=[{match: model.embed_tokens.weight, trainable: false}]");
    assert_ok(world_run_threads(1, body, &job));
    job.config = CONFIG(b, "parallel.pp_size=1"); /* now it is trained: its moments are missed */
    assert_fails(world_run_threads(1, body, &job), ERR_FORMAT, "model.embed_tokens.weight");
    dir = save(b, "sgd", NULL, 1, "optimizer.type=sgd");
    assert_false(dir_exists(path_join(&b->arena, dir, "exp_avg")));
    CheckpointInfo info;
    assert_ok(checkpoint_read(&info, dir, &b->arena));
}

/* The first text after a tensor's name in a file's header, changed in place. */
static void change_entry(Bench *b, const char *path, const char *tensor, const char *from,
                         const char *to)
{
    char *bytes;
    size_t n;
    assert_ok(file_read(&b->arena, path, &bytes, &n));
    assert_int_equal(strlen(from), strlen(to));
    char *at = strstr(bytes + 8, tensor);
    assert_non_null(at);
    at = strstr(at, from);
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    assert_ok(file_write_atomic(path, bytes, n));
}

static void checkpoint__moments_of_another_kind_are_refused(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *from, *to, *word;
    } rows[] = {
        {"\"F32\"", "\"I32\"", "dtype I32, expected F32"},
        {"[50, 16]", "[16, 50]", "shape [16, 50], expected [50, 16]"},
        {"embed", "ember", "missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *dir = save(b, "a", NULL, 1, NULL);
        change_entry(b, path_join(&b->arena, dir, "exp_avg_sq/model.safetensors"),
                     "model.embed_tokens.weight", rows[i].from, rows[i].to);
        Job job = {.model = model_with(b, NULL), .weights = dir, .moments_of = dir};
        job.config = CONFIG(b, "parallel.pp_size=1");
        Status status = world_run_threads(1, body, &job);
        assert_fails(status, ERR_FORMAT, rows[i].word);
        assert_fails(status, ERR_FORMAT, "model.embed_tokens.weight");
    }
}

static void checkpoint__keeps_the_newest(void **state)
{
    Bench *b = *state;
    const char *output = bench_path(b, "run"),
               *parent = path_join(&b->arena, output, "checkpoints");
    /* seven digits sort before six by bytes */
    Job job = {.model = model_with(b, NULL),
               .state = example,
               .save_steps = {2, 999998, 999999, 1000000, 1000001}};
    job.config = CONFIG(b, "checkpoint.keep=3", "optimizer.type=sgd");
    assert_ok(world_run_threads(1, body, &job));
    char **names;
    int n;
    assert_ok(dir_list(&b->arena, parent, &names, &n));
    assert_int_equal(n, 4);
    assert_string_equal(names[0], "latest");
    assert_string_equal(names[1], "step-1000000");
    assert_string_equal(names[2], "step-1000001");
    assert_string_equal(names[3], "step-999999");
    const char *latest;
    assert_ok(checkpoint_newest(&latest, output, &b->arena));
    assert_string_equal(latest, path_join(&b->arena, parent, "step-1000001"));
    /* the same step again replaces it */
    job.save_steps[0] = 1000001;
    job.save_steps[1] = 0;
    assert_ok(world_run_threads(1, body, &job));
    CheckpointInfo info;
    assert_ok(checkpoint_read(&info, latest, &b->arena));
}

/* What `latest` says is for people: folders are found by their names. */
static void checkpoint__the_newest_is_found_whatever_latest_says(void **state)
{
    Bench *b = *state;
    const char *newest = "";
    assert_ok(checkpoint_newest(&newest, b->dir, &b->arena));
    assert_null(newest);
    static const char *const names[] = {"step-000002",       "step-999999",   "step-1000000",
                                        ".step-2000000.tmp", "step-3000000x", "step-"};
    for (int i = 0; i < 6; i++)
        assert_ok(dir_create(bench_path(b, text_format(&b->arena, "checkpoints/%s", names[i]))));
    static const char *const texts[] = {"", "step-000002\n", "../x", "step-1/../.."};
    for (int i = 0; i < 4; i++) {
        assert_ok(
            file_write_atomic(bench_path(b, "checkpoints/latest"), texts[i], strlen(texts[i])));
        assert_ok(checkpoint_newest(&newest, b->dir, &b->arena));
        assert_string_equal(newest, bench_path(b, "checkpoints/step-1000000"));
    }
}

/* The bytes on disk are those of a save that training waits for, although the weights have changed meanwhile. */
static void saver__beside_training_writes_the_same_bytes(void **state)
{
    Bench *b = *state;
    for (int pp = 1; pp <= 3; pp++) {
        const char *waited = save(b, "waited", NULL, pp, "checkpoint.async=false");
        const char *beside = save(b, "beside", NULL, pp, "checkpoint.interval=1");
        int n = 0;
        same_files(b, waited, beside, &n);
        assert_int_equal(n, 4);
    }
}

/* A folder that cannot have its name ends a save on all ranks, with one reason; what fails once it has its name does not. */
static void saver__a_failed_save_leaves_the_others(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "run", NULL, 2, "checkpoint.interval=1"),
               *parent = bench_path(b, "run/checkpoints");
    assert_ok(file_write_atomic(path_join(&b->arena, parent, ".step-000008.tmp"), "x", 1));
    Job job = {.model = model_with(b, NULL), .state = example, .save_steps = {8}};
    job.config = CONFIG(b, "parallel.pp_size=2", "checkpoint.interval=1",
                        text_format(&b->arena, "train.output=%s", bench_path(b, "run")));
    assert_ok(world_run_threads(2, body, &job)); /* a file in the way is a leftover */
    assert_ok(dir_create(path_join(&b->arena, parent, "latest.d")));
    assert_int_equal(unlink(path_join(&b->arena, parent, "latest")), 0);
    assert_ok(dir_create(path_join(&b->arena, parent, "latest/x")));
    assert_ok(file_write_atomic(path_join(&b->arena, parent, "step-000009"), "x", 1));
    job.save_steps[0] = 9;
    assert_fails(world_run_threads(2, body, &job), ERR_IO, "step-000009");
    CheckpointInfo info;
    assert_ok(checkpoint_read(&info, dir, &b->arena));
    assert_false(dir_exists(path_join(&b->arena, parent, ".step-000009.tmp")));
    assert_int_equal(unlink(path_join(&b->arena, parent, "step-000009")), 0);
    assert_ok(
        world_run_threads(2, body, &job)); /* `latest` is in the way; what is old still goes */
    assert_ok(checkpoint_read(&info, path_join(&b->arena, parent, "step-000009"), &b->arena));
    assert_false(dir_exists(dir));
}

/* ---- damage ---------------------------------------------------------------------------------------- */

static void expect_named(Bench *b, const char *dir, const char *file)
{
    CheckpointInfo info;
    Status status = checkpoint_read(&info, dir, &b->arena);
    if (status == OK || status_exit_code(status) != 2 || !strstr(status_message(), file))
        fail_msg("%s damaged: status %d, \"%s\"", file, (int)status,
                 status == OK ? "" : status_message());
}

static void checkpoint__damaged_files_are_named(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL);
    static const char *const files[] = {"model.safetensors", "exp_avg/model.safetensors",
                                        "exp_avg_sq/model.safetensors", "config.json",
                                        "state.json"};
    CheckpointInfo info;
    for (int i = 0; i < 5; i++) {
        const char *path = path_join(&b->arena, dir, files[i]);
        char *bytes;
        size_t n;
        assert_ok(file_read(&b->arena, path, &bytes, &n));
        for (size_t at = 0; at < n; at += n / 3 + 1) {
            bytes[at] ^= 0x10;
            assert_ok(file_write_atomic(path, bytes, n));
            expect_named(b, dir, files[i]);
            bytes[at] ^= 0x10;
        }
        assert_ok(file_write_atomic(path, bytes, n - 1));
        expect_named(b, dir, files[i]);
        assert_int_equal(unlink(path), 0);
        expect_named(b, dir, files[i]);
        assert_ok(file_write_atomic(path, bytes, n));
        assert_ok(checkpoint_read(&info, dir, &b->arena));
    }
}

/* Change manifest.json by a patch of its top keys. */
static void patch_manifest(Bench *b, const char *dir, const char *original, const char *patch)
{
    char *text = json_patched(&b->arena, original, patch);
    assert_ok(file_write_atomic(path_join(&b->arena, dir, "manifest.json"), text, strlen(text)));
}

/* What is not listed would be read without a checksum, and what a link leads to may be anybody's. */
static void checkpoint__other_files_and_links_are_refused(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL), *file = path_join(&b->arena, dir, "config.json"),
               *folder = path_join(&b->arena, dir, "exp_avg"), *away = bench_path(b, "away");
    const char *extra[] = {"model-00001-of-00002.safetensors", "exp_avg/more.safetensors"};
    CheckpointInfo info;
    for (int i = 0; i < 2; i++) {
        const char *path = path_join(&b->arena, dir, extra[i]);
        assert_ok(file_write_atomic(path, "x", 1));
        expect_named(b, dir, text_format(&b->arena, "%s: not in", extra[i]));
        assert_int_equal(unlink(path), 0);
    }
    assert_ok(file_rename(away, file));
    assert_int_equal(symlink(away, file), 0);
    expect_named(b, dir, "config.json: expected a file (found a link)");
    assert_ok(file_rename(file, away));
    assert_ok(file_rename(away, folder));
    assert_int_equal(symlink(away, folder), 0);
    expect_named(b, dir, "its folder is a link");
    assert_ok(file_rename(path_join(&b->arena, dir, "x"), folder));
    expect_named(b, dir, "exp_avg/model.safetensors");
    assert_int_equal(unlink(path_join(&b->arena, dir, "x")), 0);
    assert_ok(file_rename(folder, away));
    assert_ok(checkpoint_read(&info, dir, &b->arena));
}

static void checkpoint__broken_manifests_are_refused(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL);
    char *original = text_of(b, path_join(&b->arena, dir, "manifest.json"));
    static const struct {
        const char *patch, *word;
    } rows[] = {
        {"{\"format\": 2}", "format"},
        {"{\"format\": \"1\"}", "format"},
        {"{\"format\": \"-\"}", "format"},
        {"{\"files\": \"-\"}", "files"},
        {"{\"files\": []}", "files"},
        {"{\"files\": {\"config.json\": 1}}", "manifest.json"},
        {"{\"files\": {\"config.json\": {}}}", "bytes"},
        {"{\"files\": {\"config.json\": {\"bytes\": 1}}}", "xxh3_128"},
        {"{\"files\": {\"/etc/passwd\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}",
         "outside the folder"},
        {"{\"files\": {\"exp_avg/../../x\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}",
         "outside the folder"},
        {"{\"files\": {}}", "config.json: not in"},
        {"{\"files\": {\"gone.json\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}", "gone.json"},
        {"{\"files\": {\"../../latest\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}",
         "outside the folder"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        patch_manifest(b, dir, original, rows[i].patch);
        expect_named(b, dir, rows[i].word);
    }
    assert_ok(file_write_atomic(path_join(&b->arena, dir, "manifest.json"), "[]", 2));
    expect_named(b, dir, "manifest.json");
    assert_int_equal(unlink(path_join(&b->arena, dir, "manifest.json")), 0);
    expect_named(b, dir, "manifest.json: missing, so the checkpoint is incomplete");
    assert_false(checkpoint_is(dir));
}

/* manifest.json as it would be with another state.json. */
static void relist_state(Bench *b, const char *dir, const char *original, size_t bytes,
                         const char *hash)
{
    json_t *root = json_loads(original, 0, NULL), *files = json_object_get(root, "files");
    json_object_set_new(files, "state.json",
                        json_pack("{sI ss}", "bytes", (json_int_t)bytes, "xxh3_128", hash));
    assert_ok(json_write_file(path_join(&b->arena, dir, "manifest.json"), root));
    json_decref(root);
}

/* A state.json that is wrong although its checksum is right. */
static void checkpoint__broken_states_are_refused(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL), *path = path_join(&b->arena, dir, "state.json");
    char *manifest = text_of(b, path_join(&b->arena, dir, "manifest.json")),
         *original = text_of(b, path);
    static const struct {
        const char *patch, *word;
    } rows[] = {
        {"{\"format\": 2}", "format"},       {"{\"format\": \"-\"}", "format"},
        {"{\"step\": -1}", "step"},          {"{\"step\": \"-\"}", "step"},
        {"{\"step\": 6}", "step"}, /* of a folder that is called after step 7 */
        {"{\"position\": 1.5}", "position"}, {"{\"position\": 9223372036854775807}", "position"},
        {"{\"tokens\": null}", "tokens"},    {"{\"trained_tokens\": true}", "trained_tokens"},
        {"{\"updates\": -7}", "updates"},    {"{\"skipped\": []}", "skipped"},
        {"{\"rows\": -1}", "rows"},          {"{\"rows_hash\": \"12\"}", "rows or rows_hash"},
        {"{\"config\": 1}", "config"},       {"{\"kernel_path\": \"-\"}", "kernel_path"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = json_patched(&b->arena, original, rows[i].patch), hex[HASH_HEX_BYTES];
        assert_ok(file_write_atomic(path, text, strlen(text)));
        assert_ok(hash_file(hex, path));
        relist_state(b, dir, manifest, strlen(text), hex);
        expect_named(b, dir, text_format(&b->arena, "state.json: key %s", rows[i].word));
    }
    /* what earlier versions did not write may be missing */
    JsonDoc doc;
    CheckpointInfo info;
    assert_ok(json_doc_parse(&doc, "old", original, strlen(original)));
    assert_int_equal(json_object_del(doc.root, "rows"), 0);
    assert_int_equal(json_object_del(doc.root, "rows_hash"), 0);
    assert_int_equal(json_object_del(doc.root, "versions"), 0);
    assert_ok(checkpoint_state_of_json(&info, doc.root, "old", &b->arena));
    assert_int_equal(info.state.step, 7);
    assert_true(info.state.rows_hash == 0);
    json_doc_free(&doc);
}

/* The newest is known by its name. */
static void checkpoint__a_folder_is_called_after_its_step(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL), *copy = bench_path(b, "copy"),
               *renamed = bench_path(b, "a/checkpoints/step-000900");
    assert_ok(file_rename(renamed, dir));
    expect_named(b, renamed, "state.json: key step: not that of its folder's name (found 7");
    assert_ok(file_rename(copy, renamed)); /* a name that says nothing of steps */
    CheckpointInfo info;
    assert_ok(checkpoint_read(&info, copy, &b->arena));
}

/* ---- export ---------------------------------------------------------------------------------------- */

static void export__writes_a_folder_that_loads(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *name;
        DType dtype, want;
        int64_t max_shard_bytes;
        int pp;
    } rows[] = {
        {"f32", DTYPE_COUNT, DTYPE_F32, 0, 1},
        {"bf16", DTYPE_BF16, DTYPE_BF16, 0, 2},
        {"shards", DTYPE_COUNT, DTYPE_F32, 5000, 2},
        {"slash/", DTYPE_COUNT, DTYPE_F32, 0, 1}, /* as a shell completes it */
        {"f32", DTYPE_BF16, DTYPE_BF16, 0, 1},    /* replaces what is there */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Job job = {.model = model_with(b, "{\"dtype\": \"float32\"}"),
                   .export_to = bench_path(b, rows[i].name)};
        job.dtype = rows[i].dtype;
        job.max_shard_bytes = rows[i].max_shard_bytes;
        job.config = CONFIG(b, text_format(&b->arena, "parallel.pp_size=%d", rows[i].pp));
        assert_ok(world_run_threads(rows[i].pp, body, &job));
        ShardIndex *index;
        ModelConfig *model;
        assert_ok(shard_index_open(&index, job.export_to, &b->arena, NULL));
        assert_int_equal(index->tensor[0].entry->dtype, rows[i].want);
        assert_int_equal(index->has_index, rows[i].max_shard_bytes > 0);
        assert_ok(model_config_read(&model, job.export_to, &b->arena, NULL));
        assert_int_equal(model->dtype, rows[i].want);
        shard_index_close(&index);
        char **names;
        int n;
        assert_ok(dir_list(&b->arena, b->dir, &names, &n));
        for (int k = 0; k < n; k++) assert_true(names[k][0] != '.'); /* nothing temporary stays */
    }
}

/* A checkpoint remembers the folder that its run started from: names, files and types come back. */
static void export__of_a_checkpoint_is_like_the_source(void **state)
{
    Bench *b = *state;
    Job job = {.model = model_with(b, "{\"dtype\": \"bfloat16\"}"),
               .dtype = DTYPE_COUNT,
               .max_shard_bytes = 4000};
    job.export_to = bench_path(b, "source");
    job.config = CONFIG(b, "parallel.pp_size=1");
    assert_ok(world_run_threads(1, body, &job)); /* bf16 in shards */
    Job train = {.weights = job.export_to, .state = example, .save_steps = {7}};
    ModelConfig *model;
    assert_ok(model_config_read(&model, job.export_to, &b->arena, NULL));
    train.model = model;
    train.config = CONFIG(b, "parallel.pp_size=2");
    assert_ok(world_run_threads(2, body, &train));
    const char *dir = bench_path(b, "run/checkpoints/step-000007");
    Job back = {.weights = dir, .dtype = DTYPE_COUNT, .export_to = bench_path(b, "back")};
    assert_ok(model_config_read(&model, dir, &b->arena, NULL));
    back.model = model;
    back.config = CONFIG(b, "parallel.pp_size=3");
    assert_ok(world_run_threads(3, body, &back));
    int n = 0;
    same_files(b, job.export_to, back.export_to, &n);
    assert_true(n > 4);
    same_files(b, back.export_to, job.export_to, &n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(checkpoint__says_what_was_saved),
        BENCH_TEST(checkpoint__does_not_depend_on_the_layout),
        BENCH_TEST(checkpoint__frozen_parameters_have_no_moments_and_sgd_has_none),
        BENCH_TEST(checkpoint__moments_of_another_kind_are_refused),
        BENCH_TEST(checkpoint__keeps_the_newest),
        BENCH_TEST(checkpoint__the_newest_is_found_whatever_latest_says),
        BENCH_TEST(saver__beside_training_writes_the_same_bytes),
        BENCH_TEST(saver__a_failed_save_leaves_the_others),
        BENCH_TEST(checkpoint__damaged_files_are_named),
        BENCH_TEST(checkpoint__other_files_and_links_are_refused),
        BENCH_TEST(checkpoint__broken_manifests_are_refused),
        BENCH_TEST(checkpoint__broken_states_are_refused),
        BENCH_TEST(checkpoint__a_folder_is_called_after_its_step),
        BENCH_TEST(export__writes_a_folder_that_loads),
        BENCH_TEST(export__of_a_checkpoint_is_like_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
