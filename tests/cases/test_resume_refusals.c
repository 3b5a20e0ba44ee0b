/* What cannot be resumed is refused, before the start and with the reason; what is on disk stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/resume.h"

/* The command fails and its message has all the words. Frees the arguments. */
static bool refuses(Arguments *args, const char *const *words)
{
    Status status = command_inside(&command_train, args, &(World){.size = 1, .n_cpus = 2});
    bool ok = status != OK && status_exit_code(status) == 2;
    for (; *words && ok; words++) ok = strstr(status_message(), *words) != NULL;
    if (!ok) {
        fprintf(stderr, "  status %d (%s) does not say \"%s\"\n", status, status_message(),
                words[-1]);
        print_arguments("train", args);
    }
    arguments_free(args);
    return ok;
}

static void resume__refuses_other_maths(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    fixture_write_rows(path_in(folder, "more.jsonl"), FIXTURE_EQ, 1, 1);
    assert_true(run_steps(folder, "run", 3, NULL, false, NULL));
    char data[600];
    snprintf(data, sizeof data, "data.train=[%s/more.jsonl]", folder);
    const char *const changes[] = {
        "optimizer.lr=0.01",
        "optimizer.betas=[0.8, 0.95]",
        "optimizer.eps=1e-6",
        "optimizer.weight_decay=0.5",
        "optimizer.decay_1d=false",
        "optimizer.type=sgd",
        "optimizer.groups=[{match: '*norm*', lr_scale: 0.5}]",
        "loss.balancing_alpha=0",
        "loss.z_alpha=0.1",
        "loss.reduction=sample",
        "train.global_batch_size=2",
        "train.seed=1",
        "train.max_grad_norm=0",
        "data.seed=3",
        "lr_schedule.warmup=2",
        "data.max_length=20",
        "train.skip_grad_norm_threshold=3",
        data,
    };
    int failed = 0;
    char *before = read_text(path_in(folder, "run/metrics.jsonl"), NULL);
    char *config = read_text(path_in(folder, "run/config.yaml"), NULL);
    Arguments args = {0};
    for (size_t i = 0; i < COUNT(changes); i++) {
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(changes[i], "="), changes[i]);
        add_run(&args, folder, "run", 6);
        arguments_add(&args, "--resume");
        add_set(&args, "%s", changes[i]);
        failed += !refuses(&args, WORDS(key, "--override"));
    }
    static const char *const lengths[][2] = {{"lr_schedule.type=cosine", "lr_schedule.type"},
                                             {"train.steps=2", "train.steps"}};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        add_run(&args, folder, "run", 6);
        arguments_add(&args, "--resume");
        add_set(&args, "%s", lengths[i][0]);
        failed += i == 0 ? !refuses(&args, WORDS("maths")) : !refuses(&args, WORDS(lengths[i][1]));
    }
    char *after = read_text(path_in(folder, "run/metrics.jsonl"), NULL);
    char *config_after = read_text(path_in(folder, "run/config.yaml"), NULL);
    assert_string_equal(after, before);
    assert_string_equal(config_after, config);
    free(before);
    free(after);
    free(config);
    free(config_after);
    assert_int_equal(failed, 0);

    add_run(&args, folder, "run", 6);
    arguments_add(&args, "--resume");
    arguments_add(&args, "--override");
    add_set(&args, "optimizer.lr=0.01");
    assert_true(command_runs(&command_train, &args));
    json_t *metrics = read_metrics(path_in(folder, "run/metrics.jsonl"));
    assert_int_equal(json_array_size(metrics), 6);
    json_t *last = json_array_get(metrics, 5);
    assert_true(json_number_value(json_object_get(last, "lr")) == 0.01);
    json_decref(metrics);
    folder_remove(folder);
}

