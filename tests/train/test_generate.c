#include "train_test.h"

#include "train/generate.h"

enum { VOCAB = 50, CAPACITY = 40, PROMPT = 5 };

static const int32_t prompt[PROMPT] = {3, 14, 15, 9, 26};

typedef void (*Check)(Engine *engine, Generator *generator);

typedef struct Job {
    const TrainConfig *config;
    ModelConfig *model;
    Check check;
} Job;

static Status body(Comm *world, void *arg)
{
    const Job *job = arg;
    EngineSetup setup = {.config = job->config,
                         .model = job->model,
                         .n_forward = {1, 0},
                         .max_positions = 64,
                         .row_tokens = 1};
    Engine *e;
    Generator g;
    TRY(engine_create(&e, &setup, world, NULL));
    Status status = generator_create(&g, e, CAPACITY);
    if (status == OK) job->check(e, &g);
    generator_free(&g);
    engine_free(&e);
    return status;
}

static void with_model(Bench *b, Check check)
{
    Job job = {.config = CONFIG(b, "train.seed=3"), .model = model_with(b, NULL), .check = check};
    assert_ok(world_run_threads(1, body, &job));
}

static int64_t greedy(Generator *g, int64_t n, int32_t *out)
{
    bool ended;
    GenerateConfig config = {.max_new_tokens = n, .vocab_used = VOCAB};
    return generate(g, &config, 0, prompt, PROMPT, out, &ended);
}

/* The most likely next id by a whole forward without a cache. */
static int32_t argmax(Engine *e, const int32_t *id, int32_t n)
{
    ArenaMark mark = arena_mark(&e->step);
    int32_t cu[2] = {0, n}, *position = ARENA_NEW(&e->step, int32_t, n), best = 0;
    Tensor logits = arena_tensor2(&e->step, DTYPE_F32, n, VOCAB);
    for (int32_t t = 0; t < n; t++) position[t] = t;
    MicroBatch mb = {
        .n_tokens = n, .n_segments = 1, .cu_seqlens = cu, .id_t = id, .position_t = position};
    e->stage[0]->logits_m = &logits;
    engine_forward(e, PASS_FORWARD_0, &mb, FORWARD_LOGITS);
    e->stage[0]->logits_m = NULL;
    const float *last = (const float *)logits.data + (n - 1) * VOCAB;
    for (int32_t i = 1; i < VOCAB; i++)
        if (last[i] > last[best]) best = i;
    arena_rewind(&e->step, mark);
    return best;
}

static void check_greedy(Engine *e, Generator *g)
{
    int32_t out[20], ids[PROMPT + 20];
    assert_int_equal(greedy(g, 20, out), 20);
    memcpy(ids, prompt, sizeof prompt);
    int kinds = 0;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(out[i], argmax(e, ids, PROMPT + i));
        ids[PROMPT + i] = out[i];
        bool seen = false;
        for (int k = 0; k < i; k++) seen = seen || out[k] == out[i];
        kinds += !seen;
    }
    assert_true(kinds > 1); /* else any of them would do */
}

static void generate__greedy_is_the_argmax_of_the_forward(void **state)
{
    with_model(*state, check_greedy);
}

static void check_eos(Engine *e, Generator *g)
{
    ModelConfig *model = (ModelConfig *)e->model;
    int32_t all[20], out[20];
    GenerateConfig config = {.max_new_tokens = 20, .vocab_used = VOCAB};
    bool ended = true;
    greedy(g, 20, all);
    assert_int_equal(generate(g, &config, 0, prompt, PROMPT, out, &ended), 20);
    assert_false(ended);
    for (int at = 0; at < 20; at += 3) {
        int first = 0; /* where that id comes for the first time */
        while (all[first] != all[at]) first++;
        model->n_eos = 2; /* any of several stops it */
        model->eos[0] = 49;
        model->eos[1] = all[at];
        for (int i = 0; i < first; i++) first = all[i] == 49 ? i : first;
        assert_int_equal(generate(g, &config, 0, prompt, PROMPT, out, &ended), first);
        assert_true(ended);
        assert_memory_equal(out, all, (size_t)first * sizeof *out);
    }
    model->n_eos = 0;
}

static void generate__any_eos_stops_and_is_not_shown(void **state)
{
    with_model(*state, check_eos);
}

