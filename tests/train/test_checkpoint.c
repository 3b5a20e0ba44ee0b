#include "checkpoint_test.h"

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
        BENCH_TEST(checkpoint__keeps_the_newest),
        BENCH_TEST(checkpoint__the_newest_is_found_whatever_latest_says),
        BENCH_TEST(saver__beside_training_writes_the_same_bytes),
        BENCH_TEST(saver__a_failed_save_leaves_the_others),
        BENCH_TEST(export__writes_a_folder_that_loads),
        BENCH_TEST(export__of_a_checkpoint_is_like_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
