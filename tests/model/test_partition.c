#include "model_test.h"

#include <math.h>
#include "base/rng.h"

/* A model of random sizes: layers of two very different costs, heads from none to dominant. */
static ModelConfig *random_model(Bench *b, uint64_t key, int64_t n_layers)
{
    int dense = (int)(rng_bits(key, 0) % 200) + 1, vocab = (int)(rng_bits(key, 1) % 3000) + 1;
    TextBuffer list;
    text_buffer_init(&list, &b->arena);
    for (int64_t l = 0; l < n_layers; l++)
        if (rng_bits(key, 10 + (uint64_t)l) % 2)
            text_append_format(&list, "%s%d", list.length ? ", " : "", (int)l);
    const char *patch = text_format(&b->arena,
                                    "{\"num_hidden_layers\": %d, \"intermediate_size\": %d, "
                                    "\"vocab_size\": %d, \"mlp_only_layers\": [%s]}",
                                    (int)n_layers, dense, vocab, list.text);
    ModelConfig *config;
    assert_ok(config_of(&config, &b->arena, MOE_JSON, patch, NULL));
    return config;
}

/* The busiest rank's cost and, in *stage, the costliest stage's. */
static double busiest(const PartitionRequest *r, const int64_t *count, double *stage)
{
    double sum[9] = {0}, worst = 0;
    int64_t layer = 0;
    *stage = 0;
    for (int s = 0; s < r->n_stages; s++) {
        LayerRange range = {layer, count[s], s == 0, s == r->n_stages - 1};
        double cost = stage_cost_sum(range_cost(&r->cost, range));
        layer += count[s];
        *stage = fmax(*stage, cost);
        double *own = &sum[r->rank_of_stage ? r->rank_of_stage[s] : s];
        worst = fmax(worst, *own += cost);
    }
    return worst;
}

/* The least possible, by trying every way to cut. */
static double best_of_all(const PartitionRequest *r, int64_t *count, int stage, int64_t left)
{
    double costliest;
    if (stage == r->n_stages - 1) {
        count[stage] = left;
        return busiest(r, count, &costliest);
    }
    double best = INFINITY;
    for (int64_t n = 1; n <= left - (r->n_stages - 1 - stage); n++) {
        count[stage] = n;
        best = fmin(best, best_of_all(r, count, stage + 1, left - n));
    }
    return best;
}

static void check_ranges(const LayerRange *range, int n_stages, int64_t n_layers)
{
    int64_t next = 0;
    for (int s = 0; s < n_stages; s++) {
        assert_true(range[s].first == next);
        assert_true(range[s].n >= 1);
        assert_int_equal(range[s].has_embedding, s == 0);
        assert_int_equal(range[s].has_head, s == n_stages - 1);
        next += range[s].n;
    }
    assert_true(next == n_layers);
}

static CostModel random_cost(Bench *b, uint64_t key, int64_t n_layers)
{
    return (CostModel){.config = random_model(b, key, n_layers),
                       .row_tokens = (int64_t)(rng_bits(key, 3) % 4000) + 1,
                       .dtype = rng_bits(key, 4) % 2 ? DTYPE_F32 : DTYPE_BF16,
                       .recompute_ratio = (double)(rng_bits(key, 5) % 3) / 2};
}

/* Deals, checks the ranges, and gives the busiest rank's cost against the least possible. */
static double against_best(const PartitionRequest *r, Bench *b)
{
    LayerRange range[9];
    int64_t got[9], any[9];
    double stage;
    size_t used = b->arena.used;
    assert_ok(partition_layers(range, r, &b->arena));
    assert_int_equal(b->arena.used, used);
    check_ranges(range, r->n_stages, r->cost.config->n_layers);
    for (int s = 0; s < r->n_stages; s++) got[s] = range[s].n;
    return busiest(r, got, &stage) / best_of_all(r, any, 0, r->cost.config->n_layers);
}

