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

static double most_expensive(const ModelConfig *c, const int64_t *count, int n_stages, int64_t row)
{
    double worst = 0;
    int64_t layer = 0;
    for (int s = 0; s < n_stages; s++) {
        double cost = s == n_stages - 1 ? head_flops(c) : 0;
        for (int64_t i = 0; i < count[s]; i++) cost += layer_flops(c, layer++, row);
        worst = fmax(worst, cost);
    }
    return worst;
}

/* The least possible maximum, by trying every way to cut. */
static double best_of_all(const ModelConfig *c, int64_t *count, int stage, int n_stages,
                          int64_t left, int64_t row)
{
    if (stage == n_stages - 1) {
        count[stage] = left;
        return most_expensive(c, count, n_stages, row);
    }
    double best = INFINITY;
    for (int64_t n = 1; n <= left - (n_stages - 1 - stage); n++) {
        count[stage] = n;
        best = fmin(best, best_of_all(c, count, stage + 1, n_stages, left - n, row));
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

static void partition__each_layer_once_and_the_slowest_stage_is_as_fast_as_can_be(void **state)
{
    Bench *b = *state;
    for (uint64_t key = 0; key < 60; key++) {
        ArenaMark mark = arena_mark(&b->arena);
        int64_t n_layers = (int64_t)(rng_bits(key, 2) % 9) + 1,
                row = (int64_t)(rng_bits(key, 3) % 4000) + 1;
        const ModelConfig *c = random_model(b, key, n_layers);
        for (int n_stages = 1; n_stages <= n_layers; n_stages++) {
            LayerRange range[9];
            int64_t got[9], any[9];
            size_t used = b->arena.used;
            assert_ok(partition_layers(range, n_stages, NULL, c, row, &b->arena));
            assert_int_equal(b->arena.used, used);
            check_ranges(range, n_stages, n_layers);
            for (int s = 0; s < n_stages; s++) got[s] = range[s].n;
            double ours = most_expensive(c, got, n_stages, row),
                   best = best_of_all(c, any, 0, n_stages, n_layers, row);
            /* Prefix sums are subtracted: the last digits differ. */
            if (ours > best * (1 + 1e-12))
                fail_msg("model %d, %d stages: worst stage %g, possible %g", (int)key, n_stages,
                         ours, best);
        }
        arena_rewind(&b->arena, mark);
    }
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
    for (int n_stages = 1; n_stages <= 48; n_stages++) {
        assert_ok(partition_layers(range, n_stages, NULL, c, 100, &b->arena));
        check_ranges(range, n_stages, 48);
        int64_t most = 0;
        for (int s = 0; s < n_stages; s++) most = range[s].n > most ? range[s].n : most;
        /* the head may cost the last stage a layer, never another one */
        assert_true(most <= (48 + n_stages - 1) / n_stages + (n_stages > 1));
    }
    /* a head as costly as four layers: the last stage has fewer */
    c->vocab = (int64_t)(4 * layer_flops(c, 0, 100) / (2.0 * 16));
    assert_ok(partition_layers(range, 4, NULL, c, 100, &b->arena));
    assert_int_equal(range[3].n, 9);
    assert_int_equal(range[0].n + range[1].n + range[2].n, 39);
}

static void partition__explicit_split(void **state)
{
    Bench *b = *state;
    ModelConfig *c;
    assert_ok(config_of(&c, &b->arena, MOE_JSON, "{\"num_hidden_layers\": 7}", NULL));
    LayerRange range[8];
    assert_ok(partition_layers(range, 3, (int64_t[]){1, 5, 1}, c, 100, &b->arena));
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
        assert_fails(partition_layers(range, rows[i].n, rows[i].split, c, 100, &b->arena),
                     ERR_USAGE, rows[i].key);
        assert_fails(ERR_USAGE, ERR_USAGE, rows[i].number);
    }
    assert_fails(partition_layers(range, 8, NULL, c, 100, &b->arena), ERR_USAGE, "pp_size");
}

/* By hand, for the sizes of MOE_JSON: D 16, H 4, G 2, C 8, F 24 (dense) and 12, E 4, K 2, V 50. */
static void partition__costs_by_hand(void **state)
{
    Bench *b = *state;
    ModelConfig *c;
    assert_ok(config_of(&c, &b->arena, MOE_JSON, NULL, NULL));
    const double attention = 16 * 8 * (4 + 2 + 2 + 4), dense = 3 * 16 * 24,
                 moe = 2 * 3 * 16 * 12 + 16 * 4;
    assert_true(layer_flops(c, 1, 100) == 2 * (attention + dense) + 2 * 100 * 32);
    assert_true(layer_flops(c, 0, 100) == 2 * (attention + moe) + 2 * 100 * 32);
    assert_true(head_flops(c) == 2 * 16 * 50);
    assert_true(active_matrix_params(c) == 16 * 50 + 4 * attention + dense + 3 * moe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(partition__each_layer_once_and_the_slowest_stage_is_as_fast_as_can_be),
        BENCH_TEST(partition__equal_layers_are_dealt_evenly),
        BENCH_TEST(partition__explicit_split),
        BENCH_TEST(partition__costs_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
