#include "train_test.h"

#include "train/optimizer.h"

static Status body(Comm *world, void *arg)
{
    return train_run(arg, world);
}

/* One run of `steps` steps on the rows of a file, in order; its folder is BENCH/NAME. */
typedef struct TestRun {
    const char *output;
    TrainPlan plan;
    Dataset *train, *eval;
} TestRun;

static Status run(TestRun *r, Bench *b, const char *name, ModelConfig *model, const char *rows,
                  const char *const *keys)
{
    r->output = bench_path(b, name);
    const char *all[24] = {text_format(&b->arena, "train.output=%s", r->output),
                           "train.global_batch_size=2"};
    int n = 2;
    for (; keys && *keys; keys++) all[n++] = *keys;
    assert_ok(dir_create(r->output));
    const TrainConfig *config = config_with(b, all);
    r->train = dataset_of(b, rows);
    r->plan = (TrainPlan){.config = config,
                          .model = model,
                          .train = r->train,
                          .eval = r->eval,
                          .weights = r->plan.weights,
                          .stop = r->plan.stop,
                          .n_steps = train_n_steps(config, dataset_n_rows(r->train))};
    Status status = run_quietly(config->parallel.pp_size, body, &r->plan);
    dataset_free(&r->train);
    return status;
}
#define RUN(r, b, name, model, rows, ...) \
    run(r, b, name, model, rows, (const char *const[]){__VA_ARGS__, NULL})

static char *file_of(Bench *b, const TestRun *r, const char *name)
{
    return path_join(&b->arena, r->output, name);
}

/* The value of a key in the line of a step; NAN: null. */
static double metric(Bench *b, const TestRun *r, int64_t step, const char *key)
{
    char *text = text_of(b, file_of(b, r, "metrics.jsonl"));
    double value = -1;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        JsonDoc doc;
        int64_t at;
        assert_ok(json_doc_parse(&doc, "line", line, strlen(line)));
        assert_ok(json_get_int(doc.root, "line", "step", &at));
        const json_t *found = json_object_get(doc.root, key);
        assert_non_null(found);
        if (at == step) value = json_is_null(found) ? NAN : json_number_value(found);
        json_doc_free(&doc);
    }
    return value;
}

static void assert_log_holds(Bench *b, const TestRun *r, const char *words)
{
    if (!strstr(text_of(b, file_of(b, r, "log.txt")), words))
        fail_msg("log.txt does not say \"%s\"", words);
}

static TrainState state_of(Bench *b, const TestRun *r)
{
    const char *latest;
    CheckpointInfo info;
    assert_ok(checkpoint_newest(&latest, r->output, &b->arena));
    assert_non_null(latest);
    assert_ok(checkpoint_read(&info, latest, &b->arena));
    return info.state;
}

static void assert_equal_weights(Bench *b, const char *file, const char *other, bool equal)
{
    char *x, *y;
    size_t n, m;
    assert_ok(file_read(&b->arena, file, &x, &n));
    assert_ok(file_read(&b->arena, other, &y, &m));
    if ((n == m && memcmp(x, y, n) == 0) != equal)
        fail_msg("%s and %s: expected %s", file, other, equal ? "equal" : "different");
}

/* The weights that random values give, untrained: a run of no steps. */
static const char *untrained(Bench *b, ModelConfig *model)
{
    TestRun r = {0};
    assert_ok(RUN(&r, b, "start", model, rows_file(b, "start.jsonl", 2, NULL), "train.steps=0"));
    return file_of(b, &r, "hf/final/model.safetensors");
}

static void assert_no_moments(Bench *b, const TestRun *r, int step)
{
    static const char *const dirs[] = {"exp_avg", "exp_avg_sq"};
    for (int k = 0; k < 2; k++) {
        ShardIndex *index;
        const char *dir =
            text_format(&b->arena, "%s/checkpoints/step-%06d/%s", r->output, step, dirs[k]);
        assert_ok(shard_index_open(&index, dir, &b->arena, NULL));
        for (int i = 0; i < index->n; i++) {
            const char *bytes = safetensors_bytes(index->tensor[i].file, index->tensor[i].entry);
            for (size_t j = 0; j < index->tensor[i].entry->bytes; j++)
                assert_int_equal(bytes[j], 0);
        }
        shard_index_close(&index);
    }
}

/* ---- steps that change nothing ----------------------------------------------------------------------- */

