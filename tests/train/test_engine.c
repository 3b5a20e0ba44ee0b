#include "train_test.h"

/* A job for ranks: makes an engine, runs one step on rows, and keeps what rank 0 sees. */
typedef struct Job {
    Bench *b;
    const TrainConfig *config;
    const ModelConfig *model;
    const Dataset *data;
    const char *weights;
    int n_rows;
    const char *form;     /* of the balancing loss; NULL: the default */
    const char *schedule; /* NULL: the default */
    double recompute;
    /* results */
    EngineSums sums;
    double norm_by_hand;
    int64_t count[16][4];
    bool present_norm, present_embedding;
    int64_t memory[4];
    const char *bad;   /* tensor to spoil after backward; NULL: none */
    double spoil_with; /* value */
    char bad_name[128];
} Job;

static double squares(Tensor grad)
{
    double sum = 0;
    for (int64_t i = 0; i < tensor_size(grad); i++)
        sum += (double)((float *)grad.data)[i] * (double)((float *)grad.data)[i];
    return sum;
}

static Status body(Comm *world, void *arg)
{
    Job *job = arg;
    EngineSetup setup = {.config = job->config,
                         .model = job->model,
                         .n_train = job->n_rows,
                         .max_positions = 64,
                         .row_tokens = 8,
                         .weights = job->weights};
    Engine *e;
    TRY(engine_create(&e, &setup, world, NULL));
    Row *rows = ARENA_NEW(&e->step, Row, job->n_rows);
    dataset_rows(job->data, 0, job->n_rows, rows);
    BatchConfig batch = {REDUCTION_TOKEN, 0.01, 0.001};
    BatchTotals totals;
    MicroBatch *mb = batch_build_rank(&totals, rows, job->n_rows, 0, 1, &batch, &e->step);
    engine_forward_backward(e, mb);
    Param *bad = job->bad ? paramset_find(&e->set, job->bad) : NULL;
    if (bad) ((float *)bad->grad.data)[1] = (float)job->spoil_with;
    EngineSums sums;
    engine_sums(&sums, e, PASS_TRAIN, 1 + world->rank);
    double own = 0;
    for (int i = 0; i < e->set.n; i++)
        if (!e->set.at[i]->tied_copy && e->set.at[i]->trainable) own += squares(e->set.at[i]->grad);
    Status status = comm_sum_ordered(world, &own, 1, DTYPE_F64, &e->step);
    bool *present = NULL;
    if (status == OK) status = engine_present(&present, e, PARAM_GRAD, &e->step);
    if (status == OK && world->rank == 0) {
        job->sums = sums;
        job->sums.count_le = NULL;
        for (int64_t l = 0; l < job->model->n_layers; l++)
            memcpy(job->count[l], sums.count_le + l * 4, sizeof job->count[l]);
        for (int r = 0; r < world->size; r++) job->memory[r] = sums.memory_r[r];
        job->norm_by_hand = sqrt(own);
        for (int i = 0; i < e->layout->n; i++) {
            if (!strcmp(e->layout->at[i].name, "model.norm.weight")) job->present_norm = present[i];
            if (!strcmp(e->layout->at[i].name, "model.embed_tokens.weight"))
                job->present_embedding = present[i];
        }
        if (sums.bad_tensor) snprintf(job->bad_name, sizeof job->bad_name, "%s", sums.bad_tensor);
    }
    engine_free(&e);
    return status;
}

static void run(Job *job, int pp)
{
    Arena *arena = &job->b->arena;
    TrainConfig *config =
        CONFIG(job->b, text_format(arena, "parallel.pp_size=%d", pp),
               text_format(arena, "train.recompute_ratio=%g", job->recompute),
               text_format(arena, "loss.balancing_form=%s", job->form ? job->form : "per_layer"));
    if (job->schedule) {
        config->parallel.schedule = job->schedule;
        config->parallel.num_virtual_stages = 0; /* as many as it needs */
    }
    job->config = config;
    assert_ok(world_run_threads(pp, body, job));
}

static void assert_same_sums(const Job *got, const Job *want)
{
    assert_true(got->sums.ce == want->sums.ce);
    assert_true(got->sums.balancing_raw == want->sums.balancing_raw);
    assert_true(got->sums.z_raw == want->sums.z_raw);
    assert_true(got->sums.norm == want->sums.norm);
    assert_true(got->sums.max_violation == want->sums.max_violation);
    assert_memory_equal(got->count, want->count, sizeof want->count);
}