static void partition__each_layer_once_and_the_busiest_rank_is_as_fast_as_can_be(void **state)
{
    Bench *b = *state;
    for (uint64_t key = 0; key < 60; key++) {
        ArenaMark mark = arena_mark(&b->arena);
        int64_t n_layers = (int64_t)(rng_bits(key, 2) % 9) + 1;
        PartitionRequest request = {.cost = random_cost(b, key, n_layers)};
        for (request.n_stages = 1; request.n_stages <= n_layers; request.n_stages++) {
            double ratio = against_best(&request, b);
            /* Prefix sums are subtracted: the last digits differ. */
            if (ratio > 1 + 1e-12)
                fail_msg("model %d, %d stages: %g of the least", (int)key, request.n_stages, ratio);
        }
        arena_rewind(&b->arena, mark);
    }
}

/* Several stages on a rank: the moves find the best nearly always, and miss little else. */
static void partition__stages_of_one_rank_count_together(void **state)
{
    Bench *b = *state;
    static const struct {
        int n_stages, rank_of_stage[8];
    } rows[] = {{4, {0, 1, 0, 1}},       {4, {0, 1, 1, 0}},       {6, {0, 1, 2, 0, 1, 2}},
                {6, {0, 1, 2, 2, 1, 0}}, {6, {0, 1, 0, 1, 0, 1}}, {8, {0, 1, 2, 3, 3, 2, 1, 0}}};
    int n = 0, best = 0;
    double worst = 1;
    for (uint64_t key = 0; key < 40; key++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            ArenaMark mark = arena_mark(&b->arena);
            PartitionRequest request = {.n_stages = rows[i].n_stages,
                                        .rank_of_stage = rows[i].rank_of_stage,
                                        .cost = random_cost(b, key, 8 + (int64_t)(key % 7))};
            double ratio = against_best(&request, b);
            n++;
            best += ratio < 1 + 1e-9;
            worst = fmax(worst, ratio);
            arena_rewind(&b->arena, mark);
        }
    print_message("%d of %d are the best possible, the worst is %.3f of it\n", best, n, worst);
    assert_true(best >= n * 9 / 10 && worst < 1.1);
}

static void partition__equal_layers_are_dealt_evenly(void **state)
{
    Bench *b = *state;
    ModelConfig *c;
    /* a head that costs next to nothing */
    assert_ok(config_of(&c, &b->arena, MOE_JSON,
                        "{\"num_hidden_layers\": 48, \"vocab_size\": 1, \"mlp_only_layers\": []}",
                        NULL));
    LayerRange range[48];
    PartitionRequest request = {.cost = {c, 100, DTYPE_F32, 0}};
    for (int n_stages = 1; n_stages <= 48; n_stages++) {
        request.n_stages = n_stages;
        assert_ok(partition_layers(range, &request, &b->arena));
        check_ranges(range, n_stages, 48);
        int64_t most = 0;
        for (int s = 0; s < n_stages; s++) most = range[s].n > most ? range[s].n : most;
        /* the ends may cost the others a layer */
        assert_true(most <= (48 + n_stages - 1) / n_stages + (n_stages > 1));
    }
    /* a head as costly as four layers: the last stage has fewer */
    double layer = stage_cost_sum(range_cost(&request.cost, (LayerRange){.n = 1}));
    while (stage_cost_sum(range_cost(&request.cost, (LayerRange){.has_head = true})) < 4 * layer)
        c->vocab++;
    request.n_stages = 4;
    assert_ok(partition_layers(range, &request, &b->arena));
    assert_int_equal(range[3].n, 9);
    assert_int_equal(range[0].n + range[1].n + range[2].n, 39);
    /* In a V the head's rank has the first stage too: the two together have fewer. */
    request.rank_of_stage = (const int[]){0, 1, 1, 0};
    assert_ok(partition_layers(range, &request, &b->arena));
    assert_int_equal(range[0].n + range[3].n, 22);
}