static void trainer__a_step_without_trained_tokens_changes_nothing(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, NULL);
    const char *start = untrained(b, model), *rows = rows_file(b, "rows.jsonl", 4, "xxxx");
    for (int pp = 1; pp <= 2; pp++) {
        TestRun r = {0};
        assert_ok(RUN(&r, b, text_format(&b->arena, "run%d", pp), model, rows, "train.steps=2",
                      "loss.z_alpha=0.1", text_format(&b->arena, "parallel.pp_size=%d", pp)));
        assert_equal_weights(b, start, file_of(b, &r, "hf/final/model.safetensors"), true);
        assert_no_moments(b, &r, 2);
        static const char *const zero[] = {"loss/total", "loss/ce",   "loss/balancing",
                                           "loss/z",     "grad_norm", "trained_tokens"};
        for (int s = 1; s <= 2; s++) {
            for (int i = 0; i < 6; i++) assert_true(metric(b, &r, s, zero[i]) == 0);
            assert_true(metric(b, &r, s, "skipped") == s);
            assert_true(metric(b, &r, s, "tokens") > 0);
        }
        assert_log_holds(b, &r, "step 2 skipped: no trained token");
        TrainState done = state_of(b, &r);
        assert_int_equal(done.step, 2);
        assert_int_equal(done.updates, 0);
        assert_int_equal(done.skipped, 2);
        assert_int_equal(done.position, 4);
    }
}

/* t of AdamW counts updates, not steps: nothing between two of them leaves no trace. */
static void trainer__skipped_steps_do_not_count_as_updates(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, NULL);
    TestRun with = {0}, without = {0};
    assert_ok(RUN(&with, b, "with", model, rows_file(b, "a.jsonl", 6, "..xx.."), "train.steps=3",
                  "lr_schedule.type=constant", "lr_schedule.warmup=0"));
    /* the same rows, the untrained ones taken out */
    char *text = text_of(b, bench_path(b, "a.jsonl"));
    TextBuffer four;
    text_buffer_init(&four, &b->arena);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (!strstr(line, "labels")) text_append_format(&four, "%s\n", line);
    const char *path = bench_path(b, "b.jsonl");
    assert_ok(file_write_atomic(path, four.text, four.length));
    assert_ok(RUN(&without, b, "without", model, path, "train.steps=2", "lr_schedule.type=constant",
                  "lr_schedule.warmup=0"));
    assert_int_equal(state_of(b, &with).updates, 2);
    assert_int_equal(state_of(b, &with).skipped, 1);
    assert_equal_weights(b, file_of(b, &with, "hf/final/model.safetensors"),
                         file_of(b, &without, "hf/final/model.safetensors"), true);
    assert_equal_weights(
        b, file_of(b, &with, "checkpoints/step-000003/exp_avg_sq/model.safetensors"),
        file_of(b, &without, "checkpoints/step-000002/exp_avg_sq/model.safetensors"), true);
}

/* A folder of random weights with one element of one tensor replaced. */
static const char *spoiled_folder(Bench *b, ModelConfig *model, const char *tensor, float value)
{
    TestRun r = {0};
    assert_ok(RUN(&r, b, "source", model, rows_file(b, "source.jsonl", 2, NULL), "train.steps=0"));
    const char *dir = file_of(b, &r, "hf/final"),
               *path = path_join(&b->arena, dir, "model.safetensors");
    ShardIndex *index;
    assert_ok(shard_index_open(&index, dir, &b->arena, NULL));
    const ShardTensor *t = shard_index_find(index, tensor);
    assert_non_null(t);
    size_t offset = t->entry->offset, n;
    shard_index_close(&index);
    char *bytes;
    assert_ok(file_read(&b->arena, path, &bytes, &n));
    memcpy(bytes + offset, &value, sizeof value);
    assert_ok(file_write_atomic(path, bytes, n));
    return dir;
}

static void trainer__a_gradient_that_is_not_finite_is_skipped_and_named(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, NULL);
    const char *source = spoiled_folder(b, model, "model.layers.2.self_attn.o_proj.weight", NAN);
    assert_ok(model_config_read(&model, source, &b->arena, NULL));
    const char *rows = rows_file(b, "rows.jsonl", 4, NULL);
    static const struct {
        const char *groups, *first;
    } cases[] = {
        {"optimizer.groups=[]", "model.embed_tokens.weight"},
        {"optimizer.groups=[{match: model.embed_tokens.weight, trainable: false}, {match: "
         "model.layers.0.*, trainable: false}]",
         "model.layers.1.input_layernorm.weight"},
    };
    for (int i = 0; i < 4; i++) {
        TestRun r = {.plan.weights = source};
        assert_ok(RUN(&r, b, text_format(&b->arena, "run%d", i), model, rows, "train.steps=2",
                      cases[i / 2].groups,
                      text_format(&b->arena, "parallel.pp_size=%d", i % 2 + 1)));
        assert_equal_weights(b, path_join(&b->arena, source, "model.safetensors"),
                             file_of(b, &r, "hf/final/model.safetensors"), true);
        assert_no_moments(b, &r, 2);
        assert_true(isnan(metric(b, &r, 1, "loss/total")));
        assert_true(isnan(metric(b, &r, 1, "grad_norm")));
        assert_true(metric(b, &r, 2, "skipped") == 2);
        assert_log_holds(b, &r,
                         text_format(&b->arena,
                                     "step 1 skipped: gradient not finite, first in %s\n",
                                     cases[i / 2].first));
    }
}

