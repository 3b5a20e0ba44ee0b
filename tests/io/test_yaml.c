#include "io/yaml.h"
#include "base/arena_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Status parse(YamlDoc *yaml, const char *text, Arena *arena)
{
    return yaml_doc_parse(yaml, "a.yaml", text, strlen(text), arena);
}

/* The tree as JSON, which tells kinds apart; reals with 17 digits. */
static const struct {
    const char *yaml, *json;
} readings[] = {
    {"", "null"},
    {"# nothing\n", "null"},
    {"a: 1\nb: [1, -2, +3]\n", "{\"a\": 1, \"b\": [1, -2, 3]}"},
    {"a:\n  b:\n    - x\n    - {c: y}\n", "{\"a\": {\"b\": [\"x\", {\"c\": \"y\"}]}}"},
    {"[null, ~, Null, NULL, '']", "[null, null, null, null, \"\"]"},
    {"a:\nb: nothing", "{\"a\": null, \"b\": \"nothing\"}"},
    {"[true, True, TRUE, false, False, FALSE]", "[true, true, true, false, false, false]"},
    {"[yes, no, on, off, y, n, tRue]",
     "[\"yes\", \"no\", \"on\", \"off\", \"y\", \"n\", \"tRue\"]"},
    {"[0, 007, 0o17, 0x1F, 9223372036854775807, -9223372036854775808]",
     "[0, 7, 15, 31, 9223372036854775807, -9223372036854775808]"},
    {"[0o8, 0xg, 1_000, 12e, 1e, '-', .]",
     "[\"0o8\", \"0xg\", \"1_000\", \"12e\", \"1e\", \"-\", \".\"]"},
    {"[1e-4, 1.0e-4, .5, 5., 1E3, -0.25, 1e+2, 1.5e0]",
     "[0.0001, 0.0001, 0.5, 5.0, 1000.0, -0.25, 100.0, 1.5]"},
    {"['1', \"2.5\", 'true', \"null\", '~']", "[\"1\", \"2.5\", \"true\", \"null\", \"~\"]"},
    {"a: |\n  x\n  y\nb: >-\n  p\n  q\n", "{\"a\": \"x\\ny\\n\", \"b\": \"p q\"}"},
    {"a: \"\\u00e9\\t\\\"\"", "{\"a\": \"\xc3\xa9\\t\\\"\"}"},
    {"1: a\ntrue: b", "{\"1\": \"a\", \"true\": \"b\"}"},
    {"a: data/*.jsonl", "{\"a\": \"data/*.jsonl\"}"},
    {"'<<': 1", "{\"<<\": 1}"},
    {"--- \na: 1\n...\n", "{\"a\": 1}"},
    {"\xef\xbb\xbf# a byte order mark\na: 1\n", "{\"a\": 1}"},
};

