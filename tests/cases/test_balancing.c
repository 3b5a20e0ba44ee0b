// The balancing loss on every schedule: with stages without experts, in either form, with gradients worked out by hand.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/cases.h"

#include <math.h>

/* ---- stages without experts ---------------------------------------------------------------- */

static void experts__stages_may_have_none(void **state)
{
    (void)state;
    static const struct {
        Fixture fixture;
        int pp, n_moe;
    } rows[] = {
        {{.kind = FIXTURE_DENSE_FIRST}, 2, 2},
        {{.kind = FIXTURE_MOE, .mlp_only = 1u << 2 | 1u << 3}, 2, 2},
        {{.kind = FIXTURE_MOE, .mlp_only = 1u << 1 | 1u << 2}, 4, 2},
        {{.kind = FIXTURE_DENSE}, 4, 0},
        {{.kind = FIXTURE_MOE, .n_layers = 8, .mlp_only = 0x3c}, 4, 4},
    };
    const char *const sets[] = {"loss.balancing_alpha=0.01", NULL};
    int failed = 0;
    unsigned n = 0;
    for (size_t r = 0; r < COUNT(rows); r++) {
        char *folder = case_folder(&rows[r].fixture, FIXTURE_EQ, 1);
        int n_layers = rows[r].fixture.n_layers ? rows[r].fixture.n_layers : 4;
        const Trial trial = {folder, "rows.jsonl", n_layers, 8, 3, sets};
        assert_true(train(&trial, "plain", &one_rank));
        json_t *metrics = read_metrics(path_in(folder, "plain/metrics.jsonl"));
        assert_int_equal(json_array_size(metrics), 3);
        for (size_t step = 0; step < 3; step++) {
            const json_t *line = json_array_get(metrics, step);
            if (rows[r].n_moe == 0) {
                assert_true(json_is_null(json_object_get(line, "loss/balancing")));
                assert_true(json_is_null(json_object_get(line, "router/max_violation")));
            } else { /* nearly even routing: alpha per MoE layer */
                double balancing = number(line, "loss/balancing"), even = 0.01 * rows[r].n_moe;
                assert_true(balancing >= even * 0.99 && balancing < even * 1.3);
            }
        }
        json_decref(metrics);
        Layout layout;
        for (size_t i = 0; schedule_layout(&layout, rows[r].pp, i); i++)
            if (!left_out(&n)) failed += !trains_as(&trial, "plain", &layout);
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* ---- the size of the loss ------------------------------------------------------------------ */

static void balancing__does_not_grow_with_the_pipeline(void **state)
{
    (void)state;
    static const struct {
        const char *form;
        double even; /* routing: 0.01 for each of 8 layers; 0.01 for each of K experts */
    } rows[] = {{"loss.balancing_form=per_layer", 0.08}, {"loss.balancing_form=hf", 0.02}};
    char *folder = case_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = 8}, FIXTURE_EQ, 1);
    int failed = 0;
    unsigned n = 0;
    for (size_t r = 0; r < COUNT(rows); r++) {
        const char *const sets[] = {"loss.balancing_alpha=0.01", rows[r].form, NULL};
        const Trial trial = {folder, "rows.jsonl", 8, 8, 1, sets};
        assert_true(probe(&trial, "plain", &one_rank));
        Layout layout;
        for (int pp = 2; pp <= 4; pp += 2)
            for (size_t i = 0; schedule_layout(&layout, pp, i); i++)
                if (!left_out(&n)) failed += !probes_as(&trial, "plain", &layout);
        json_t *losses = read_json(path_in(folder, "plain/losses.json"));
        double balancing = number(losses, "balancing"), raw = number(losses, "balancing_raw");
        assert_true(balancing > rows[r].even && balancing < 1.25 * rows[r].even);
        assert_true(fabs(balancing - 0.01 * raw) <= 1e-15);
        assert_true(number(losses, "total") ==
                    number(losses, "ce") + balancing + number(losses, "z"));
        json_decref(losses);
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/*
 * FIXTURE_ROUTER (closeness.h): 1.564 per layer. All four layers together: f and P are the same, E·sum_e f_e·P_e is half of
 * four times that, and so is each gradient.
 */
static int router_fixture(const char *folder, const char *form, double share)
{
    int failed = 0;
    unsigned n = 0;
    const Trial low = {folder, "rows.jsonl",
                       4,      8,
                       1,      (const char *const[]){"loss.balancing_alpha=0.01", form, NULL}};
    const Trial high = {folder, "rows.jsonl",
                        4,      8,
                        1,      (const char *const[]){"loss.balancing_alpha=0.1", form, NULL}};
    assert_true(probe(&low, "low", &one_rank));
    assert_true(probe(&high, "high", &one_rank));
    json_t *losses = read_json(path_in(folder, "low/losses.json"));
    double balancing = share * 0.06256;
    assert_true(fabs(number(losses, "balancing") - balancing) <= 1e-3 * balancing);
    json_t *counts = json_object_get(losses, "tokens_per_expert"), *count;
    const char *layer;
    json_object_foreach(counts, layer, count)
    {
        json_t *expected = json_pack("[i,i,i,i]", 264, 264, 0, 0);
        assert_true(json_equal(count, expected));
        json_decref(expected);
    }
    json_decref(losses);
    TensorFile grads = read_grads(folder, "high");
    failed += !close_router_fixture(&grads, share);
    tensor_file_free(&grads);
    Layout layout;
    for (size_t i = 0; schedule_layout(&layout, 2, i); i++)
        if (!left_out(&n))
            failed += !probes_as(&low, "low", &layout) + !probes_as(&high, "high", &layout);
    return failed;
}

static void balancing__router_fixture_gives_the_numbers_worked_out_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *form;
        double share;
    } rows[] = {{"loss.balancing_form=per_layer", 1}, {"loss.balancing_form=hf", 0.5}};
    int failed = 0;
    char *folder = case_folder(&(Fixture){.kind = FIXTURE_ROUTER}, FIXTURE_EQ, 1);
    for (size_t i = 0; i < COUNT(rows); i++)
        failed += router_fixture(folder, rows[i].form, rows[i].share);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts__stages_may_have_none),
        cmocka_unit_test(balancing__does_not_grow_with_the_pipeline),
        cmocka_unit_test(balancing__router_fixture_gives_the_numbers_worked_out_by_hand),
    };
    return cmocka_run_group_tests_name("cases/balancing", tests, NULL, NULL);
}
