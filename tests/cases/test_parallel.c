/*
 * Data parallelism: rows of all kinds shared out over ranks, and what a run of them says and leaves. That results are those
 * of one rank on every layout, test_layouts.c has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/spread.h"

/* ---- gradients ----------------------------------------------------------------------------- */

/* The mean is over the trained tokens of all rows, not over ranks: they have 2, 2, 60 and 4. */
static void parallel__the_mean_is_over_tokens_of_all_ranks(void **state)
{
    (void)state;
    static const Point spreads[] = {
        SPREAD(2, 1, 0, {1, "1f1b", 0, 1, NULL, 0}),  SPREAD(2, 2, 1, {2, "1f1b", 0, 1, NULL, 0}),
        SPREAD(4, 1, 1, {2, "gpipe", 0, 1, NULL, 0}), SPREAD(4, 2, 0, {1, "1f1b", 0, 1, NULL, 0}),
        SPREAD(4, 4, 1, {1, "1f1b", 0, 1, NULL, 0}),  SPREAD(1, 1, 0, {1, "1f1b", 0, 1, NULL, 0})};
    static const char *const sets[] = {"loss.balancing_alpha=0", NULL};
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_MASK, 4, 1);
    int failed = 0;
    for (size_t i = COUNT(spreads); i-- > 0;) { /* one rank first */
        Point p = spreads[i];
        p.n_mb = 4;
        bool ok = probe(folder, p.dp == 1 ? "one" : "many", &p, sets) &&
                  (p.dp == 1 || close_probe(folder, "many-probe", "one-probe"));
        if (!ok) point_print(&p);
        failed += !ok;
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void write_untrained(const char *path, int n_rows, int n_untrained)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < n_rows; i++) {
        int n = 3 + 4 * i;
        fprintf(file, "{\"input_ids\": [");
        for (int t = 0; t < n; t++)
            fprintf(file, "%s%d", t ? ", " : "", (7 * t * t + 31 * i) % 512);
        fprintf(file, "]");
        if (i < n_untrained) {
            fprintf(file, ", \"labels\": [");
            for (int t = 0; t < n; t++) fprintf(file, "%s-100", t ? ", " : "");
            fprintf(file, "]");
        }
        fprintf(file, "}\n");
    }
    fclose(file);
}

/* All rows of a rank, or of all ranks, hold nothing to learn. */
static void parallel__ranks_may_have_nothing_to_learn(void **state)
{
    (void)state;
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_EQ, 8, 1), rows[600],
         order[32];
    static const Point spreads[] = {SPREAD(4, 1, 1, {2, "1f1b", 0, 1, NULL, 0}),
                                    SPREAD(4, 2, 0, {1, "1f1b", 0, 1, NULL, 0}),
                                    SPREAD(4, 4, 1, {2, "zbv", 0, 1, NULL, 0})};
    snprintf(rows, sizeof rows, "data.train=[%s]", path_in(folder, "five.jsonl"));
    write_untrained(path_in(folder, "five.jsonl"), 5, 4);
    int seed = 0; /* of an order that has the trained row at its end */
    const char *const sets[] = {rows, order, "train.steps=1", "data.eval=[]", NULL};
    for (int untrained = 3; untrained <= 4; untrained++) {
        write_untrained(path_in(folder, "batch-4.jsonl"), 4, untrained);
        Point one = one_rank;
        one.n_mb = 4;
        assert_true(probe(folder, "one", &one, NULL));
        for (size_t i = 0; i < COUNT(spreads); i++) {
            Point p = spreads[i];
            p.n_mb = 4;
            assert_true(probe(folder, "many", &p, NULL));
            assert_true(close_probe(folder, "many-probe", "one-probe"));
            if (untrained < 4) continue;
            json_t *losses = read_losses(folder, "many-probe");
            assert_true(number(losses, "grad_norm") == 0);
            json_decref(losses);
            for (bool skipped = false; !skipped; seed += i == 0 && !skipped) {
                snprintf(order, sizeof order, "data.seed=%d", seed);
                assert_true(seed < 50 && train(folder, "many", &p, sets));
                json_t *metrics = read_metrics(path_in(folder, "many-run/metrics.jsonl"));
                skipped = number(json_array_get(metrics, 0), "skipped") == 1;
                assert_true(skipped || i == 0);
                json_decref(metrics);
                folder_remove(strdup(path_in(folder, "many-run")));
            }
        }
    }
    folder_remove(folder);
}

