/* What a run says about its memory before step 1 against what its arenas held after some steps, on every schedule. */
#include "train_test.h"

#include "train/memory_plan.h"

typedef struct Job {
    const TrainConfig *config;
    const ModelConfig *model;
    Dataset *data;
    int n_rows;
    bool evaluates;
    MemoryPlan plan_r[4];
    int64_t held_r[4]; /* bytes after two steps */
} Job;

static void run_rows(Job *job, Engine *e, bool train)
{
    arena_reset(&e->step);
    Row *rows = ARENA_NEW(&e->step, Row, job->n_rows);
    dataset_rows(job->data, 0, job->n_rows, rows);
    BatchConfig batch = {REDUCTION_TOKEN, 0.01, 0.001};
    BatchTotals totals;
    MicroBatch *mb = batch_build_rank(&totals, rows, job->n_rows, 0, 1, &batch, &e->step);
    if (train)
        engine_forward_backward(e, mb);
    else
        engine_forward(e, PASS_FORWARD_0, mb, FORWARD_LOSS);
    EngineSums sums;
    engine_sums(&sums, e, train ? PASS_TRAIN : PASS_FORWARD_0, 0);
}

static Status body(Comm *world, void *arg)
{
    Job *job = arg;
    EngineSetup setup = {.config = job->config,
                         .model = job->model,
                         .n_train = job->n_rows,
                         .n_forward = {job->evaluates ? job->n_rows : 0, 0},
                         .max_positions = 400,
                         .row_tokens = 300};
    Engine *e;
    TRY(engine_create(&e, &setup, world, NULL));
    int64_t longest = dataset_longest(job->data);
    TRY(memory_plan(&job->plan_r[world->rank], e, longest, longest));
    for (int step = 0; step < 2; step++) run_rows(job, e, true);
    if (job->evaluates) run_rows(job, e, false);
    job->held_r[world->rank] = (int64_t)engine_high_water(e);
    engine_free(&e);
    return OK;
}

/* n rows of the same length, one sample each. */
static Dataset *equal_rows(Bench *b, int n, int length)
{
    TextBuffer text;
    text_buffer_init(&text, &b->arena);
    for (int i = 0; i < n; i++) {
        text_append_format(&text, "{\"input_ids\": [");
        for (int t = 0; t < length; t++)
            text_append_format(&text, "%s%d", t ? ", " : "", (i * 13 + t * t * 7) % 50);
        text_append_format(&text, "]}\n");
    }
    const char *path = bench_path(b, "equal.jsonl");
    assert_ok(file_write_atomic(path, text.text, text.length));
    return dataset_of(b, path);
}

/* Says what is off by more than 10 %. */
static int compare(const Job *job, const char *what, int pp)
{
    int failed = 0;
    for (int r = 0; r < pp; r++) {
        double ratio = (double)job->plan_r[r].total / (double)job->held_r[r];
        if (ratio > 0.9 && ratio < 1.1) continue;
        print_message("%s: rank %d: said %lld bytes, held %lld\n", what, r,
                      (long long)job->plan_r[r].total, (long long)job->held_r[r]);
        failed++;
    }
    return failed;
}

static void memory_plan__is_what_every_schedule_holds(void **state)
{
    Bench *b = *state;
    enum { PP = 2, ROWS = 6 };
    Job job = {.n_rows = ROWS, .data = equal_rows(b, ROWS, 300)};
    job.model = model_with(b, "{\"num_hidden_layers\": 8}");
    int failed = 0, n = 0;
    for (const ScheduleKind *kind = schedule_kinds; kind->name; kind++) {
        if (!kind->generate) continue;
        const char *key = text_format(&b->arena, "parallel.schedule=%s", kind->name);
        for (int k = 0; k < 2; k++) {
            job.config = CONFIG(b, key, "parallel.pp_size=2", "model.dtype=f32",
                                k ? "train.recompute_ratio=0.5" : "train.recompute_ratio=0");
            job.evaluates = k == 1;
            assert_ok(world_run_threads(PP, body, &job));
            failed += compare(&job, kind->name, PP);
            n++;
        }
    }
    assert_true(n >= 4);
    assert_int_equal(failed, 0);
    dataset_free(&job.data);
}

static void memory_plan__counts_parameters_and_dtypes(void **state)
{
    Bench *b = *state;
    Job job = {.n_rows = 2, .data = equal_rows(b, 2, 400)};
    job.model = model_with(b, NULL);
    int64_t activations[2];
    for (int k = 0; k < 2; k++) {
        job.config = CONFIG(b, "parallel.pp_size=1", k ? "model.dtype=bf16" : "model.dtype=f32");
        assert_ok(world_run_threads(1, body, &job));
        assert_int_equal(compare(&job, "one rank", 1), 0);
        activations[k] = job.plan_r[0].activations;
        /* bf16 works on copies of half the size; masters and gradients are f32 all the same */
        int64_t f32 = job.plan_r[0].gradients;
        assert_int_equal(job.plan_r[0].weights, k ? f32 + f32 / 2 : f32);
        assert_int_equal(job.plan_r[0].moments, 0); /* made by the trainer */
    }
    assert_true(activations[1] < activations[0] && 2 * activations[1] > activations[0]);
    dataset_free(&job.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(memory_plan__is_what_every_schedule_holds),
        BENCH_TEST(memory_plan__counts_parameters_and_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
