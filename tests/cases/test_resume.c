/* Stopping and going on: a resumed run is the uninterrupted one, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/resume.h"

/* ---- the same numbers ---------------------------------------------------------------------- */

static void resume__equals_the_uninterrupted_run(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        Fixture fixture;
        const char *set; /* NULL: none */
        Layout before, after;
        // clang-format off
    } rows[] = {
        {"moe", {.kind = FIXTURE_MOE}, NULL, {2, "1f1b", 0, 1, NULL, 0}, {1, "1f1b", 0, 1, NULL, 0}},
        {"moe", {.kind = FIXTURE_MOE}, NULL, {1, "gpipe", 1, 2, NULL, 0}, {4, "1f1b", 0, 1, NULL, 0}},
        {"moe", {.kind = FIXTURE_MOE}, NULL, {3, "1f1b", 0.5, 1, NULL, 0}, {2, "gpipe", 0, 2, "[1,3]", 0}},
        {"tied", {.kind = FIXTURE_TIED}, NULL, {1, "1f1b", 0, 1, NULL, 0}, {3, "1f1b", 1, 1, NULL, 0}},
        {"tied", {.kind = FIXTURE_TIED}, NULL, {4, "gpipe", 0, 1, NULL, 0}, {1, "1f1b", 0.5, 2, NULL, 0}},
        {"dense first", {.kind = FIXTURE_DENSE_FIRST}, NULL, {2, "1f1b", 0, 1, NULL, 0}, {3, "gpipe", 0, 1, NULL, 0}},
        {"fused", {.kind = FIXTURE_MOE, .fused = true}, NULL, {2, "1f1b", 0, 1, NULL, 0}, {4, "1f1b", 0, 1, NULL, 0}},
        {"bf16 source", {.kind = FIXTURE_MOE, .dtype = FIXTURE_BF16}, NULL, {1, "1f1b", 0, 1, NULL, 0}, {2, "1f1b", 0, 1, NULL, 0}},
        {"bf16", {.kind = FIXTURE_TIED}, "model.dtype=bf16", {3, "1f1b", 0, 1, NULL, 0}, {1, "gpipe", 1, 2, NULL, 0}},
        {"sgd", {.kind = FIXTURE_MOE}, "optimizer.type=sgd", {2, "1f1b", 0, 1, NULL, 0}, {1, "1f1b", 0, 1, NULL, 0}},
        {"frozen", {.kind = FIXTURE_TIED}, "optimizer.groups=[{match: '*experts*', trainable: false}]", {2, "1f1b", 0, 1, NULL, 0}, {3, "1f1b", 0, 1, NULL, 0}},
        {"random", {.kind = FIXTURE_MOE}, "model.init=true", {2, "1f1b", 0, 1, NULL, 0}, {1, "1f1b", 0, 1, NULL, 0}},
    };
    // clang-format on
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder = make_folder(&rows[i].fixture);
        bool ok = run_steps(folder, "whole", 6, NULL, false, rows[i].set) &&
                  run_steps(folder, "parts", 3, &rows[i].before, false, rows[i].set) &&
                  run_steps(folder, "parts", 6, &rows[i].after, true, rows[i].set) &&
                  same_run(path_in(folder, "parts"), path_in(folder, "whole"), 6);
        if (!ok) {
            print_layout(rows[i].name, &rows[i].before);
            print_layout("then", &rows[i].after);
        }
        failed += !ok;
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* A row without a trained label alone in its step: nothing may change, and the counts of updates and of
 * skipped steps go over the border. */