/* The same files with other rows, fewer or changed in one id. */
static void resume__refuses_other_rows(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    static const char *const texts[] = {"{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5, 6]}\n",
                                        "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 7, 6]}\n",
                                        "{\"input_ids\": [1, 2, 3]}\n"};
    static const char *const words[] = {NULL, "found 2 rows, expected 2 of other content",
                                        "found 1 rows, expected 2"};
    write_text(path_in(folder, "rows.jsonl"), texts[0]);
    assert_true(run_steps(folder, "run", 3, NULL, false, NULL));
    Arguments args = {0};
    for (int i = 1; i < 3; i++) {
        write_text(path_in(folder, "rows.jsonl"), texts[i]);
        add_run(&args, folder, "run", 4);
        arguments_add(&args, "--resume");
        assert_true(refuses(&args, WORDS("data.train", "step-000003", words[i], "--override")));
    }
    write_text(path_in(folder, "rows.jsonl"), texts[0]);
    assert_true(run_steps(folder, "run", 4, NULL, true, NULL));
    write_text(path_in(folder, "rows.jsonl"), texts[1]);
    add_run(&args, folder, "run", 5);
    arguments_add(&args, "--resume");
    arguments_add(&args, "--override");
    assert_true(command_runs(&command_train, &args));
    folder_remove(folder);
}

/* A cosine depends on the number of steps, so it cannot be made longer. */
static void resume__refuses_more_steps_of_a_cosine(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    assert_true(run_steps(folder, "run", 3, NULL, false, "lr_schedule.type=cosine"));
    Arguments args = {0};
    add_run(&args, folder, "run", 6);
    arguments_add(&args, "--resume");
    add_set(&args, "lr_schedule.type=cosine");
    assert_true(refuses(&args, WORDS("train.steps", "6", "3")));
    folder_remove(folder);
}

static void resume__refuses_a_damaged_checkpoint(void **state)
{
    (void)state;
    typedef enum Damage { TRUNCATE, FLIP, REMOVE, GROW, REPLACE, CREATE } Damage;
    static const struct {
        const char *file, *named; /* named NULL: the file itself */
        Damage damage;
        const char *text;
    } rows[] = {
        {"step-000003/model.safetensors", NULL, TRUNCATE, NULL},
        {"step-000003/model.safetensors", NULL, FLIP, NULL},
        {"step-000003/model.safetensors", NULL, REMOVE, NULL},
        {"step-000003/model.safetensors", NULL, GROW, NULL},
        {"step-000003/exp_avg/model.safetensors", NULL, TRUNCATE, NULL},
        {"step-000003/exp_avg/model.safetensors", NULL, FLIP, NULL},
        {"step-000003/exp_avg_sq/model.safetensors", NULL, FLIP, NULL},
        {"step-000003/exp_avg_sq/model.safetensors", NULL, REMOVE, NULL},
        {"step-000003/state.json", NULL, TRUNCATE, NULL},
        {"step-000003/state.json", NULL, FLIP, NULL},
        {"step-000003/state.json", NULL, REMOVE, NULL},
        {"step-000003/config.json", NULL, FLIP, NULL},
        {"step-000003/config.json", NULL, REMOVE, NULL},
        {"step-000003/manifest.json", NULL, TRUNCATE, NULL},
        {"step-000003/manifest.json", NULL, REMOVE, NULL},
        {"step-000003/manifest.json", NULL, REPLACE, "[]"},
        {"step-000003/manifest.json", NULL, REPLACE, "{\"format\": 1}"},
        {"step-000003/manifest.json", NULL, REPLACE, "{\"format\": 2, \"files\": {}}"},
        {"step-000003/other.safetensors", NULL, CREATE, "x"},
    };
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    assert_true(run_steps(folder, "good", 3, NULL, false, NULL));
    char *before = read_text(path_in(folder, "good/metrics.jsonl"), NULL);
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        copy_tree(path_in(folder, "good"), path_in(folder, "bad"));
        char path[600];
        snprintf(path, sizeof path, "%s/bad/checkpoints/%s", folder, rows[i].file);
        size_t n = 1;
        char *text = rows[i].damage == CREATE ? strdup("x") : read_text(path, &n);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        if (rows[i].damage == FLIP) text[n / 2] ^= 1;
        if (rows[i].damage == REPLACE)
            fputs(rows[i].text, file);
        else
            fwrite(text, 1, rows[i].damage == TRUNCATE ? n - 4 : n, file);
        if (rows[i].damage == GROW) fwrite("12345678", 1, 8, file);
        fclose(file);
        free(text);
        if (rows[i].damage == REMOVE) unlink(path);
        Arguments args = {0};
        add_run(&args, folder, "bad", 6);
        arguments_add(&args, "--resume");
        add_layout(&args, &(Layout){2, "1f1b", 0, 1, NULL, 0});
        bool ok = refuses(&args, WORDS(rows[i].named ? rows[i].named : path));
        char *after = read_text(path_in(folder, "bad/metrics.jsonl"), NULL);
        ok = ok && strcmp(before, after) == 0;
        free(after);
        if (!ok) fprintf(stderr, "  row %zu: %s, damage %d\n", i, rows[i].file, rows[i].damage);
        failed += !ok;
    }
    free(before);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Found by its name, so the name must be true; and what is beyond the end of a run is not its result. */