/* The `from` rows of a batch as `to`, so many to each, a sample each. */
static void pack_lines(const char *folder, int from, int to)
{
    FILE *in = fopen(path_in(folder, "batch-%d.jsonl", from), "r"),
         *out = fopen(path_in(folder, "batch-%d.jsonl", to), "w");
    assert_true(in && out);
    json_t *line, *ids = json_array(), *borders = json_pack("[i]", 0);
    while ((line = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL))) {
        json_array_extend(ids, json_object_get(line, "input_ids"));
        json_array_append_new(borders, json_integer((json_int_t)json_array_size(ids)));
        json_decref(line);
        if ((int)json_array_size(borders) <= from / to) continue;
        line = json_pack("{so so}", "input_ids", ids, "cu_seqlens", borders);
        json_dumpf(line, out, JSON_COMPACT);
        fputc('\n', out);
        json_decref(line);
        ids = json_array();
        borders = json_pack("[i]", 0);
    }
    json_decref(ids);
    json_decref(borders);
    fclose(in);
    fclose(out);
}

/* Counted together, the rows of dp ranks are balanced as one row that holds them all. */
static void parallel__balancing_of_scope_global_is_that_of_packed_rows(void **state)
{
    (void)state;
    static const char *const forms[] = {"loss.balancing_form=per_layer", "loss.balancing_form=hf"};
    static const Point layouts[] = {SPREAD(0, 1, 0, {1, "1f1b", 0, 1, NULL, 0}),
                                    SPREAD(0, 1, 1, {2, "zbv", 0.5, 2, NULL, 0}),
                                    SPREAD(0, 1, 0, {4, "gpipe", 1, 1, NULL, 0})};
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 8, 1);
    int failed = 0;
    for (int dp = 2; dp <= 4; dp *= 2)
        for (size_t f = 0; f < COUNT(forms); f++) {
            const char *const sets[] = {"loss.balancing_alpha=0.1", "loss.balancing_scope=global",
                                        forms[f], NULL};
            pack_lines(folder, 8, 8 / dp);
            Point packed = one_rank;
            packed.n_mb = 8 / dp;
            assert_true(probe(folder, "packed", &packed, sets));
            for (size_t i = 0; i < COUNT(layouts); i++) {
                Point p = layouts[i];
                p.dp = dp;
                char out[32];
                snprintf(out, sizeof out, "scope%zu", i);
                bool ok = probe(folder, out, &p, sets);
                ok = ok && (i == 0 ? close_probe(folder, "scope0-probe", "packed-probe")
                                   : equality_compare_probes(folder, out, "scope0"));
                if (!ok) point_print(&p);
                failed += !ok;
            }
            /* and another number than that of each row by itself */
            const char *const by_row[] = {"loss.balancing_alpha=0.1", forms[f], NULL};
            assert_true(probe(folder, "row", &one_rank, by_row));
            json_t *row = read_losses(folder, "row-probe"),
                   *all = read_losses(folder, "packed-probe");
            double apart = number(row, "balancing") / number(all, "balancing") - 1;
            if (fabs(apart) < 1e-5) fail_msg("dp %d: off by %g only", dp, apart);
            json_decref(row);
            json_decref(all);
        }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* What a row gives forward depends on no other. */
static void parallel__logits_are_those_of_one_rank(void **state)
{
    (void)state;
    static const Point spreads[] = {SPREAD(2, 1, 0, {2, "zbv", 0, 1, NULL, 0}),
                                    SPREAD(4, 1, 1, {1, "gpipe", 0, 2, NULL, 0}),
                                    SPREAD(8, 1, 0, {1, "1f1b", 0, 1, NULL, 0})};
    static const char *const sets[] = {"--logits", NULL};
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_TIED}, FIXTURE_VAR, 8, 1);
    assert_true(probe(folder, "one", &one_rank, sets));
    for (size_t i = 0; i < COUNT(spreads); i++) {
        assert_true(probe(folder, "many", &spreads[i], sets));
        assert_true(same_safetensors(path_in(folder, "many-probe/logits.safetensors"),
                                     path_in(folder, "one-probe/logits.safetensors")));
    }
    folder_remove(folder);
}

/* ---- runs ---------------------------------------------------------------------------------- */

