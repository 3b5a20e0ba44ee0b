#include "program.h"

#include "../data/fixture.h"
#include "io/json.h"

/* A model folder with the byte tokenizer alone, and maybe the two configurations. */
static char *model(Temp *temp, const char *config, const char *generation)
{
    char *dir = temp_path(temp, "model");
    assert_ok(dir_create(dir));
    Arena *arena = &temp->arena;
    fixture_write(arena, dir, "tokenizer.json", fixture_tokenizer_json(arena));
    if (config) fixture_write(arena, dir, "config.json", config);
    if (generation) fixture_write(arena, dir, "generation_config.json", generation);
    return dir;
}

static char *lines(Temp *temp, const char *text)
{
    return temp_file(temp, "lines.jsonl", text, strlen(text));
}

/* "104 105 258 | 1 1 0" of one line of output. */
static const char *digest(Temp *temp, const char *line)
{
    JsonDoc doc;
    assert_ok(json_doc_parse(&doc, "stdout", line, strcspn(line, "\n")));
    TextBuffer out;
    text_buffer_init(&out, &temp->arena);
    size_t i;
    const json_t *id, *trained = json_object_get(doc.root, "trained");
    json_array_foreach(json_object_get(doc.root, "ids"), i, id)
        text_append_format(&out, "%d ", (int)json_integer_value(id));
    text_append_format(&out, "|");
    assert_int_equal(json_array_size(trained), i);
    assert_int_equal(json_array_size(json_object_get(doc.root, "tokens")), i);
    for (size_t k = 0; k < i; k++)
        text_append_format(&out, " %d", (int)json_integer_value(json_array_get(trained, k)));
    json_doc_free(&doc);
    return out.text;
}

static void cmd_tokenize__a_text_is_encoded_as_huggingface_does(void **state)
{
    Temp *temp = *state;
    const char *line =
        text_format(&temp->arena, "tokenize %s --text 'a \"<|im_end|>'", model(temp, NULL, NULL));
    assert_string_equal(assert_runs(temp, line).out,
                        "{\"ids\": [97, 32, 34, 258], \"trained\": [1, 1, 1, 1], \"tokens\": "
                        "[\"a\", \"\xc4\xa0\", \"\\\"\", \"<|im_end|>\"]}\n");
    line = text_format(&temp->arena, "tokenize %s --text ''", model(temp, NULL, NULL));
    assert_string_equal(assert_runs(temp, line).out,
                        "{\"ids\": [], \"trained\": [], \"tokens\": []}\n");
}

static void cmd_tokenize__conversations_train_the_assistant(void **state)
{
    Temp *temp = *state;
    const char *file =
        lines(temp, "{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": "
                    "\"assistant\", \"content\": \"<|im_end|>\"}]}\n");
    const char *dir = model(temp, NULL, NULL);
    const char *line = text_format(&temp->arena, "tokenize %s %s --chat-template none", dir, file);
    /* Inside a message the end token is so many letters. */
    assert_string_equal(digest(temp, assert_runs(temp, line).out),
                        "117 60 124 105 109 95 101 110 100 124 62 | 0 1 1 1 1 1 1 1 1 1 1");
    file = lines(temp, "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", "
                       "\"content\": \"a\"}]\n");
    line = text_format(&temp->arena, "tokenize %s %s --chat-template chatml", dir, file);
    const char *expected =
        "257 117 115 101 114 10 117 258 10 257 97 115 115 105 115 116 97 110 116 10 97 258 10 | "
        "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 1 0";
    assert_string_equal(digest(temp, assert_runs(temp, line).out), expected);

    line = text_format(&temp->arena, "tokenize %s %s", dir, file);
    assert_refused(temp, line, WORDS("lines.jsonl:1", "model.chat_template"));
    model(temp, "{\"model_type\": \"qwen3_moe\"}", NULL);
    assert_string_equal(digest(temp, assert_runs(temp, line).out), expected);
}

static void cmd_tokenize__texts_end_in_the_eos_that_is_known(void **state)
{
    Temp *temp = *state;
    const char *file = lines(temp, "{\"text\": \"a\"}\n");
    const char *line = text_format(&temp->arena, "tokenize %s %s", model(temp, NULL, NULL), file);
    Ran ran = assert_runs(temp, line);
    assert_string_equal(digest(temp, ran.out), "97 | 1");
    assert_says(line, ran.err, WORDS("warning: ", "no eos"));
    model(temp, "{\"eos_token_id\": 258}", NULL);
    ran = assert_runs(temp, line);
    assert_string_equal(digest(temp, ran.out), "97 258 | 1 1");
    assert_string_equal(ran.err, "");
    model(temp, "{\"eos_token_id\": 258}", "{\"eos_token_id\": [256, 258]}");
    assert_string_equal(digest(temp, assert_runs(temp, line).out), "97 256 | 1 1");
}

static void cmd_tokenize__rows_of_ids_pass_through(void **state)
{
    Temp *temp = *state;
    const char *file = lines(temp, "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, -100]}\n\n"
                                   "{\"input_ids\": [99999]}\n");
    Ran ran = assert_runs(
        temp, text_format(&temp->arena, "tokenize %s %s", model(temp, NULL, NULL), file));
    assert_string_equal(digest(temp, ran.out), "1 2 3 | 0 1 0");
    assert_string_equal(strchr(ran.out, '\n') + 1,
                        "{\"ids\": [99999], \"trained\": [1], \"tokens\": [null]}\n");
}

static void cmd_tokenize__refuses_naming_file_and_line(void **state)
{
    Temp *temp = *state;
    Arena *arena = &temp->arena;
    const char *dir = model(temp, NULL, NULL);
    const char *file = lines(temp, "{\"input_ids\": [1]}\n{\"nothing\": 1}\n");
    Ran ran = run_program(temp, text_format(arena, "tokenize %s %s", dir, file));
    assert_int_equal(ran.status, 2);
    assert_says(file, ran.err, WORDS("stagewright: error: ", "lines.jsonl:2"));
    assert_refused(temp, text_format(arena, "tokenize %s", dir), WORDS("nothing to tokenize"));
    assert_refused(temp, text_format(arena, "tokenize %s %s --text x", dir, file),
                   WORDS("both given"));
    assert_refused(temp, text_format(arena, "tokenize %s --text x --chat-template chatml", dir),
                   WORDS("--chat-template chatml", "FILE.jsonl"));
    assert_refused(temp, text_format(arena, "tokenize %s %s --chat-template llama3", dir, file),
                   WORDS("--chat-template: llama3 is not available yet"));
    assert_refused(temp, text_format(arena, "tokenize %s %s --chat-template chatm", dir, file),
                   WORDS("did you mean chatml?"));
    assert_refused(temp, "tokenize", WORDS("MODEL is missing"));
    assert_refused(temp, text_format(arena, "tokenize %s/none --text x", dir),
                   WORDS("tokenizer.json"));
    assert_refused(temp, text_format(arena, "tokenize %s %s.none", dir, file),
                   WORDS("lines.jsonl.none"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(cmd_tokenize__a_text_is_encoded_as_huggingface_does),
        TEMP_TEST(cmd_tokenize__conversations_train_the_assistant),
        TEMP_TEST(cmd_tokenize__texts_end_in_the_eos_that_is_known),
        TEMP_TEST(cmd_tokenize__rows_of_ids_pass_through),
        TEMP_TEST(cmd_tokenize__refuses_naming_file_and_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