static void engine__sums_are_the_same_bits_on_any_number_of_ranks(void **state)
{
    Bench *b = *state;
    Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", 5, NULL));
    static const char *const patches[] = {NULL, "{\"tie_word_embeddings\": true}"};
    for (int k = 0; k < 2; k++) {
        Job one = {.b = b, .model = model_with(b, patches[k]), .data = data, .n_rows = 5};
        run(&one, 1);
        for (int pp = 2; pp <= 4; pp++) {
            Job more = {.b = b, .model = one.model, .data = data, .n_rows = 5};
            run(&more, pp);
            assert_same_sums(&more, &one);
            assert_int_equal(more.sums.flags, pp * (pp + 1) / 2);
            for (int r = 0; r < pp; r++) assert_true(more.memory[r] > 1000);
            assert_true(more.sums.makespan >= more.sums.work && more.sums.work > 0);
        }
    }
    dataset_free(&data);
}

/* Several stages on a rank, in the order of the ranks or in a V, with I and W apart; both forms of the balancing loss. */
static void engine__sums_are_the_same_bits_with_every_schedule(void **state)
{
    Bench *b = *state;
    Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", 5, NULL));
    static const struct {
        const char *schedule;
        int pp;
    } rows[] = {{"gpipe", 4}, {"interleaved", 2}, {"looped_bfs", 2}, {"zb_h1", 3},
                {"zb_h2", 4}, {"zb1p", 2},        {"zbv", 2},        {"vhalf", 2},
                {"vmin", 2},  {"dualpipev", 2}};
    static const char *const forms[] = {"per_layer", "hf"};
    for (size_t f = 0; f < 2; f++)
        for (int tied = 0; tied < 2; tied++) {
            Job one = {.b = b, .data = data, .n_rows = 5, .form = forms[f]};
            one.model = model_with(b, tied ? "{\"tie_word_embeddings\": true}" : NULL);
            run(&one, 1);
            assert_true(one.sums.balancing_raw > (f ? 2 : 3)); /* K; layers of experts */
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                Job more = one;
                more.schedule = rows[i].schedule;
                more.recompute = (double)(i % 3) / 2;
                run(&more, rows[i].pp);
                assert_same_sums(&more, &one);
            }
        }
    dataset_free(&data);
}

/* A tied pair is one tensor: its gradient counts once. */
static void engine__norm_is_that_of_the_gradients(void **state)
{
    Bench *b = *state;
    Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", 3, NULL));
    for (int tied = 0; tied < 2; tied++)
        for (int pp = 1; pp <= 2; pp++) {
            Job job = {.b = b, .data = data, .n_rows = 3};
            job.model = model_with(b, tied ? "{\"tie_word_embeddings\": true}" : NULL);
            run(&job, pp);
            assert_true(job.sums.norm > 1e-3);
            assert_true(fabs(job.sums.norm / job.norm_by_hand - 1) < 1e-12);
            assert_true(job.present_norm && job.present_embedding);
        }
    dataset_free(&data);
}

static void engine__counts_and_violation(void **state)
{
    Bench *b = *state;
    Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", 4, NULL));
    Job job = {.b = b, .model = model_with(b, NULL), .data = data, .n_rows = 4};
    run(&job, 2);
    double sum = 0;
    for (int l = 0; l < 4; l++) {
        int64_t total = 0, max = 0;
        for (int e = 0; e < 4; e++) {
            total += job.count[l][e];
            max = job.count[l][e] > max ? job.count[l][e] : max;
        }
        if (l == 1) { /* dense */
            assert_int_equal(total, 0);
            continue;
        }
        assert_int_equal(total, 2 * dataset_n_tokens(data));
        sum += ((double)max - (double)total / 4) / ((double)total / 4);
    }
    assert_true(fabs(job.sums.max_violation - sum / 3) < 1e-12);
    job.model = model_with(b, "{\"mlp_only_layers\": [0, 1, 2, 3]}");
    run(&job, 1);
    assert_true(isnan(job.sums.max_violation) && job.sums.balancing_raw == 0);
    dataset_free(&data);
}