/* What the points of test_layouts.c leave out. */
static void parallel__other_updates_are_the_same_bits(void **state)
{
    (void)state;
    static const Point spreads[] = {
        SPREAD(2, 2, 0, {1, "1f1b", 0, 1, NULL, 0}), SPREAD(2, 2, 1, {1, "1f1b", 0, 2, NULL, 0}),
        SPREAD(2, 2, 1, {2, "zbv", 0.5, 1, NULL, 0}), SPREAD(2, 2, 0, {4, "gpipe", 1, 1, NULL, 0})};
    static const char *const variants[][4] = {
        {"model.dtype=bf16", "optimizer.decay_1d=false", NULL},
        {"optimizer.type=sgd", "optimizer.lr=0.5",
         "optimizer.groups=[{match: 'model.layers.1.*', trainable: false}]", NULL},
    };
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_TIED}, FIXTURE_VAR, 8, 2);
    int failed = 0;
    for (size_t v = 0; v < COUNT(variants); v++)
        for (size_t i = 0; i < COUNT(spreads); i++) {
            char out[32], first[32];
            snprintf(out, sizeof out, "v%zu-%zu", v, i);
            snprintf(first, sizeof first, "v%zu-0", v);
            bool ok = train(folder, out, &spreads[i], variants[v]) &&
                      (i == 0 || same_runs(folder, out, first, 5));
            if (!ok) point_print(&spreads[i]);
            failed += !ok;
        }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void parallel__two_runs_are_the_same(void **state)
{
    (void)state;
    static const Point spreads[] = {SPREAD(4, 1, 1, {2, "1f1b", 0, 1, NULL, 0}),
                                    SPREAD(4, 4, 0, {1, "gpipe", 0.5, 2, NULL, 0}),
                                    SPREAD(4, 2, 1, {2, "interleaved", 0, 1, NULL, 2})};
    static const char *const sets[] = {"train.steps=20", "optimizer.lr=0.01", NULL};
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 8, 2);
    for (size_t i = 0; i < COUNT(spreads); i++) {
        char a[32], b[32];
        snprintf(a, sizeof a, "a%zu", i);
        snprintf(b, sizeof b, "b%zu", i);
        assert_true(train(folder, a, &spreads[i], sets));
        assert_true(train(folder, b, &spreads[i], sets));
        assert_true(same_runs(folder, b, a, 20));
    }
    folder_remove(folder);
}

/* Tokens are counted once, by whichever ranks they are computed; each rank says what memory it took. */
static void parallel__a_step_is_told_once(void **state)
{
    (void)state;
    static const Point many = SPREAD(4, 2, 1, {2, "1f1b", 0, 1, NULL, 0});
    static const char *const counts[] = {"step", "tokens", "trained_tokens", "epoch", "lr"};
    static const Bound first[] = {{"loss/total", 1e-6},
                                  {"loss/balancing", 1e-6},
                                  {"grad_norm", 1e-6},
                                  {"router/max_violation", 1e-6},
                                  {"loss/z", 1e-6}};
    static const Bound evaluated[] = {{"eval/loss", 1e-6}};
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 8, 2);
    assert_true(train(folder, "one", &one_rank, NULL));
    assert_true(train(folder, "many", &many, NULL));
    json_t *want = read_metrics(path_in(folder, "one-run/metrics.jsonl")),
           *got = read_metrics(path_in(folder, "many-run/metrics.jsonl"));
    assert_int_equal(json_array_size(got), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *line = json_array_get(got, i), *wanted = json_array_get(want, i);
        for (size_t k = 0; k < COUNT(counts); k++)
            if (!json_equal(json_object_get(line, counts[k]), json_object_get(wanted, counts[k])))
                fail_msg("step %zu: other %s", i + 1, counts[k]);
        assert_int_equal(json_array_size(json_object_get(line, "memory/peak_bytes")), 8);
        if (!json_is_null(json_object_get(wanted, "eval/loss")))
            assert_true(close_numbers(line, wanted, evaluated, COUNT(evaluated)));
    }
    assert_true(
        close_numbers(json_array_get(got, 0), json_array_get(want, 0), first, COUNT(first)));
    json_decref(want);
    json_decref(got);
    folder_remove(folder);
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void parallel__rows_must_divide_among_ranks(void **state)
{
    (void)state;
    char *folder = spread_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_EQ, 8, 1);
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "model.path=%s/model", folder);
    add_set(&args, "train.output=%s/run", folder);
    add_set(&args, "parallel.dp_size=3");
    assert_true(program_refuses(
        &args, folder, WORDS("train.global_batch_size", "parallel.dp_size (found 8 and 3)")));
    arguments_add(&args, "probe");
    arguments_add(&args, "%s/model", folder);
    arguments_add(&args, "--batch");
    arguments_add(&args, "%s/batch-8.jsonl", folder);
    arguments_add(&args, "--out");
    arguments_add(&args, "%s/out", folder);
    add_set(&args, "parallel.dp_size=5");
    assert_true(
        program_refuses(&args, folder, WORDS("batch-8.jsonl", "parallel.dp_size (found 8 and 5)")));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parallel__the_mean_is_over_tokens_of_all_ranks),
        cmocka_unit_test(parallel__ranks_may_have_nothing_to_learn),
        cmocka_unit_test(parallel__balancing_of_scope_global_is_that_of_packed_rows),
        cmocka_unit_test(parallel__logits_are_those_of_one_rank),
        cmocka_unit_test(parallel__other_updates_are_the_same_bits),
        cmocka_unit_test(parallel__two_runs_are_the_same),
        cmocka_unit_test(parallel__a_step_is_told_once),
        cmocka_unit_test(parallel__rows_must_divide_among_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
