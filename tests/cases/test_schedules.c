/* Schedules from files and schedules that do not fit, asked for in a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/equality.h"

#define TORCH SW_SOURCE_DIR "/tests/pipeline/torch/"

static void schedules__from_files_leave_no_trace(void **state)
{
    (void)state;
    static const struct {
        Layout layout;
        int n_mb;
    } rows[] = {
        {{2, TORCH "zbv-p2-m4-v2.csv", 0.5, 1, NULL, 0}, 4},
        {{2, TORCH "zbv-p2-m4-v2-comms.csv", 0, 2, "[1,4,1,2]", 0}, 4},
        {{2, TORCH "interleaved-p2-m4-v2.csv", 0, 1, NULL, 2}, 4},
        {{3, TORCH "zero-bubble-p3-m6-v1-comms.csv", 1, 1, NULL, 0}, 6},
        {{3, TORCH "dualpipev-p3-m7-v2.csv", 0, 1, NULL, 0}, 7},
        {{4, TORCH "zbv-p4-m3-v2.csv", 0, 1, NULL, 0}, 3},
    };
    char *folder = equality_folder();
    fixture_write_model(path_in(folder, "eight"), &(Fixture){.n_layers = 8, .tied = true});
    Point points[COUNT(rows)];
    for (size_t i = 0; i < COUNT(rows); i++) {
        points[i] = equality_point("eight", rows[i].n_mb, &rows[i].layout);
        equality_write_rows(path_in(folder, "batch-%d.jsonl", rows[i].n_mb), rows[i].n_mb);
    }
    int failed = points_check(folder, points, COUNT(rows));
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static Arguments training(const char *folder, const Layout *layout, int n_mb)
{
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "model.path=%s/moe", folder);
    add_set(&args, "train.output=%s/run", folder);
    add_set(&args, "train.global_batch_size=%d", n_mb);
    add_layout(&args, layout);
    return args;
}

/* One line of warning, then as any other run. */
static void schedules__in_descending_order_run_after_a_warning(void **state)
{
    (void)state;
    char *folder = equality_folder();
    Arguments args =
        training(folder, &(Layout){2, TORCH "looped-bfs-p2-m4-v2.csv", 0, 1, NULL, 0}, 4);
    assert_true(program_ends(&args, folder, 0));
    char *text = read_text(path_in(folder, "err.txt"), NULL);
    const char *warning = strstr(text, "not in ascending order");
    assert_non_null(warning);
    assert_null(strstr(warning + 1, "not in ascending order"));
    free(text);
    folder_remove(folder);
}

static void schedules__that_do_not_fit_are_refused_before_the_start(void **state)
{
    (void)state;
    // clang-format off
    static const struct {
        Layout layout;
        int n_mb;
        const char *words[5];
    } rows[] = {
        {{4, TORCH "zbv-p2-m4-v2.csv", 0, 1, NULL, 0}, 4, {"parallel.schedule", "pp_size 2", "asked for 4", NULL}},
        {{2, TORCH "zbv-p2-m4-v2.csv", 0, 1, NULL, 0}, 6, {"microbatches 4", "asked for 6", "train.global_batch_size", NULL}},
        {{2, TORCH "zbv-p2-m4-v2.csv", 0, 1, NULL, 1}, 4, {"4 stages on 2 ranks", "num_virtual_stages 1", NULL}},
        {{2, TORCH "zbv-p2-m4-v2.csv", 0, 1, "[2,2]", 0}, 4, {"parallel.layer_split", "found 2 counts", "expected 4", NULL}},
        {{4, TORCH "1f1b-p4-m6-v1.csv", 0, 1, NULL, 0}, 7, {"1f1b-p4-m6-v1.csv", "0F6 is missing", NULL}},
        {{3, TORCH "none.csv", 0, 1, NULL, 0}, 4, {"none.csv", "cannot open", NULL}},
        {{2, "dualpipev", 0, 1, NULL, 0}, 3, {"parallel.schedule", "dualpipev", "found 3", "4 = 2 x pp_size 2", NULL}},
        {{2, "zbv", 0, 1, NULL, 1}, 4, {"parallel.num_virtual_stages", "zbv", "found 1", NULL}},
        {{2, "1f1b", 0, 1, NULL, 2}, 4, {"parallel.num_virtual_stages", "1f1b", "found 2", NULL}},
        {{2, "interleaved", 0, 1, NULL, 3}, 4, {"pp_size", "6 stages", "4 layers", NULL}},
        {{2, "interleaved", 0, 1, "[2,2]", 0}, 4, {"parallel.layer_split", "found 2 counts", "expected 4", NULL}},
    };
    // clang-format on
    char *folder = equality_folder();
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        Arguments args = training(folder, &rows[i].layout, rows[i].n_mb);
        bool ok = program_refuses(&args, folder, rows[i].words);
        failed += !ok || path_exists(path_in(folder, "run"));
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules__from_files_leave_no_trace),
        cmocka_unit_test(schedules__in_descending_order_run_after_a_warning),
        cmocka_unit_test(schedules__that_do_not_fit_are_refused_before_the_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
