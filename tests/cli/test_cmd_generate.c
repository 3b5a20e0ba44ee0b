#include "program.h"

#include "../data/fixture.h"
#include "io/json.h"

static const char config_text[] =
    "{\"model_type\": \"qwen3\", \"hidden_size\": 16, \"num_hidden_layers\": 1, \"vocab_size\": "
    "260,\n"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8,\n"
    " \"intermediate_size\": 16, \"initializer_range\": 1.0}\n";

/* A random model over the byte tokenizer, which names no eos. */
static const char *model(Temp *temp)
{
    char *dir = temp_path(temp, "config");
    assert_ok(dir_create(dir));
    fixture_write(&temp->arena, dir, "config.json", config_text);
    fixture_write(&temp->arena, dir, "tokenizer.json", fixture_tokenizer_json(&temp->arena));
    char *out = temp_path(temp, "model");
    assert_runs(temp, text_format(&temp->arena, "init '%s' --config '%s'", out, dir));
    return out;
}

/* The answer of one line of JSON. */
static json_t *answer(Temp *temp, const char *model, const char *arguments)
{
    Ran ran = assert_runs(temp, text_format(&temp->arena, "generate '%s' %s", model, arguments));
    JsonDoc doc;
    assert_ok(json_doc_parse(&doc, "answer", ran.out, strlen(ran.out)));
    json_t *root = json_incref(doc.root);
    json_doc_free(&doc);
    return root;
}

static void generate__stops_at_the_eos_of_the_tokenizer_if_no_other_is_known(void **state)
{
    Temp *temp = *state;
    const char *dir = model(temp);
    json_t *first = answer(temp, dir, "--prompt abc --max-new-tokens 3 --json");
    json_t *ids = json_object_get(first, "ids");
    assert_int_equal(json_array_size(ids), 3);
    assert_string_equal(json_string_value(json_object_get(first, "finish")), "length");
    int id = (int)json_integer_value(json_array_get(ids, 0));
    static const char *const added[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"};
    char *eos = id < 256 ? text_format(&temp->arena, "\\u%04x", fixture_letter(id))
                         : text_copy(&temp->arena, added[id - 256]);
    fixture_write(&temp->arena, dir, "tokenizer_config.json",
                  text_format(&temp->arena, "{\"eos_token\": \"%s\"}", eos));
    json_t *second = answer(temp, dir, "--prompt abc --max-new-tokens 3 --json");
    assert_int_equal(json_array_size(json_object_get(second, "ids")), 0);
    assert_string_equal(json_string_value(json_object_get(second, "finish")), "eos");
    json_decref(first);
    json_decref(second);
}

static void generate__the_seed_decides_what_is_drawn(void **state)
{
    Temp *temp = *state;
    const char *dir = model(temp);
    json_t *of[3];
    static const char *const seeds[] = {"1", "1", "2"};
    for (int i = 0; i < 3; i++)
        of[i] =
            answer(temp, dir,
                   text_format(&temp->arena,
                               "--prompt abc --max-new-tokens 8 --json --temperature 1 --seed %s",
                               seeds[i]));
    assert_true(json_equal(of[0], of[1]));
    assert_false(json_equal(of[0], of[2]));
    for (int i = 0; i < 3; i++) json_decref(of[i]);
}

static void generate__prompts_give_one_answer_a_line(void **state)
{
    Temp *temp = *state;
    const char *dir = model(temp);
    static const char lines[] =
        "{\"prompt\": \"a\"}\n[{\"role\": \"user\", \"content\": \"b\"}]\n{\"text\": \"c\"}\n";
    const char *file = temp_file(temp, "prompts.jsonl", lines, sizeof lines - 1);
    Ran ran = assert_runs(
        temp,
        text_format(&temp->arena, "generate '%s' --prompts '%s' --max-new-tokens 5", dir, file));
    int n = 0;
    for (const char *at = ran.out; *at; n++) {
        const char *end = strchr(at, '\n');
        assert_non_null(end);
        JsonDoc doc;
        assert_ok(json_doc_parse(&doc, "answer", at, (size_t)(end - at)));
        assert_true(json_is_string(json_object_get(doc.root, "text")));
        json_doc_free(&doc);
        at = end + 1;
    }
    assert_int_equal(n, 3);
}

static void generate__refuses_what_it_cannot_continue(void **state)
{
    Temp *temp = *state;
    const char *dir = model(temp);
    static const struct {
        const char *arguments, *words[3];
    } rows[] = {
        {"", {"exactly one of --prompt, --messages and --prompts"}},
        {"--prompt a --prompts b", {"exactly one of"}},
        {"--prompt ''", {"prompt 1 has no tokens"}},
        {"--prompt a --max-new-tokens 0", {"--max-new-tokens", "out of range"}},
        {"--prompt a --temperature -1", {"--temperature", "out of range"}},
        {"--messages none.json", {"none.json"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_refused(temp, text_format(&temp->arena, "generate '%s' %s", dir, rows[i].arguments),
                       rows[i].words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(generate__stops_at_the_eos_of_the_tokenizer_if_no_other_is_known),
        TEMP_TEST(generate__the_seed_decides_what_is_drawn),
        TEMP_TEST(generate__prompts_give_one_answer_a_line),
        TEMP_TEST(generate__refuses_what_it_cannot_continue),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