static void yaml__reads_the_core_schema(void **state)
{
    for (size_t i = 0; i < sizeof readings / sizeof readings[0]; i++) {
        YamlDoc yaml;
        if (parse(&yaml, readings[i].yaml, *state) != OK)
            fail_msg("%s: %s", readings[i].yaml, status_message());
        char *json = json_dumps(yaml.root, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        assert_string_equal(json, readings[i].json);
        free(json);
        yaml_doc_free(&yaml);
    }
}

static const struct {
    const char *yaml, *place, *says;
} refusals[] = {
    {"a: 1\nb: &x 2\n", "a.yaml:2:4", "anchors"},
    {"a: *x\n", "a.yaml:1:4", "aliases"},
    {"*x : 1\n", "a.yaml:1:1", "aliases"},
    {"&x a: 1\n", "a.yaml:1:1", "anchors"},
    {"a: [1, *b]\n", "a.yaml:1:8", "aliases"},
    {"a: !int 3\n", "a.yaml:1:4", "tags"},
    {"a: !!str 3\n", "a.yaml:1:4", "tags"},
    {"a: !x [1]\n", "a.yaml:1:4", "tags"},
    {"a: &x {b: 1}\n", "a.yaml:1:4", "anchors"},
    {"<<: {a: 1}\n", "a.yaml:1:1", "merge"},
    {"a: 1\nb: 2\na: 3\n", "a.yaml:3:1", "key a appears twice"},
    {"x:\n  b: 2\n  'b': 3\n", "a.yaml:3:3", "key b appears twice"},
    {"a: 1\n---\nb: 2\n", "a.yaml:2:1", "second document"},
    {"---\n---\n", "a.yaml:2:1", "second document"},
    {"a: .inf\n", "a.yaml:1:4", "not finite (found .inf)"},
    {"a: -.INF\n", "a.yaml:1:4", "not finite"},
    {"a: .nan\n", "a.yaml:1:4", "not finite"},
    {"a: 1e999\n", "a.yaml:1:4", "range of a double (found 1e999)"},
    {"a: 9223372036854775808\n", "a.yaml:1:4", "64 bits"},
    {"a: 0xffffffffffffffff\n", "a.yaml:1:4", "64 bits"},
    {"? [a]\n: 1\n", "a.yaml:1:3", "key that is not"},
    {"a: \"x\\0y\"\n", "a.yaml:1:4", "NUL"},
    {"\"x\\0y\": 1\n", "a.yaml:1:1", "NUL"},
    {"a: [1, 2\n", "a.yaml:2:1", "flow sequence"},
    {"a: 'x\n", "a.yaml:2:1", "quoted scalar"},
    {"a: b: c\n", "a.yaml:1:5", "mapping values"},
    {"a: 1\n  b: 2\n", "a.yaml:2:4", "mapping values"},
    {"a:\n\tb: 1\n", "a.yaml:2:1", "token"},
    {"a: \xff\n", "a.yaml", "byte 3: invalid leading UTF-8 octet"},
    {"a: \xed\xa0\x80\n", "a.yaml", "byte 3"},
    {"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", "a.yaml:1:34",
     "too deep"},
};

static void yaml__refuses_with_the_line(void **state)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        YamlDoc yaml;
        assert_int_equal(parse(&yaml, refusals[i].yaml, *state), ERR_FORMAT);
        if (strncmp(status_message(), refusals[i].place, strlen(refusals[i].place)) ||
            !strstr(status_message(), refusals[i].says))
            fail_msg("%s: said %s", refusals[i].yaml, status_message());
    }
}

static void yaml__refuses_what_is_too_large(void **state)
{
    size_t n = (4 << 20) + 1;
    char *text = malloc(n);
    memset(text, ' ', n);
    YamlDoc yaml;
    assert_int_equal(yaml_doc_parse(&yaml, "a.yaml", text, n, *state), ERR_FORMAT);
    assert_non_null(strstr(status_message(), "a.yaml: too large"));
    free(text);
}

static void yaml__knows_where_keys_stand(void **state)
{
    YamlDoc yaml;
    assert_int_equal(
        parse(&yaml, "train:\n  steps: 3\ndata:\n  train:\n    - a\n    - {path: b}\n", *state),
        OK);
    assert_string_equal(yaml_doc_place(&yaml, "train.steps", *state), "a.yaml:2:3");
    assert_string_equal(yaml_doc_place(&yaml, "data", *state), "a.yaml:3:1");
    assert_string_equal(yaml_doc_place(&yaml, "data.train[1]", *state), "a.yaml:6:7");
    assert_string_equal(yaml_doc_place(&yaml, "data.train[1].path", *state), "a.yaml:6:8");
    assert_string_equal(yaml_doc_place(&yaml, "elsewhere", *state), "a.yaml");
    yaml_doc_free(&yaml);
}

