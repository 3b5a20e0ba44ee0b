#include "program.h"

static const char config_text[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 8, \"num_hidden_layers\": 2, \"vocab_size\": "
    "11,\n"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4,\n"
    " \"intermediate_size\": 8}\n";

/* A configuration, and beside it a model without weights and three rows of ids; the run's folder is out. */
static const char *run_yaml(Temp *temp, const char *data)
{
    temp_file(temp, "config.json", config_text, strlen(config_text));
    static const char rows[] =
        "{\"input_ids\": [1, 2, 3]}\n{\"input_ids\": [4, 5]}\n{\"input_ids\": [6]}\n";
    temp_file(temp, "rows.jsonl", rows, strlen(rows));
    const char *yaml =
        text_format(&temp->arena,
                    "model: {path: '%s', init: true}\n"
                    "data: {train: ['%s']}\n"
                    "train: {output: '%s', steps: 2, global_batch_size: 2, "
                    "threads: 1}\n",
                    temp_path(temp, "."), temp_path(temp, data), temp_path(temp, "out"));
    return temp_file(temp, "run.yaml", yaml, strlen(yaml));
}

static void train__layers_that_do_not_fit_are_told_before_data_is_read(void **state)
{
    Temp *temp = *state;
    const char *yaml = run_yaml(temp, "missing.jsonl");
    static const struct {
        const char *sets, *words[4];
    } rows[] = {
        {"--set parallel.pp_size=3", {"parallel.pp_size", "3", "2"}},
        {"--set parallel.pp_size=2 --set parallel.layer_split=[1,2]",
         {"parallel.layer_split", "3", "2"}},
        {"", {"missing.jsonl"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_refused(temp, text_format(&temp->arena, "train '%s' %s", yaml, rows[i].sets),
                       rows[i].words);
        assert_false(dir_exists(temp_path(temp, "out")));
    }
}

/* Where checkpoints should go there is a file: the steps run, saving does not. */
static void train__a_failure_after_the_start_is_1_and_in_the_log(void **state)
{
    Temp *temp = *state;
    const char *yaml = run_yaml(temp, "rows.jsonl");
    assert_ok(dir_create(temp_path(temp, "out/checkpoints")));
    temp_file(temp, "out/checkpoints/step-000002", "x", 1);
    Ran ran =
        run_program(temp, text_format(&temp->arena, "train '%s' --set parallel.pp_size=2", yaml));
    assert_int_equal(ran.status, 1);
    const char *error = strstr(ran.err, "stagewright: error: ");
    assert_non_null(error);
    assert_null(strstr(error + 1, "stagewright: error: "));
    assert_says("train", error, WORDS("out/checkpoints/step-000002"));
    char *log;
    assert_ok(file_read(&temp->arena, temp_path(temp, "out/log.txt"), &log, NULL));
    assert_says("log.txt", log, WORDS(" rank 0: step 2/2", " rank 0: stagewright: error: "));
}

static void train__resume_needs_no_folder_but_the_runs(void **state)
{
    Temp *temp = *state;
    const char *yaml = run_yaml(temp, "rows.jsonl");
    const char *line =
        text_format(&temp->arena, "train '%s' --set checkpoint.interval=1 --resume", yaml);
    assert_runs(temp, line);
    char *once, *twice;
    size_t n[2];
    const char *model = temp_path(temp, "out/hf/final/model.safetensors");
    assert_ok(file_read(&temp->arena, model, &once, &n[0]));
    assert_ok(dir_remove_tree(temp_path(temp, "out/checkpoints/step-000002")));
    assert_int_equal(unlink(temp_path(temp, "config.json")), 0);
    Ran ran = assert_runs(temp, line);
    assert_says(line, ran.err, WORDS("resumed from", "step-000001", "step 2/2"));
    assert_ok(file_read(&temp->arena, model, &twice, &n[1]));
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(once, twice, n[0]);
}

static void train__override_without_resume_is_refused(void **state)
{
    Temp *temp = *state;
    const char *yaml = run_yaml(temp, "rows.jsonl");
    assert_refused(temp, text_format(&temp->arena, "train '%s' --override", yaml),
                   WORDS("--override", "without --resume"));
    assert_false(dir_exists(temp_path(temp, "out")));
}

/* Its numbers would else go to the files that the run writes. */
static void train__goes_on_without_anybody_who_reads_its_log(void **state)
{
    Temp *temp = *state;
    const char *yaml = run_yaml(temp, "rows.jsonl"), *out = temp_path(temp, "out");
    static const char *const ways[] = {"'%s' train '%s' 2>&-",
                                       "('%s' train '%s'; echo $? >'%s/rc') 2>&1 | true; "
                                       "read rc <'%s/rc' && exit $rc"};
    for (int i = 0; i < 2; i++) {
        assert_ok(dir_create(out));
        assert_int_equal(system(text_format(&temp->arena, ways[i], SW_PROGRAM, yaml, out, out)), 0);
        char *log;
        assert_ok(file_read(&temp->arena, path_join(&temp->arena, out, "log.txt"), &log, NULL));
        assert_says("log.txt", log, WORDS(" rank 0: step 2/2", " rank 0: exported "));
        for (const char *line = log; *line; line = strchr(line, '\n') + 1)
            assert_true(strstr(line, " rank 0: ") == line + strlen("2000-01-01T00:00:00"));
        assert_ok(dir_remove_tree(out));
    }
}

/* Wide enough that a thread of a team computes products, which take almost 1 MiB of stack. */
static void train__small_stacks_are_enlarged_or_refused(void **state)
{
    Temp *temp = *state;
    const char *yaml = run_yaml(temp, "long.jsonl");
    static const char wide[] = "{\"model_type\": \"qwen3\", \"hidden_size\": 256, "
                               "\"num_hidden_layers\": 1, \"vocab_size\": 512,\n"
                               " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
                               "\"head_dim\": 32,\n \"intermediate_size\": 256}\n";
    temp_file(temp, "config.json", wide, strlen(wide));
    TextBuffer rows;
    text_buffer_init(&rows, &temp->arena);
    text_append_format(&rows, "{\"input_ids\": [0");
    for (int i = 1; i < 256; i++) text_append_format(&rows, ", %d", i);
    text_append_format(&rows, "]}\n");
    temp_file(temp, "long.jsonl", rows.text, rows.length);
    static const struct {
        const char *before;
        int status;
    } ways[] = {
        {"export OMP_STACKSIZE=512k;", 0},
        {"export GOMP_STACKSIZE=512;", 0},
        {"export KMP_STACKSIZE=524288;", 0},
        {"export OMP_STACKSIZE='1 m' OMP_WAIT_POLICY=active;", 0},
        {"ulimit -S -s 512;", 0},
        {"ulimit -s 512;", 2},
    };
    const char *err = temp_path(temp, "stderr.txt");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const char *line = text_format(
            &temp->arena, "%s '%s' train '%s' --set train.threads=2 --set train.steps=1 2>'%s'",
            ways[i].before, SW_PROGRAM, yaml, err);
        int status = system(line);
        char *text;
        assert_ok(file_read(&temp->arena, err, &text, NULL));
        if (!WIFEXITED(status) || WEXITSTATUS(status) != ways[i].status)
            fail_msg("%s: status %x: %s", line, (unsigned)status, text);
        if (ways[i].status)
            assert_says(line, text, WORDS("stack: ", "found 512 KiB, expected at least 2048 KiB"));
        else
            assert_ok(dir_remove_tree(temp_path(temp, "out")));
    }
}

static void train__more_threads_than_openmp_may_start_are_refused(void **state)
{
    Temp *temp = *state;
    const char *yaml = run_yaml(temp, "rows.jsonl");
    setenv("OMP_THREAD_LIMIT", "1", 1);
    assert_refused(temp, text_format(&temp->arena, "train '%s' --set train.threads=2", yaml),
                   WORDS("train.threads: found 2, expected at most 1 (OMP_THREAD_LIMIT)"));
    Ran ran =
        assert_runs(temp, text_format(&temp->arena, "train '%s' --set train.threads=null", yaml));
    unsetenv("OMP_THREAD_LIMIT");
    assert_says("train", ran.err, WORDS(" of 1 thread"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(train__layers_that_do_not_fit_are_told_before_data_is_read),
        TEMP_TEST(train__a_failure_after_the_start_is_1_and_in_the_log),
        TEMP_TEST(train__resume_needs_no_folder_but_the_runs),
        TEMP_TEST(train__override_without_resume_is_refused),
        TEMP_TEST(train__goes_on_without_anybody_who_reads_its_log),
        TEMP_TEST(train__small_stacks_are_enlarged_or_refused),
        TEMP_TEST(train__more_threads_than_openmp_may_start_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
