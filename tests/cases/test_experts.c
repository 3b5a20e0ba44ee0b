// Experts shared out over ranks: what goes in and comes out, and experts that get nothing; results test_layouts.c has.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/spread.h"

// clang-format off
static const Point spreads[] = {
    SPREAD(2, 1, 0, {1, "1f1b", 0, 1, NULL, 0}),  SPREAD(4, 1, 1, {2, "zb_h1", 0, 1, NULL, 0}),
    SPREAD(2, 2, 0, {1, "1f1b", 0, 1, NULL, 0}),  SPREAD(4, 4, 1, {1, "1f1b", 0, 2, NULL, 0}),
    SPREAD(8, 4, 1, {1, "1f1b", 0, 1, NULL, 0}),  SPREAD(2, 2, 1, {2, "zbv", 0, 1, NULL, 0}),
    SPREAD(4, 2, 0, {2, "1f1b", 0, 1, NULL, 0}),  SPREAD(2, 2, 0, {2, "interleaved", 0, 1, NULL, 2}),
    SPREAD(2, 2, 0, {4, "gpipe", 0, 1, NULL, 0}),
};
// clang-format on

/* ---- what experts get ---------------------------------------------------------------------- */

/* The balancing loss over the rows of all ranks depends on dp, and on nothing else. */
static void experts__balancing_over_ranks_does_not_depend_on_ep(void **state)
{
    (void)state;
    static const Point without = SPREAD(4, 1, 0, {1, "1f1b", 0, 1, NULL, 0});
    static const Point with[] = {SPREAD(4, 2, 0, {1, "1f1b", 0.5, 1, NULL, 0}),
                                 SPREAD(4, 4, 1, {2, "zbv", 0, 1, NULL, 0})};
    const char *const sets[] = {"loss.balancing_scope=global", NULL};
    int failed = 0;
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 8, 1);
    assert_true(probe(folder, "without", &without, sets));
    for (size_t i = 0; i < COUNT(with); i++) {
        bool ok = probe(folder, "with", &with[i], sets) &&
                  close_probe(folder, "with-probe", "without-probe");
        if (!ok) point_print(&with[i]);
        failed += !ok;
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Experts that get no token decay like all others: after a step with lr·wd = 0.5 half of them is left. */
static void experts__without_tokens_decay(void **state)
{
    (void)state;
    const char *const sets[] = {"optimizer.lr=1", "optimizer.weight_decay=0.5", "train.steps=1",
                                NULL};
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_ROUTER}, FIXTURE_EQ, 8, 1);
    assert_true(train(folder, "many", &spreads[3], sets));
    TensorFile after = read_folder(path_in(folder, "many-run/hf/final"));
    TensorFile before = read_folder(path_in(folder, "model"));
    const char *name = "model.layers.1.mlp.experts.3.gate_proj.weight";
    const FileTensor *w0 = tensor_file_find(&before, name), *w1 = tensor_file_find(&after, name);
    for (int64_t i = 0; i < w0->n; i++) assert_true(w1->value[i] == w0->value[i] / 2);
    tensor_file_free(&after);
    tensor_file_free(&before);
    folder_remove(folder);
}

/* ---- P22: nothing is lost on the way in and out -------------------------------------------- */

static void experts__come_out_as_they_went_in(void **state)
{
    (void)state;
    static const Fixture fixtures[] = {{.kind = FIXTURE_MOE, .n_shards = 3},
                                       {.kind = FIXTURE_MOE, .n_shards = 1, .fused = true},
                                       {.kind = FIXTURE_TIED, .dtype = FIXTURE_BF16}};
    const char *const sets[] = {"train.steps=0", NULL};
    int failed = 0;
    for (size_t f = 0; f < COUNT(fixtures); f++) {
        char *folder = spread_folder(&fixtures[f], FIXTURE_EQ, 8, 1);
        for (size_t i = 0; i < COUNT(spreads); i++) {
            char run[16];
            snprintf(run, sizeof run, "many%zu", i);
            bool ok =
                train(folder, run, &spreads[i], sets) &&
                same_tensors(path_in(folder, "%s-run/hf/final", run), path_in(folder, "model")) &&
                files_equal(path_in(folder, "%s-run/hf/final/config.json", run),
                            path_in(folder, "model/config.json"));
            if (!ok) point_print(&spreads[i]);
            failed += !ok;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* Random weights are those of seed, name and element wherever they are made. */
static void experts__random_weights_do_not_depend_on_ep(void **state)
{
    (void)state;
    const char *const sets[] = {"train.steps=0", "model.init=true", NULL};
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_EQ, 8, 1);
    assert_true(train(folder, "one", &one_rank, sets));
    assert_true(train(folder, "many", &spreads[4], sets));
    assert_true(
        same_weights(path_in(folder, "many-run/hf/final"), path_in(folder, "one-run/hf/final")));
    folder_remove(folder);
}

/* ---- what cannot be ------------------------------------------------------------------------ */

static void experts__that_cannot_be_shared_are_refused(void **state)
{
    (void)state;
    const struct {
        FixtureKind kind;
        Point spread;
        const char *const *words;
    } rows[] = {
        {FIXTURE_MOE, SPREAD(8, 8, 0, {1, "1f1b", 0, 1, NULL, 0}),
         WORDS("ep_size", "8", "4 experts")},
        {FIXTURE_MOE, SPREAD(4, 3, 0, {1, "1f1b", 0, 1, NULL, 0}),
         WORDS("ep_size", "3", "dp_size")},
        {FIXTURE_DENSE, SPREAD(2, 2, 0, {1, "1f1b", 0, 1, NULL, 0}),
         WORDS("ep_size", "2", "0 experts")},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder = spread_folder(&(Fixture){.kind = rows[i].kind}, FIXTURE_EQ, 8, 1);
        Arguments args = {0};
        arguments_add(&args, "train");
        point_train_arguments(&args, folder, "many", &rows[i].spread);
        assert_true(program_refuses(&args, folder, rows[i].words));
        folder_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts__balancing_over_ranks_does_not_depend_on_ep),
        cmocka_unit_test(experts__without_tokens_decay),
        cmocka_unit_test(experts__come_out_as_they_went_in),
        cmocka_unit_test(experts__random_weights_do_not_depend_on_ep),
        cmocka_unit_test(experts__that_cannot_be_shared_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