static void trainer__a_norm_above_the_threshold_is_skipped_and_lr_goes_on(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, NULL);
    const char *start = untrained(b, model), *rows = rows_file(b, "rows.jsonl", 4, NULL);
    TestRun r = {0}, most = {0}, all = {0};
    assert_ok(RUN(&r, b, "r", model, rows, "train.steps=4", "train.skip_grad_norm_threshold=1e-6",
                  "lr_schedule.warmup=2", "optimizer.lr=0.5"));
    assert_equal_weights(b, start, file_of(b, &r, "hf/final/model.safetensors"), true);
    assert_log_holds(b, &r, "above train.skip_grad_norm_threshold 1e-06");
    const LrScheduleSection schedule = {LR_COSINE, 2, 1e-6};
    for (int s = 1; s <= 4; s++) {
        assert_true(metric(b, &r, s, "lr") == lr_at(&schedule, 0.5, s - 1, 4));
        assert_true(metric(b, &r, s, "grad_norm") > 0);
    }
    /* a threshold that no norm reaches is as none */
    assert_ok(
        RUN(&most, b, "most", model, rows, "train.steps=2", "train.skip_grad_norm_threshold=1e9"));
    assert_ok(RUN(&all, b, "all", model, rows, "train.steps=2"));
    assert_equal_weights(b, file_of(b, &most, "hf/final/model.safetensors"),
                         file_of(b, &all, "hf/final/model.safetensors"), true);
    assert_equal_weights(b, start, file_of(b, &all, "hf/final/model.safetensors"), false);
}

/* SGD with lr 1 changes the weights by the gradient: clipped to a norm of 0.01, the whole change has that norm. */
static void trainer__clipping_bounds_the_norm_of_the_update(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, "{\"tie_word_embeddings\": true}");
    const char *start = untrained(b, model), *rows = rows_file(b, "rows.jsonl", 4, NULL);
    for (int clip = 0; clip < 2; clip++) {
        TestRun r = {0};
        assert_ok(RUN(&r, b, clip ? "clip" : "free", model, rows, "train.steps=1",
                      "optimizer.type=sgd", "optimizer.lr=1", "optimizer.weight_decay=0",
                      "lr_schedule.type=constant", "lr_schedule.warmup=0",
                      clip ? "train.max_grad_norm=0.01" : "train.max_grad_norm=0"));
        ShardIndex *before, *after;
        assert_ok(shard_index_open(&before, start, &b->arena, NULL));
        assert_ok(shard_index_open(&after, file_of(b, &r, "hf/final"), &b->arena, NULL));
        double sum = 0;
        for (int i = 0; i < before->n; i++) {
            int64_t n = before->tensor[i].entry->n_elements;
            float *x = ARENA_NEW(&b->arena, float, n), *y = ARENA_NEW(&b->arena, float, n);
            assert_ok(shard_tensor_read(&before->tensor[i], 0, n, DTYPE_F32, x));
            assert_ok(shard_tensor_read(&after->tensor[i], 0, n, DTYPE_F32, y));
            for (int64_t k = 0; k < n; k++)
                sum += ((double)y[k] - (double)x[k]) * ((double)y[k] - (double)x[k]);
        }
        double norm = metric(b, &r, 1, "grad_norm"),
               want = clip ? 0.01 : norm; /* reported before clipping */
        assert_true(norm > 0.1);
        /* each weight is rounded to f32: at most 2e-8 of some 0.3 on each of 1e4 */
        assert_true(fabs(sqrt(sum) - want) < 1e-3 * want);
        shard_index_close(&before);
        shard_index_close(&after);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

static void trainer__the_loss_falls_and_is_the_same_in_two_stages(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, NULL);
    const char *rows = rows_file(b, "rows.jsonl", 4, NULL);
    TestRun one = {0}, two = {0};
    one.eval = two.eval = dataset_of(b, rows_file(b, "eval.jsonl", 3, NULL));
    assert_ok(RUN(&one, b, "one", model, rows, "train.epochs=10", "optimizer.lr=0.01",
                  "train.eval_interval=8"));
    assert_ok(RUN(&two, b, "two", model, rows, "train.epochs=10", "optimizer.lr=0.01",
                  "train.eval_interval=8", "parallel.pp_size=2", "train.recompute_ratio=1",
                  "parallel.schedule=gpipe"));
    dataset_free(&one.eval);
    double first = metric(b, &one, 1, "loss/ce"), last = metric(b, &one, 20, "loss/ce");
    assert_true(last < 0.7 * first);
    for (int s = 1; s <= 20; s++) {
        assert_true(metric(b, &one, s, "loss/total") == metric(b, &two, s, "loss/total"));
        assert_true(metric(b, &one, s, "grad_norm") == metric(b, &two, s, "grad_norm"));
        assert_true(metric(b, &one, s, "epoch") == s * 0.5);
        assert_int_equal(isnan(metric(b, &one, s, "eval/loss")), s != 8 && s != 16 && s != 20);
    }
    assert_true(metric(b, &one, 16, "eval/loss") == metric(b, &two, 16, "eval/loss"));
    assert_equal_weights(b, file_of(b, &one, "hf/final/model.safetensors"),
                         file_of(b, &two, "hf/final/model.safetensors"), true);
}