static void engine__the_first_tensor_that_is_not_finite_is_named(void **state)
{
    Bench *b = *state;
    Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", 2, NULL));
    static const char *const names[] = {"model.layers.2.mlp.experts.down_proj",
                                        "model.norm.weight"};
    for (int pp = 1; pp <= 2; pp++)
        for (int i = 0; i < 4; i++) {
            Job job = {.b = b, .model = model_with(b, NULL), .data = data, .n_rows = 2};
            job.bad = names[i % 2];
            job.spoil_with = i < 2 ? NAN : -INFINITY;
            run(&job, pp);
            assert_string_equal(job.bad_name, names[i % 2]);
            assert_true(!isfinite(job.sums.norm));
        }
    Job job = {.b = b, .model = model_with(b, NULL), .data = data, .n_rows = 2};
    job.bad = "model.norm.weight";
    job.spoil_with = 3e38; /* finite, its square too */
    run(&job, 1);
    assert_string_equal(job.bad_name, "");
    assert_true(job.sums.norm > 1e38 && job.sums.norm < 1e39);
    dataset_free(&data);
}

static void engine__what_cannot_be_is_said_by_one_rank(void **state)
{
    Bench *b = *state;
    Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", 2, NULL));
    const char *empty = bench_path(b, "empty");
    assert_ok(dir_create(empty));
    static const struct {
        const char *keys[3];
        int pp;
        bool weights;
        Status code;
        const char *word;
    } rows[] = {
        {{"parallel.pp_size=5"}, 5, false, ERR_USAGE, "5 stages for 4 layers"},
        {{"parallel.pp_size=2", "parallel.layer_split=[1,2]"},
         2,
         false,
         ERR_USAGE,
         "parallel.layer_split"},
        {{"optimizer.groups=[{match: nothing}]"}, 1, false, ERR_USAGE, "nothing"},
        {{"parallel.pp_size=3", "optimizer.groups=[{match: nothing}]"},
         3,
         false,
         ERR_USAGE,
         "nothing"},
        {{"parallel.pp_size=2"}, 2, true, ERR_IO, "empty"},
        {{"parallel.pp_size=2"}, 3, false, ERR_USAGE, "the world has 3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Job job = {.b = b, .model = model_with(b, NULL), .data = data, .n_rows = 2};
        job.config = config_with(b, rows[i].keys);
        job.weights = rows[i].weights ? empty : NULL;
        assert_fails(world_run_threads(rows[i].pp, body, &job), rows[i].code, rows[i].word);
    }
    dataset_free(&data);
}

/* Frozen parameters have no gradient, count in no norm, and the step does not grow the memory. */
typedef struct Steps {
    const TrainConfig *config;
    const ModelConfig *model;
    const Dataset *data;
    int64_t growths[4];
} Steps;

static Status steps_body(Comm *world, void *arg)
{
    Steps *s = arg;
    EngineSetup setup = {
        .config = s->config, .model = s->model, .n_train = 6, .max_positions = 64, .row_tokens = 8};
    Engine *e;
    TRY(engine_create(&e, &setup, world, NULL));
    for (int step = 0; step < 4; step++) {
        arena_reset(&e->step);
        Row *rows = ARENA_NEW(&e->step, Row, 6);
        dataset_rows(s->data, 0, 6, rows);
        BatchConfig batch = {REDUCTION_SAMPLE, 0.01, 0.001};
        BatchTotals totals;
        MicroBatch *mb = batch_build_rank(&totals, rows, 6, 0, 1, &batch, &e->step);
        engine_forward_backward(e, mb);
        EngineSums sums;
        engine_sums(&sums, e, PASS_TRAIN, 0);
        if (world->rank == 0) s->growths[step] = engine_growths(e);
    }
    engine_free(&e);
    return OK;
}

static void engine__after_the_first_step_nothing_is_allocated(void **state)
{
    Bench *b = *state;
    Dataset *data = dataset_of(b, rows_file(b, "rows.jsonl", 6, NULL));
    for (int pp = 1; pp <= 2; pp++) {
        Steps s = {.model = model_with(b, NULL), .data = data};
        s.config = CONFIG(b, text_format(&b->arena, "parallel.pp_size=%d", pp),
                          "train.recompute_ratio=0.5");
        assert_ok(world_run_threads(pp, steps_body, &s));
        assert_true(s.growths[0] > 0);
        for (int step = 1; step < 4; step++) assert_int_equal(s.growths[step], s.growths[0]);
    }
    dataset_free(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(engine__sums_are_the_same_bits_on_any_number_of_ranks),
        BENCH_TEST(engine__sums_are_the_same_bits_with_every_schedule),
        BENCH_TEST(engine__norm_is_that_of_the_gradients),
        BENCH_TEST(engine__counts_and_violation),
        BENCH_TEST(engine__the_first_tensor_that_is_not_finite_is_named),
        BENCH_TEST(engine__what_cannot_be_is_said_by_one_rank),
        BENCH_TEST(engine__after_the_first_step_nothing_is_allocated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