static void resume__counts_skipped_steps(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    write_text(path_in(folder, "rows.jsonl"),
               "{\"input_ids\": [5, 6, 7, 8, 9]}\n"
               "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n"
               "{\"input_ids\": [9, 17, 400, 3]}\n");
    const char *set = "train.global_batch_size=1";
    assert_true(run_steps(folder, "whole", 6, NULL, false, set));
    json_t *metrics = read_metrics(path_in(folder, "whole/metrics.jsonl"));
    for (size_t i = 0; i < 6; i++) {
        json_t *line = json_array_get(metrics, i);
        if (json_integer_value(json_object_get(line, "trained_tokens"))) continue;
        assert_true(json_real_value(json_object_get(line, "loss/ce")) == 0);
        assert_true(json_real_value(json_object_get(line, "loss/total")) == 0);
        assert_true(json_real_value(json_object_get(line, "grad_norm")) == 0);
        assert_true(json_number_value(json_object_get(line, "loss/balancing")) == 0);
    }
    json_t *last = json_array_get(metrics, 5);
    assert_int_equal(json_integer_value(json_object_get(last, "skipped")), 2); /* one an epoch */
    json_decref(metrics);
    for (int at = 1; at < 6; at++) {
        char name[16];
        snprintf(name, sizeof name, "at%d", at);
        assert_true(run_steps(folder, name, at, NULL, false, set));
        assert_true(run_steps(folder, name, 6, NULL, true, set));
        assert_true(same_run(path_in(folder, "%s", name), path_in(folder, "whole"), 6));
    }
    folder_remove(folder);
}

/* ---- a run that went further than its checkpoint ------------------------------------------- */

static void resume__cuts_the_metrics_back(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    assert_true(run_steps(folder, "whole", 6, NULL, false, "checkpoint.interval=2"));
    static const char *const tails[] = {"", "{\"step\": 6, \"epo", "\n"};
    for (size_t i = 0; i < COUNT(tails); i++) {
        copy_tree(path_in(folder, "whole"), path_in(folder, "cut"));
        folder_remove(strdup(path_in(folder, "cut/checkpoints/step-000006")));
        folder_remove(strdup(path_in(folder, "cut/hf")));
        write_text(path_in(folder, "cut/checkpoints/latest"), "step-000004\n");
        char *text = read_text(path_in(folder, "cut/metrics.jsonl"), NULL), *end = text;
        for (int line = 0; line < 5; line++) end = strchr(end, '\n') + 1;
        if (tails[i][0] == '\n') /* ends in the middle of a kept line: only step 4 is whole */
            for (end--; end[-1] != '\n';) end--;
        strcpy(end, tails[i][0] == '\n' ? "" : tails[i]);
        write_text(path_in(folder, "cut/metrics.jsonl"), text);
        free(text);
        write_text(path_in(folder, "cut/log.txt"), "");
        assert_true(run_steps(folder, "cut", 6, NULL, true, "checkpoint.interval=2"));
        assert_true(same_run(path_in(folder, "cut"), path_in(folder, "whole"), 6));
        text = read_text(path_in(folder, "cut/log.txt"), NULL);
        assert_null(strstr(text, "warning: "));
        free(text);
    }
    /* no step 3 and 4, which the checkpoint has: said, and gone on */
    folder_remove(strdup(path_in(folder, "cut/checkpoints/step-000006")));
    char *text = read_text(path_in(folder, "cut/metrics.jsonl"), NULL);
    *(strchr(strchr(text, '\n') + 1, '\n') + 1) = '\0';
    write_text(path_in(folder, "cut/metrics.jsonl"), text);
    free(text);
    assert_true(run_steps(folder, "cut", 6, NULL, true, "checkpoint.interval=2"));
    text = read_text(path_in(folder, "cut/log.txt"), NULL);
    assert_non_null(strstr(text, "metrics.jsonl ends at step 2, and the checkpoint is of step 4"));
    free(text);
    folder_remove(folder);
}

