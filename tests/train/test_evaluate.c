#include "train_test.h"

#include "train/evaluate.h"

/* The loss of all rows at once, as a training step has it, beside the evaluation's. */
typedef struct Job {
    const TrainConfig *config;
    const ModelConfig *model;
    const Dataset *data;
    EvalResult result, again;
    double ce;
} Job;

static Status body(Comm *world, void *arg)
{
    Job *job = arg;
    int64_t n = dataset_n_rows(job->data);
    EngineSetup setup = {.config = job->config,
                         .model = job->model,
                         .n_train = (int)n,
                         .max_positions = 64,
                         .row_tokens = 8};
    evaluate_passes(setup.n_forward, n, 1);
    Engine *e;
    TRY(engine_create(&e, &setup, world, NULL));
    EvalResult result, again;
    evaluate(&result, e, job->data);
    size_t used = e->step.used;
    Row *rows = ARENA_NEW(&e->step, Row, n);
    dataset_rows(job->data, 0, n, rows);
    BatchConfig batch = {job->config->loss.reduction, 0.01, 0};
    BatchTotals totals;
    MicroBatch *mb = batch_build_rank(&totals, rows, n, 0, 1, &batch, &e->step);
    engine_forward_backward(e, mb);
    EngineSums sums;
    engine_sums(&sums, e, PASS_TRAIN, 0);
    evaluate(&again, e, job->data);
    if (world->rank == 0) {
        job->result = result;
        job->again = again;
        job->ce = sums.ce;
    }
    engine_free(&e);
    return used == 0 ? OK : FAIL(ERR_FAILED, "evaluation left %zu bytes in the step's arena", used);
}

static void evaluate__equals_the_loss_of_all_rows_as_one_batch(void **state)
{
    Bench *b = *state;
    static const int sizes[] = {1, 31, 32, 33, 64, 70};
    static const char *const reductions[] = {"token", "sample", "square"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", sizes[i], "..x"));
        double first = 0;
        for (int pp = 1; pp <= 2; pp++) {
            Job job = {.model = model_with(b, "{\"num_hidden_layers\": 2}"), .data = data};
            job.config = CONFIG(b, text_format(&b->arena, "parallel.pp_size=%d", pp),
                                text_format(&b->arena, "loss.reduction=%s", reductions[i % 3]));
            assert_ok(world_run_threads(pp, body, &job));
            assert_int_equal(job.result.n_rows, sizes[i]);
            assert_int_equal(job.result.n_tokens, dataset_n_tokens(data));
            assert_true(job.result.loss > 1);
            /* the same summands in f64, other brackets */
            assert_true(fabs(job.result.loss / job.ce - 1) < 1e-13);
            assert_true(job.result.loss ==
                        job.again.loss); /* a training step in between changes nothing */
            if (pp == 1)
                first = job.result.loss;
            else
                assert_true(job.result.loss == first);
        }
        dataset_free(&data);
    }
}

static void evaluate__passes_are_whole_chunks_and_a_rest(void **state)
{
    (void)state;
    static const struct {
        int64_t rows;
        int dp;
        int pass[2]; /* microbatches of a rank */
    } rows[] = {{1, 1, {0, 1}},   {31, 1, {0, 31}}, {32, 1, {32, 0}},
                {33, 1, {32, 1}}, {64, 1, {32, 0}}, {((int64_t)1 << 40) + 5, 1, {32, 5}},
                {32, 4, {8, 0}},  {33, 4, {8, 1}},  {31, 3, {10, 1}},
                {5, 2, {0, 3}},   {64, 64, {1, 0}}, {65, 64, {1, 1}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int got[2];
        evaluate_passes(got, rows[i].rows, rows[i].dp);
        assert_memory_equal(got, rows[i].pass, sizeof got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(evaluate__equals_the_loss_of_all_rows_as_one_batch),
        BENCH_TEST(evaluate__passes_are_whole_chunks_and_a_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