static void partition__explicit_split(void **state)
{
    Bench *b = *state;
    ModelConfig *c;
    assert_ok(config_of(&c, &b->arena, MOE_JSON, "{\"num_hidden_layers\": 7}", NULL));
    LayerRange range[8];
    CostModel cost = {.config = c, .row_tokens = 100};
    assert_ok(partition_layers(range, &(PartitionRequest){3, NULL, (int64_t[]){1, 5, 1}, cost},
                               &b->arena));
    check_ranges(range, 3, 7);
    assert_int_equal(range[1].n, 5);
    static const struct {
        int n;
        int64_t split[8];
        const char *key, *number;
    } rows[] = {
        {3, {1, 5, 2}, "parallel.layer_split", "sum to 8"},
        {3, {1, 5, 0}, "parallel.layer_split", "entry 3 is 0"},
        {3, {-1, 5, 3}, "parallel.layer_split", "entry 1 is -1"},
        {2, {3, 3}, "parallel.layer_split", "expected num_hidden_layers 7"},
        {8, {1, 1, 1, 1, 1, 1, 1, 0}, "parallel.pp_size", "8 stages for 7 layers"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_fails(partition_layers(range,
                                      &(PartitionRequest){rows[i].n, NULL, rows[i].split, cost},
                                      &b->arena),
                     ERR_USAGE, rows[i].key);
        assert_fails(ERR_USAGE, ERR_USAGE, rows[i].number);
    }
    assert_fails(partition_layers(range, &(PartitionRequest){8, NULL, NULL, cost}, &b->arena),
                 ERR_USAGE, "pp_size");
}

static void assert_near(double got, double want)
{
    if (fabs(got - want) > 1e-9 * want) fail_msg("found %.17g, expected %.17g", got, want);
}

/* By hand, for the sizes of MOE_JSON: D 16, H 4, G 2, C 8, F 24 (dense) and 12, E 4, K 2, V 50. */
static void partition__costs_by_hand(void **state)
{
    Bench *b = *state;
    ModelConfig *c;
    assert_ok(config_of(&c, &b->arena, MOE_JSON, NULL, NULL));
    const double attention = 16 * 8 * (4 + 2 + 2 + 4), dense = 3 * 16 * 24,
                 moe = 2 * 3 * 16 * 12 + 16 * 4;
    /* f32, T 10: 10 flops a byte. Of 4 experts with 2 a token, 10 tokens meet 4 (1 - 2^-10). */
    CostModel m = {c, 10, DTYPE_F32, 0};
    const double attend = 2 * 10 * 10 * 32, moved = 2 * 16 + 2 * 32 + 2 * 16 + 6 * 16;
    const double dense_bytes = attention + dense + 10 * (moved + 2 * 16 + 6 * 24);
    const double moe_weights = attention + 3 * 16 * 12 * 4 * (1 - 1.0 / 1024) + 16 * 4;
    const double moe_moved = 10 * (moved + 2 * (4 * 16 + 6 * 12));
    StageCost cost = range_cost(&m, (LayerRange){.first = 1, .n = 1});
    assert_near(cost.f, 20 * (attention + dense) + attend + 40 * dense_bytes);
    cost = range_cost(&m, (LayerRange){.first = 0, .n = 1});
    assert_near(cost.i, 20 * (attention + moe) + 2.5 * attend + 40 * (moe_weights + 2 * moe_moved));
    assert_near(cost.w, 20 * (attention + moe) + 40 * moe_moved + 80 * moe_weights);
    cost = range_cost(&m, (LayerRange){.has_head = true});
    assert_near(cost.f, 6 * 10 * 50 * 16 + 10 * (50 * 16 * 16 + 10 * 50 * 16 + 10 * 16 * 12));
    cost = range_cost(&m, (LayerRange){.has_embedding = true});
    assert_near(cost.f + cost.w, 10 * 10 * 16 * (8 + 12));
    /* Half as many bytes, each four times as dear; recomputed: F once more in I. */
    StageCost once = range_cost(&m, (LayerRange){.n = 1});
    m.recompute_ratio = 1;
    assert_near(range_cost(&m, (LayerRange){.n = 1}).i, once.i + once.f);
    m.dtype = DTYPE_BF16;
    assert_near(range_cost(&m, (LayerRange){.first = 1, .n = 1}).f,
                20 * (attention + dense) + attend + 80 * dense_bytes);
    assert_true(active_matrix_params(c) == 16 * 50 + 4 * attention + dense + 3 * moe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(partition__each_layer_once_and_the_busiest_rank_is_as_fast_as_can_be),
        BENCH_TEST(partition__stages_of_one_rank_count_together),
        BENCH_TEST(partition__equal_layers_are_dealt_evenly),
        BENCH_TEST(partition__explicit_split),
        BENCH_TEST(partition__costs_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