/* Step 2 alone has a trace: all actions and messages of both ranks, and the bubble that its metrics have. */
static void trainer__profiled_steps_leave_a_trace(void **state)
{
    Bench *b = *state;
    TestRun r = {0};
    assert_ok(RUN(&r, b, "run", model_with(b, NULL), rows_file(b, "rows.jsonl", 2, NULL),
                  "train.steps=3", "parallel.pp_size=2", "train.profile_steps=[2, 9]"));
    assert_log_holds(b, &r, "train.profile_steps: step 9 never comes (the run has 3)");
    assert_log_holds(b, &r, "rank  layers");
    assert_false(file_exists(file_of(b, &r, "trace/step-000001.json")));
    assert_false(file_exists(file_of(b, &r, "trace/step-000003.json")));
    JsonDoc doc;
    double bubble;
    json_t *other, *events;
    const char *path = file_of(b, &r, "trace/step-000002.json");
    assert_ok(json_doc_read(&doc, path));
    assert_ok(json_get_object(doc.root, path, "otherData", &other));
    assert_ok(json_get_real(other, path, "bubble", &bubble));
    assert_true(fabs(bubble - metric(b, &r, 2, "pipeline/bubble")) < 1e-6);
    assert_ok(json_get_array(doc.root, path, "traceEvents", &events));
    int n_actions = 0, n_messages = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        const char *phase = json_string_value(json_object_get(event, "ph")),
                   *category = json_string_value(json_object_get(event, "cat"));
        n_actions += phase && !strcmp(phase, "X") && category && strcmp(category, "wait") != 0;
        n_messages += phase && !strcmp(phase, "e");
    }
    assert_int_equal(n_actions, 2 * 2 * 2);  /* F and B of two rows on two stages */
    assert_int_equal(n_messages, 2 * 2 * 2); /* a row's y and dx, sent and received */
    json_doc_free(&doc);
}

static void trainer__an_evaluation_without_trained_tokens_is_null(void **state)
{
    Bench *b = *state;
    TestRun r = {.eval = dataset_of(b, rows_file(b, "eval.jsonl", 2, "xx"))};
    assert_ok(RUN(&r, b, "run", model_with(b, NULL), rows_file(b, "rows.jsonl", 2, NULL),
                  "train.steps=1"));
    dataset_free(&r.eval);
    assert_true(isnan(metric(b, &r, 1, "eval/loss")));
}

static void trainer__a_stop_saves_and_leaves(void **state)
{
    Bench *b = *state;
    static volatile sig_atomic_t stop = 1;
    for (int pp = 1; pp <= 2; pp++) {
        TestRun r = {.plan.stop = &stop};
        assert_int_equal(RUN(&r, b, text_format(&b->arena, "run%d", pp), model_with(b, NULL),
                             rows_file(b, "rows.jsonl", 4, NULL), "train.steps=5",
                             "checkpoint.hf_interval=1",
                             text_format(&b->arena, "parallel.pp_size=%d", pp)),
                         ERR_STOPPED);
        assert_int_equal(state_of(b, &r).step, 1);
        assert_false(dir_exists(file_of(b, &r, "hf/final")));
        assert_false(dir_exists(file_of(b, &r, "hf/step-000001")));
        assert_log_holds(b, &r, "step 1 is not exported, to be in time: stagewright export");
        assert_log_holds(b, &r, "stopped after step 1");
        assert_true(metric(b, &r, 1, "loss/ce") > 0);
    }
    /* asked for in the last step, there is nothing to stop */
    TestRun r = {.plan.stop = &stop};
    assert_ok(RUN(&r, b, "last", model_with(b, NULL), rows_file(b, "rows.jsonl", 4, NULL),
                  "train.steps=1"));
    assert_true(dir_exists(file_of(b, &r, "hf/final")));
}

