#include "program.h"

static const char config_text[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 8, \"num_hidden_layers\": 1, \"vocab_size\": "
    "11,\n"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4,\n"
    " \"intermediate_size\": 8, \"torch_dtype\": \"float32\"}\n";

static void put(Temp *temp, const char *name, const char *text)
{
    assert_ok(file_write_atomic(temp_path(temp, name), text, strlen(text)));
}

static const char *in_quotes(Temp *temp, const char *name)
{
    return text_format(&temp->arena, "'%s'", temp_path(temp, name));
}

/* A folder that holds more than a model: a configuration by another name, its tokenizer, and other things. */
static void put_config(Temp *temp)
{
    put(temp, "small.json", config_text);
    put(temp, "tokenizer.json", "{ \"a\":1}\r\n");
    put(temp, "tokenizer_config.json", "{}");
    put(temp, "generation_config.json", "{\"eos_token_id\": 3}");
    put(temp, "config.json", "{\"of\": \"another model\"}");
    put(temp, "train.jsonl", "{\"text\": \"a\"}\n");
    put(temp, "run.yaml", "model: {path: x}\n");
}

static void init__a_config_file_becomes_config_json(void **state)
{
    Temp *temp = *state;
    put_config(temp);
    const char *out = in_quotes(temp, "out");
    assert_runs(
        temp, text_format(&temp->arena, "init %s --config %s", out, in_quotes(temp, "small.json")));
    char *text, **names;
    int n;
    assert_ok(file_read(&temp->arena, temp_path(temp, "out/config.json"), &text, NULL));
    assert_string_equal(text, config_text);
    assert_ok(file_read(&temp->arena, temp_path(temp, "out/tokenizer.json"), &text, NULL));
    assert_string_equal(text, "{ \"a\":1}\r\n");
    assert_ok(dir_list(&temp->arena, temp_path(temp, "out"), &names, &n));
    assert_int_equal(n, 5); /* + generation_config, tokenizer_config, model.safetensors */
    assert_false(file_exists(temp_path(temp, "out/train.jsonl")));
    Ran ran = assert_runs(temp, text_format(&temp->arena, "inspect %s", out));
    assert_says("inspect", ran.out, WORDS("(qwen3)", "nothing wrong"));
}

static void init__a_forced_dtype_is_in_the_written_config_alone(void **state)
{
    Temp *temp = *state;
    put_config(temp);
    assert_runs(temp, text_format(&temp->arena, "init %s --config %s --dtype bf16",
                                  in_quotes(temp, "out"), in_quotes(temp, "small.json")));
    char *text;
    assert_ok(file_read(&temp->arena, temp_path(temp, "out/config.json"), &text, NULL));
    assert_non_null(strstr(text, "\"torch_dtype\": \"bfloat16\"}"));
    assert_ok(file_read(&temp->arena, temp_path(temp, "small.json"), &text, NULL));
    assert_string_equal(text, config_text);
}

static void init__the_seed_alone_decides_the_weights(void **state)
{
    Temp *temp = *state;
    put_config(temp);
    static const char *const how[] = {"", "--seed 42", "--seed 43", "--max-shard-size 500"};
    char *bytes[4];
    size_t n[4];
    for (int i = 0; i < 4; i++) {
        const char *name = text_format(&temp->arena, "out%d", i);
        assert_runs(temp, text_format(&temp->arena, "init %s --config %s %s", in_quotes(temp, name),
                                      in_quotes(temp, "small.json"), how[i]));
        const char *file = text_format(&temp->arena, "%s/model.safetensors", name);
        if (i < 3) assert_ok(file_read(&temp->arena, temp_path(temp, file), &bytes[i], &n[i]));
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    assert_true(n[2] == n[0] && memcmp(bytes[2], bytes[0], n[0]) != 0);
    assert_true(file_exists(temp_path(temp, "out3/model.safetensors.index.json")));
}

static void init__refuses_before_it_writes(void **state)
{
    Temp *temp = *state;
    put_config(temp);
    const char *config = in_quotes(temp, "small.json");
    const struct {
        const char *out, *config, *more, *words[3];
    } rows[] = {
        {"", config, "", {"exists and is not empty"}},
        {"small.json", config, "", {"small.json: is a file"}},
        {"new/.", config, "", {"no name for a new folder"}},
        {"new", in_quotes(temp, "none.json"), "", {"none.json", "No such file"}},
        {"new", config, "--dtype f16", {"--dtype", "bf16"}},
        {"new", config, "--max-shard-size 0", {"--max-shard-size", "out of range"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_refused(temp,
                       text_format(&temp->arena, "init %s --config %s %s",
                                   in_quotes(temp, rows[i].out), rows[i].config, rows[i].more),
                       rows[i].words);
        assert_false(dir_exists(temp_path(temp, "new")));
    }
    /* a tokenizer that would be missed later */
    assert_int_equal(unlink(temp_path(temp, "tokenizer.json")), 0);
    assert_int_equal(symlink("nowhere", temp_path(temp, "tokenizer.json")), 0);
    assert_refused(temp,
                   text_format(&temp->arena, "init %s --config %s", in_quotes(temp, "new"), config),
                   WORDS("tokenizer.json: No such file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(init__a_config_file_becomes_config_json),
        TEMP_TEST(init__a_forced_dtype_is_in_the_written_config_alone),
        TEMP_TEST(init__the_seed_alone_decides_the_weights),
        TEMP_TEST(init__refuses_before_it_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