static const char *const texts[] = {
    "plain",
    "data/train.jsonl",
    "",
    "1",
    "1.5",
    "true",
    "null",
    "~",
    "-",
    "- a",
    "a: b",
    "a #b",
    "*x",
    "&x",
    "!x",
    "%x",
    "@x",
    "`x",
    "'q'",
    "\"q\"",
    "back\\slash",
    "[a",
    "{a",
    "a,b",
    "a]",
    " a",
    "a ",
    "line\nbreak",
    "tab\there",
    "\r",
    "\x01\x7f",
    "caf\xc3\xa9",
    "\xe2\x80\xa8",
    "\xf0\x9f\x98\x80",
    "\xc2\x85",
    "\xef\xbb\xbf",
    "...",
    "---",
    "<<",
    "yes",
    "0x1f",
    "1e3",
    ".5",
    "? a",
    "a?",
    "|",
    ">",
    "\xef\xbf\xbe",
};

static void yaml__text_reads_back(void **state)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        TextBuffer out;
        text_buffer_init(&out, *state);
        text_append_format(&out, "k: ");
        yaml_append_text(&out, texts[i]);
        text_append_format(&out, "\nl: [");
        yaml_append_text(&out, texts[i]);
        text_append_format(&out, ", x]\n");
        YamlDoc yaml;
        if (parse(&yaml, out.text, *state) != OK) fail_msg("%s: %s", out.text, status_message());
        json_t *list = json_object_get(yaml.root, "l");
        assert_string_equal(json_string_value(json_object_get(yaml.root, "k")), texts[i]);
        assert_int_equal(json_array_size(list), 2);
        assert_string_equal(json_string_value(json_array_get(list, 0)), texts[i]);
        yaml_doc_free(&yaml);
    }
}

static void yaml__real_reads_back_as_a_real(void **state)
{
    static const double values[] = {0,    1,      -1,   0.1,     1e-4, 1e-8, 1.0 / 3, 1e300, 5e-324,
                                    1e15, 123456, 0.95, -2.5e-7, 1e22, 0.03, 4096,    M_PI,  1e5};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        TextBuffer out;
        text_buffer_init(&out, *state);
        yaml_append_real(&out, values[i]);
        YamlDoc yaml;
        assert_int_equal(parse(&yaml, out.text, *state), OK);
        assert_true(json_is_real(yaml.root));
        double back = json_real_value(yaml.root);
        assert_memory_equal(&back, &values[i], sizeof back);
        yaml_doc_free(&yaml);
    }
}

static void yaml__missing_file_is_an_io_error(void **state)
{
    YamlDoc yaml;
    assert_int_equal(yaml_doc_read(&yaml, "/nonexistent/a.yaml", *state), ERR_IO);
    assert_non_null(strstr(status_message(), "/nonexistent/a.yaml"));
}

static void yaml__reads_a_file(void **state)
{
    char dir[] = "/tmp/test_yaml.XXXXXX";
    assert_non_null(mkdtemp(dir));
    const char *path = path_join(*state, dir, "b.yaml");
    FILE *file = fopen(path, "w");
    fputs("a: 1\nb: {\n", file);
    fclose(file);
    YamlDoc yaml;
    assert_int_equal(yaml_doc_read(&yaml, path, *state), ERR_FORMAT);
    assert_non_null(strstr(status_message(), text_format(*state, "%s:3:1: ", path)));
    file = fopen(path, "w");
    fputs("a: 1\n", file);
    fclose(file);
    assert_int_equal(yaml_doc_read(&yaml, path, *state), OK);
    assert_int_equal(json_integer_value(json_object_get(yaml.root, "a")), 1);
    yaml_doc_free(&yaml);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(yaml__reads_the_core_schema),
        cmocka_unit_test(yaml__refuses_with_the_line),
        cmocka_unit_test(yaml__refuses_what_is_too_large),
        cmocka_unit_test(yaml__knows_where_keys_stand),
        cmocka_unit_test(yaml__text_reads_back),
        cmocka_unit_test(yaml__real_reads_back_as_a_real),
        cmocka_unit_test(yaml__missing_file_is_an_io_error),
        cmocka_unit_test(yaml__reads_a_file),
    };
    return cmocka_run_group_tests(tests, arena_setup, arena_teardown);
}