/* What a killed process leaves behind: folders half written, one that is whole before latest names it, one that gave way. */
static void resume__is_not_misled_by_leftovers(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    const char *keep = "checkpoint.keep=1";
    assert_true(run_steps(folder, "whole", 6, NULL, false, keep));
    assert_true(run_steps(folder, "run", 3, NULL, false, keep));
    assert_true(run_steps(folder, "other", 5, NULL, false, keep));
    copy_tree(path_in(folder, "other/metrics.jsonl"), path_in(folder, "run/metrics.jsonl"));
    copy_tree(path_in(folder, "other/checkpoints/step-000005"),
              path_in(folder, "run/checkpoints/.step-000005.tmp.old"));
    copy_tree(path_in(folder, "other/checkpoints/step-000005"),
              path_in(folder, "run/checkpoints/.step-000006.tmp"));
    assert_int_equal(unlink(path_in(folder, "run/checkpoints/.step-000006.tmp/state.json")), 0);
    copy_tree(path_in(folder, "other/checkpoints/latest"),
              path_in(folder, "run/checkpoints/latest.tmp-123-0"));
    copy_tree(path_in(folder, "other/hf/final"), path_in(folder, "run/hf/.final.tmp"));
    Arguments args = {0};
    add_program_run(&args, folder, "run", 6);
    add_set(&args, "%s", keep);
    arguments_add(&args, "--resume");
    assert_true(program_ends(&args, folder, 0));
    char *text = read_text(path_in(folder, "err.txt"), NULL);
    assert_non_null(strstr(text, "step-000005: has its name back"));
    assert_non_null(strstr(text, "left: .step-000006.tmp, latest.tmp-123-0"));
    assert_non_null(strstr(text, "left: .final.tmp"));
    assert_non_null(strstr(text, "resumed from"));
    free(text);
    assert_true(same_run(path_in(folder, "run"), path_in(folder, "whole"), 6));
    char **names = folder_names(path_in(folder, "run/checkpoints"));
    assert_string_equal(names[0], "latest");
    assert_string_equal(names[1], "step-000006");
    assert_null(names[2]);
    names_free(names);
    /* `latest` of a run that was killed before it moved */
    write_text(path_in(folder, "run/checkpoints/latest"), "step-000003\n");
    assert_true(run_steps(folder, "run", 6, NULL, true, keep));
    text = read_text(path_in(folder, "run/checkpoints/latest"), NULL);
    assert_string_equal(text, "step-000006\n");
    free(text);
    folder_remove(folder);
}

/* ---- processes that end early -------------------------------------------------------------- */

static void resume__after_a_signal_equals_the_uninterrupted_run(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT};
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_TIED});
    for (int i = 0; i < 2; i++) {
        Arguments args = {0};
        char run[24], whole[24];
        snprintf(run, sizeof run, "run%d", i);
        snprintf(whole, sizeof whole, "whole%d", i);
        add_program_run(&args, folder, run, 1000000);
        add_layout(&args, &(Layout){2, "1f1b", 0, 1, NULL, 0});
        pid_t child = start_program(&args, folder);
        wait_for_steps(path_in(folder, "%s/metrics.jsonl", run), 3);
        kill(child, signals[i]);
        int status = exit_status(child);
        if (status != 3) file_show(path_in(folder, "err.txt"));
        assert_int_equal(status, 3);
        json_t *metrics = read_metrics(path_in(folder, "%s/metrics.jsonl", run));
        int done = (int)json_array_size(metrics);
        json_decref(metrics);
        assert_true(path_exists(path_in(folder, "%s/checkpoints/step-%06d/state.json", run, done)));
        assert_false(path_exists(path_in(folder, "%s/hf/final", run)));

        assert_true(run_steps(folder, whole, done + 2, NULL, false, NULL));
        add_run(&args, folder, run, done + 2);
        arguments_add(&args, "--resume");
        arguments_add(&args, "--override"); /* fewer steps than the run was to have */
        assert_true(command_runs(&command_train, &args));
        assert_true(same_run(path_in(folder, "%s", run), path_in(folder, "%s", whole), done + 2));
    }
    folder_remove(folder);
}
static void resume__with_no_checkpoint_starts_at_step_1_and_says_so(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    assert_true(run_steps(folder, "whole", 2, NULL, false, NULL));
    Arguments args = {0};
    add_program_run(&args, folder, "run", 2);
    arguments_add(&args, "--resume");
    assert_true(program_ends(&args, folder, 0));
    char *text = read_text(path_in(folder, "err.txt"), NULL);
    assert_non_null(strstr(text, "starting at step 1"));
    free(text);
    assert_true(same_run(path_in(folder, "run"), path_in(folder, "whole"), 2));
    /* A run that ended before its first checkpoint left only metrics. */
    folder_remove(strdup(path_in(folder, "run/checkpoints")));
    assert_true(run_steps(folder, "run", 2, NULL, true, NULL));
    assert_true(same_run(path_in(folder, "run"), path_in(folder, "whole"), 2));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume__equals_the_uninterrupted_run),
        cmocka_unit_test(resume__counts_skipped_steps),
        cmocka_unit_test(resume__cuts_the_metrics_back),
        cmocka_unit_test(resume__is_not_misled_by_leftovers),
        cmocka_unit_test(resume__after_a_signal_equals_the_uninterrupted_run),
        cmocka_unit_test(resume__with_no_checkpoint_starts_at_step_1_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
