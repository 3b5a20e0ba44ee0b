// Layers that do not divide by stages, and any number of microbatches, on every schedule.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/cases.h"

/* ---- layers that do not divide ------------------------------------------------------------- */

/* The numbers of a split such as (3+2) in the log of folder/other add up to n, and there are n_stages of them. */
static bool split_adds_up(const char *folder, int n, int n_stages)
{
    char *log = read_text(path_in(folder, "other/log.txt"), NULL);
    const char *at = strchr(strstr(log, " layers (") ? strstr(log, " layers (") : "", '(');
    int sum = 0, parts = 0;
    while (at && (*at == '(' || *at == '+')) {
        char *end;
        sum += (int)strtol(at + 1, &end, 10);
        at = end;
        parts++;
    }
    free(log);
    if (sum != n || parts != n_stages)
        fprintf(stderr, "  %d stages of %d layers in the log, expected %d of %d\n", parts, sum,
                n_stages, n);
    return sum == n && parts == n_stages;
}

static bool layers_run_once(const Trial *trial, const char *want, const Layout *layout)
{
    return trains_as(trial, want, layout) &&
           (refused_by(trial, layout) ||
            split_adds_up(trial->folder, trial->n_layers, layout->pp * layout->n_virtual));
}

/* Every schedule meets 2, 3 and 4 ranks, each with another depth and other numbers of microbatches. */
static void layers__each_runs_exactly_once(void **state)
{
    (void)state;
    static const int depths[] = {5, 7, 10};
    static const Layout splits[][2] = {
        {{2, "gpipe", 0, 1, "[4,1]", 1}, {3, "1f1b", 0, 1, "[1,1,3]", 1}},
        {{2, "gpipe", 0, 1, "[2,5]", 1}, {3, "1f1b", 0, 1, "[3,1,3]", 1}},
        {{2, "gpipe", 0, 1, "[9,1]", 1}, {3, "1f1b", 0, 1, "[2,6,2]", 1}},
    };
    enum { MOST_MB = 9 };
    const char *const sets[] = {"optimizer.lr=0", NULL};
    int failed = 0;
    unsigned n = 0;
    for (size_t d = 0; d < COUNT(depths); d++) {
        char *folder =
            case_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = depths[d]}, FIXTURE_EQ, 2);
        Trial trial = {folder, "rows.jsonl", depths[d], 1, 1, sets};
        char plain[MOST_MB + 1][20];
        for (trial.n_mb = 1; trial.n_mb <= MOST_MB; trial.n_mb++) {
            snprintf(plain[trial.n_mb], sizeof plain[0], "plain-%d", trial.n_mb);
            assert_true(train(&trial, plain[trial.n_mb], &one_rank));
        }
        assert_true(same_tensors(path_in(folder, "plain-1/hf/final"), path_in(folder, "model")));
        Layout layout;
        for (size_t i = 0; schedule_layout(&layout, 2 + (int)(d + i) % 3, i); i++) {
            trial.n_mb = 1 + (int)(d * 3 + i) % MOST_MB;
            if (!left_out(&n)) failed += !layers_run_once(&trial, plain[trial.n_mb], &layout);
        }
        for (size_t k = 0; k < COUNT(splits[d]); k++)
            failed += !layers_run_once(&trial, plain[trial.n_mb], &splits[d][k]);
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

static void layers__splits_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        int layers, pp;
        const char *split, *key, *number, *other;
    } rows[] = {
        {3, 4, "null", "parallel.pp_size", "4", "3"},
        {5, 2, "[2,2]", "parallel.layer_split", "4", "5"},
        {5, 2, "[3,3]", "parallel.layer_split", "6", "5"},
        {5, 3, "[2,3]", "parallel.layer_split", "2", "3"},
        {5, 2, "[2,2,1]", "parallel.layer_split", "3", "2"},
        {5, 2, "[5,0]", "parallel.layer_split", "0", "1"},
        {5, 2, "[6,-1]", "parallel.layer_split", "-1", "1"},
        {5, 2, "[]", "parallel.layer_split", "[]", "1"},
        {5, 1, "[4]", "parallel.layer_split", "4", "5"},
    };
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder =
            case_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = rows[i].layers}, FIXTURE_EQ, 1);
        const Trial trial = {folder, "rows.jsonl", rows[i].layers, 8, 1, NULL};
        Arguments args = {0};
        arguments_add(&args, "train");
        add_train(&args, &trial, "run", &(Layout){rows[i].pp, "1f1b", 0, 1, rows[i].split, 1});
        failed +=
            !program_refuses(&args, folder, WORDS(rows[i].key, rows[i].number, rows[i].other));
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* ---- fewer microbatches than stages, and more ---------------------------------------------- */

static void microbatches__any_number_runs(void **state)
{
    (void)state;
    char *folder = case_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = 8}, FIXTURE_EQ, 2);
    char *text = read_text(path_in(folder, "rows.jsonl"), NULL);
    int failed = 0;
    unsigned n = 0;
    for (int m = 1; m <= 11; m++) {
        char *end = text, kept;
        for (int line = 0; line < m; line++) end = strchr(end, '\n') + 1;
        kept = *end;
        *end = '\0';
        write_text(path_in(folder, "batch.jsonl"), text);
        *end = kept;
        const Trial trial = {folder, "batch.jsonl", 8, m, 1, NULL};
        assert_true(probe(&trial, "plain", &one_rank));
        Layout layout;
        for (size_t i = 0; schedule_layout(&layout, 4, i); i++)
            if (!left_out(&n)) failed += !probes_as(&trial, "plain", &layout);
    }
    free(text);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers__each_runs_exactly_once),
        cmocka_unit_test(layers__splits_that_cannot_be_are_refused),
        cmocka_unit_test(microbatches__any_number_runs),
    };
    return cmocka_run_group_tests_name("cases/layers", tests, NULL, NULL);
}