static void check_limits(Engine *e, Generator *g)
{
    (void)e;
    int32_t all[100], out[100];
    bool ended;
    GenerateConfig config = {.max_new_tokens = 100, .vocab_used = VOCAB};
    /* the cache holds all but the last token */
    assert_int_equal(generate(g, &config, 0, prompt, PROMPT, all, &ended), CAPACITY - PROMPT + 1);
    assert_false(ended);
    for (config.max_new_tokens = 0; config.max_new_tokens < 6; config.max_new_tokens++) {
        assert_int_equal(generate(g, &config, 0, prompt, PROMPT, out, &ended),
                         config.max_new_tokens);
        assert_memory_equal(out, all, (size_t)config.max_new_tokens * sizeof *out);
    }
    /* ids that the tokenizer does not know are never chosen */
    config = (GenerateConfig){.max_new_tokens = 30, .vocab_used = 7};
    for (int warm = 0; warm < 2; warm++) {
        config.temperature = 5 * warm;
        int64_t n = generate(g, &config, 0, prompt, PROMPT, out, &ended);
        assert_int_equal(n, 30);
        for (int64_t i = 0; i < n; i++) assert_true(out[i] >= 0 && out[i] < 7);
    }
    config.vocab_used = 1000; /* more than the model has */
    assert_int_equal(generate(g, &config, 0, prompt, PROMPT, out, &ended), 30);
    for (int i = 0; i < 30; i++) assert_true(out[i] >= 0 && out[i] < VOCAB);
}

static void generate__stops_at_its_limits(void **state)
{
    with_model(*state, check_limits);
}

static void check_draws(Engine *e, Generator *g)
{
    (void)e;
    int32_t a[20], c[20];
    bool ended;
    GenerateConfig config = {
        .max_new_tokens = 20, .temperature = 1.5, .seed = 7, .vocab_used = VOCAB};
    /* sequence 2 after two others, and again alone */
    for (int64_t s = 0; s < 3; s++) generate(g, &config, s, prompt, PROMPT - s, a, &ended);
    generate(g, &config, 2, prompt, PROMPT - 2, c, &ended);
    assert_memory_equal(a, c, sizeof a);
    /* the same prompt in another place, and with another seed, is drawn anew */
    generate(g, &config, 3, prompt, PROMPT - 2, c, &ended);
    assert_memory_not_equal(a, c, sizeof a);
    config.seed = 8;
    generate(g, &config, 2, prompt, PROMPT - 2, c, &ended);
    assert_memory_not_equal(a, c, sizeof a);
    /* next to no temperature is none */
    config.temperature = 1e-6;
    generate(g, &config, 0, prompt, PROMPT, a, &ended);
    greedy(g, 20, c);
    assert_memory_equal(a, c, sizeof a);
}

static void generate__draws_depend_on_seed_and_sequence_alone(void **state)
{
    with_model(*state, check_draws);
}

/* First ids of 4000 sequences against the softmax at temperature 2: chi² of the ids expected at least 10 times. */
static void check_frequencies(Engine *e, Generator *g)
{
    (void)e;
    enum { N = 4000 };
    double count[VOCAB] = {0}, p[VOCAB], sum = 0, chi = 0;
    GenerateConfig config = {.max_new_tokens = 1, .temperature = 2, .seed = 1, .vocab_used = VOCAB};
    for (int64_t s = 0; s < N; s++) {
        int32_t id;
        bool ended;
        assert_int_equal(generate(g, &config, s, prompt, 2, &id, &ended), 1);
        count[id]++;
    }
    const float *logit = g->logit_1v.data; /* of the last prompt, the same for all */
    for (int i = 0; i < VOCAB; i++) sum += p[i] = exp((double)logit[i] / 2);
    int bins = 0;
    for (int i = 0; i < VOCAB; i++) {
        double want = N * p[i] / sum;
        if (want < 10) continue;
        bins++;
        chi += (count[i] - want) * (count[i] - want) / want;
    }
    assert_true(bins > 10);
    if (chi > bins + 6 * sqrt(2.0 * bins)) fail_msg("chi² %g of %d ids", chi, bins);
}

static void generate__ids_come_as_often_as_the_softmax_says(void **state)
{
    with_model(*state, check_frequencies);
}

static void check_not_finite(Engine *e, Generator *g)
{
    int32_t out[2];
    for (int i = 0; i < e->set.n; i++)
        memset(e->set.at[i]->value.data, 0xff, tensor_bytes(e->set.at[i]->value));
    assert_int_equal(greedy(g, 2, out), -1);
}

static void generate__tells_logits_that_are_not_finite(void **state)
{
    with_model(*state, check_not_finite);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(generate__greedy_is_the_argmax_of_the_forward),
        BENCH_TEST(generate__any_eos_stops_and_is_not_shown),
        BENCH_TEST(generate__stops_at_its_limits),
        BENCH_TEST(generate__draws_depend_on_seed_and_sequence_alone),
        BENCH_TEST(generate__ids_come_as_often_as_the_softmax_says),
        BENCH_TEST(generate__tells_logits_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
