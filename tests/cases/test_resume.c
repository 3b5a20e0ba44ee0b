// Stopping and going on: a resumed run is the uninterrupted one, bit for bit, and what cannot be
// resumed is refused.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/runs.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

/* Model and rows, and a config.yaml of three rows a step: six steps go over two epoch borders. */
static char *make_folder(const Fixture *fixture)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), fixture);
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_VAR, 1, 1);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], format: ids}\n"
             "train: {global_batch_size: 3}\n"
             "loss: {balancing_alpha: 0.01}\n"
             "lr_schedule: {type: constant, warmup: 0}\n",
             folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

static void add_run(Arguments *args, const char *folder, const char *output, int steps)
{
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "train.output=%s/%s", folder, output);
    add_set(args, "train.steps=%d", steps);
}

static bool run_steps(const char *folder, const char *output, int steps, const Layout *layout,
                      bool resume, const char *set)
{
    Arguments args = {0};
    add_run(&args, folder, output, steps);
    if (layout) add_layout(&args, layout);
    if (resume) arguments_add(&args, "--resume");
    if (set) add_set(&args, "%s", set);
    return command_runs(&command_train, &args);
}

/* The same for a process of its own. */
static void add_program_run(Arguments *args, const char *folder, const char *output, int steps)
{
    arguments_add(args, "train");
    add_run(args, folder, output, steps);
}

static void copy_tree(const char *from, const char *to)
{
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", to, from, to);
    if (system(command) != 0) fail_msg("%s", command);
}

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

static pid_t start_program(Arguments *args, const char *folder)
{
    char err[600];
    snprintf(err, sizeof err, "%s/err.txt", folder);
    char *command[ARGUMENTS_MAX + 2] = {(char *)(uintptr_t)SW_PROGRAM};
    memcpy(command + 1, args->at, (size_t)args->n * sizeof *command);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int file = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(file, STDERR_FILENO);
        alarm(120);
        execv(SW_PROGRAM, command);
        _exit(127);
    }
    arguments_free(args);
    return child;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* Wait until the run has finished that many steps. */
static void wait_for_steps(const char *metrics, int steps)
{
    for (int tries = 0; tries < 6000; tries++, sleep_ms(10)) {
        FILE *file = fopen(metrics, "r");
        int lines = 0;
        for (int c; file && (c = fgetc(file)) != EOF;) lines += c == '\n';
        if (file) fclose(file);
        if (lines >= steps) return;
    }
    fail_msg("%s: not %d steps in a minute", metrics, steps);
}

static int exit_status(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0) assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

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

/* ---- refusals ------------------------------------------------------------------------------ */

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
        cmocka_unit_test(resume__refuses_other_maths),
        cmocka_unit_test(resume__refuses_other_rows),
        cmocka_unit_test(resume__refuses_more_steps_of_a_cosine),
        cmocka_unit_test(resume__refuses_a_damaged_checkpoint),
        cmocka_unit_test(resume__refuses_a_checkpoint_of_another_step),
        cmocka_unit_test(resume__an_output_in_use_needs_it),
        cmocka_unit_test(resume__an_output_of_a_living_run_is_left_alone),
        cmocka_unit_test(resume__a_file_where_a_folder_belongs_is_refused),
        cmocka_unit_test(resume__with_no_checkpoint_starts_at_step_1_and_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