static void resume__refuses_a_checkpoint_of_another_step(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    assert_true(run_steps(folder, "run", 3, NULL, false, NULL));
    for (int steps = 0; steps < 3; steps += 2) {
        Arguments args = {0};
        add_run(&args, folder, "run", steps);
        arguments_add(&args, "--resume");
        arguments_add(&args, "--override");
        char found[40];
        snprintf(found, sizeof found, "found %d steps, expected at least 3", steps);
        assert_true(refuses(&args, WORDS("train.steps", found, "step-000003")));
    }
    assert_true(run_steps(folder, "run", 3, NULL, true, NULL)); /* complete: it exports again */
    if (rename(path_in(folder, "run/checkpoints/step-000003"),
               path_in(folder, "run/checkpoints/step-000900")) != 0)
        fail_msg("no rename");
    Arguments args = {0};
    add_run(&args, folder, "run", 1000);
    arguments_add(&args, "--resume");
    assert_true(refuses(&args, WORDS("step-000900/state.json: key step", "found 3, expected 900",
                                     "step-000900 removed")));
    assert_int_equal(mkdir(path_in(folder, "run/checkpoints/step-000901"), 0777), 0);
    add_run(&args, folder, "run", 1000);
    arguments_add(&args, "--resume");
    assert_true(
        refuses(&args, WORDS("step-000901/manifest.json: missing, so the checkpoint is incomplete",
                             "step-000901 removed")));
    folder_remove(folder);
}

static void resume__an_output_in_use_needs_it(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    assert_true(run_steps(folder, "run", 2, NULL, false, NULL));
    char *before = read_text(path_in(folder, "run/metrics.jsonl"), NULL);
    Arguments args = {0};
    add_program_run(&args, folder, "run", 2);
    assert_true(program_refuses(&args, folder, WORDS("run/metrics.jsonl", "--resume")));
    char *after = read_text(path_in(folder, "run/metrics.jsonl"), NULL);
    assert_string_equal(after, before);
    free(before);
    free(after);
    folder_remove(folder);
}

/* Two runs in one folder would ruin it. */
static void resume__an_output_of_a_living_run_is_left_alone(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    Arguments args = {0}, second = {0};
    add_program_run(&args, folder, "run", 1000000);
    assert_int_equal(mkdir(path_in(folder, "first"), 0777), 0);
    pid_t child = start_program(&args, path_in(folder, "first"));
    wait_for_steps(path_in(folder, "run/metrics.jsonl"), 2);
    add_program_run(&second, folder, "run", 1000000);
    arguments_add(&second, "--resume");
    assert_true(program_refuses(&second, folder, WORDS("run/log.txt", "in use by another run")));
    kill(child, SIGTERM);
    assert_int_equal(exit_status(child), 3);
    folder_remove(folder);
}

/* Found before the start, not at the first save. */
static void resume__a_file_where_a_folder_belongs_is_refused(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    assert_int_equal(mkdir(path_in(folder, "run"), 0777), 0);
    write_text(path_in(folder, "run/checkpoints"), "x");
    Arguments args = {0};
    add_program_run(&args, folder, "run", 2);
    assert_true(program_refuses(&args, folder, WORDS("run/checkpoints", "expected a folder")));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resume__refuses_other_maths),
        cmocka_unit_test(resume__refuses_other_rows),
        cmocka_unit_test(resume__refuses_more_steps_of_a_cosine),
        cmocka_unit_test(resume__refuses_a_damaged_checkpoint),
        cmocka_unit_test(resume__refuses_a_checkpoint_of_another_step),
        cmocka_unit_test(resume__an_output_in_use_needs_it),
        cmocka_unit_test(resume__an_output_of_a_living_run_is_left_alone),
        cmocka_unit_test(resume__a_file_where_a_folder_belongs_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