static void trainer__saves_when_the_intervals_say(void **state)
{
    Bench *b = *state;
    TestRun r = {0};
    assert_ok(RUN(&r, b, "run", model_with(b, NULL), rows_file(b, "rows.jsonl", 4, NULL),
                  "train.steps=7", "checkpoint.interval=2", "checkpoint.keep=3",
                  "checkpoint.hf_interval=3", "checkpoint.hf_keep=1"));
    static const char *const there[] = {"checkpoints/step-000004", "checkpoints/step-000006",
                                        "checkpoints/step-000007", "hf/step-000006", "hf/final"};
    static const char *const gone[] = {"checkpoints/step-000002", "checkpoints/step-000001",
                                       "checkpoints/step-000005", "hf/step-000003",
                                       "hf/step-000007"};
    for (int i = 0; i < 5; i++) {
        assert_true(dir_exists(file_of(b, &r, there[i])));
        assert_false(dir_exists(file_of(b, &r, gone[i])));
    }
}

static void trainer__steps_of_a_run(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *key;
        int64_t rows, want;
    } rows[] = {{"train.steps=5", 100, 5},   {"train.steps=0", 100, 0},
                {"train.epochs=1", 16, 2},   {"train.epochs=1", 17, 3},
                {"train.epochs=0.5", 16, 1}, {"train.epochs=0.1", 16, 1},
                {"train.epochs=2.5", 16, 5}, {"train.epochs=1.0e+300", 16, (int64_t)1 << 53}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_true(train_n_steps(CONFIG(b, rows[i].key), rows[i].rows) == rows[i].want);
}

/* ---- what cannot be ---------------------------------------------------------------------------------- */

static void trainer__errors_come_once_and_leave_nothing(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, NULL);
    const char *rows = rows_file(b, "rows.jsonl", 4, NULL);
    TestRun r = {0};
    assert_fails(RUN(&r, b, "a", model, rows, "train.steps=1", "parallel.pp_size=5"), ERR_USAGE,
                 "5 stages for 4 layers");
    assert_false(file_exists(file_of(b, &r, "metrics.jsonl")));
    r.plan.weights = b->dir;
    assert_fails(RUN(&r, b, "b", model, rows, "train.steps=1", "parallel.pp_size=2"), ERR_IO,
                 "holds neither");
    r.plan.weights = NULL;
    /* the folder of the run is a file */
    const char *file = bench_path(b, "file");
    assert_ok(file_write_atomic(file, "x", 1));
    Dataset *data = dataset_of(b, rows);
    for (int pp = 1; pp <= 2; pp++) {
        TrainPlan plan = {.model = model, .train = data, .n_steps = 1};
        plan.config = CONFIG(b, text_format(&b->arena, "train.output=%s", file),
                             text_format(&b->arena, "parallel.pp_size=%d", pp));
        assert_fails(run_quietly(pp, body, &plan), ERR_IO, "file/log.txt");
    }
    dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(trainer__a_step_without_trained_tokens_changes_nothing),
        BENCH_TEST(trainer__skipped_steps_do_not_count_as_updates),
        BENCH_TEST(trainer__a_gradient_that_is_not_finite_is_skipped_and_named),
        BENCH_TEST(trainer__a_norm_above_the_threshold_is_skipped_and_lr_goes_on),
        BENCH_TEST(trainer__clipping_bounds_the_norm_of_the_update),
        BENCH_TEST(trainer__the_loss_falls_and_is_the_same_in_two_stages),
        BENCH_TEST(trainer__an_evaluation_without_trained_tokens_is_null),
        BENCH_TEST(trainer__a_stop_saves_and_leaves),
        BENCH_TEST(trainer__saves_when_the_intervals_say),
        BENCH_TEST(trainer__profiled_steps_leave_a_trace),
        BENCH_TEST(trainer__steps_of_a_run),
        BENCH_TEST(trainer__errors_come_once_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
