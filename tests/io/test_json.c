#include "temp_dir.h"
#include "io/json.h"

#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

/* AddressSanitizer's allocator, where there is one, refuses what is too much rather than end the program. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static JsonDoc parse(const char *text)
{
    JsonDoc doc = {0};
    assert_ok(json_doc_parse(&doc, "place", text, strlen(text)));
    return doc;
}

static void json__bad_text_names_file_line_and_reason(void **state)
{
    Temp *temp = *state;
    // clang-format off
    static const struct { const char *text, *where, *reason; } rows[] = {
        {"",                            "bad.json:1:",  "expected"},
        {"   ",                         "bad.json:1:",  "expected"},
        {"{\"a\": 1,\n \"b\": }",       "bad.json:2:",  "unexpected token"},
        {"{\"a\": 1} x",                "bad.json:1:",  "end of file expected"},
        {"{\"a\": 1,\n\"a\": 2}",       "bad.json:2:",  "duplicate object key near '\"a\"'"},
        {"[9223372036854775808]",       "bad.json:1:",  "too big integer"},
        {"[-9223372036854775809]",      "bad.json:1:",  "too big negative integer"},
        {"[1e999]",                     "bad.json:1:",  "real number overflow"},
        {"[\"\xff\"]",                  "bad.json:1:",  "decode byte 0xff"},
        {"[\"\xed\xa0\x80\"]",          "bad.json:1:",  "decode byte"},   /* a surrogate in UTF-8 */
        {"[\"\xc0\xaf\"]",              "bad.json:1:",  "decode byte"},   /* an overlong slash */
        {"[\"\\ud800\"]",               "bad.json:1:",  "invalid Unicode"},
        {"[NaN]",                       "bad.json:1:",  "invalid token"},
        {"[1,]",                        "bad.json:1:",  "unexpected token"},
        {"7",                           "bad.json:1:",  "expected"},
        {"[01]",                        "bad.json:1:",  "invalid token"},
        {"[\"a\tb\"]",                  "bad.json:1:",  "control character"},
    };
    // clang-format on
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char *path = temp_file(temp, "bad.json", rows[r].text, strlen(rows[r].text));
        JsonDoc doc = {0};
        assert_int_equal(json_doc_read(&doc, path), ERR_FORMAT);
        assert_null(doc.root);
        assert_message(temp->dir);
        assert_message(rows[r].where);
        assert_message(rows[r].reason);
        assert_null(strchr(status_message(), '\n'));
    }
    JsonDoc doc = {0};
    assert_int_equal(json_doc_read(&doc, temp_path(temp, "none.json")), ERR_IO);
    json_doc_free(&doc);
}

static void json__deep_nesting_is_an_error_not_a_crash(void **state)
{
    Temp *temp = *state;
    size_t n = 5 * 1000 * 1000;
    char *text = arena_take(&temp->arena, n);
    memset(text, '[', n);
    JsonDoc doc = {0};
    assert_int_equal(json_doc_parse(&doc, "deep", text, n), ERR_FORMAT);
    assert_message("deep:1:");
    assert_message("depth");
}

static void json__getters_return_values(void **state)
{
    (void)state;
    JsonDoc doc =
        parse("{\"i\": -9223372036854775808, \"r\": 2.5, \"n\": 3, \"t\": true, \"f\": false,"
              " \"s\": \"\\u00e9\", \"o\": {\"k\": 1}, \"a\": [1, 2], \"z\": null}");
    int64_t i;
    double r;
    bool b;
    const char *s;
    json_t *v;
    assert_ok(json_get_int(doc.root, "place", "i", &i));
    assert_true(i == INT64_MIN);
    assert_ok(json_get_real(doc.root, "place", "r", &r));
    assert_true(r == 2.5);
    assert_ok(json_get_real(doc.root, "place", "n", &r));
    assert_true(r == 3);
    assert_ok(json_get_bool(doc.root, "place", "t", &b));
    assert_true(b);
    assert_ok(json_get_bool(doc.root, "place", "f", &b));
    assert_false(b);
    assert_ok(json_get_string(doc.root, "place", "s", &s));
    assert_string_equal(s, "\xc3\xa9");
    assert_ok(json_get_object(doc.root, "place", "o", &v));
    assert_ok(json_get_int(v, "place", "k", &i));
    assert_int_equal(i, 1);
    assert_ok(json_get_array(doc.root, "place", "a", &v));
    assert_int_equal(json_array_size(v), 2);
    json_doc_free(&doc);
    assert_null(doc.root);
}

static void json__absent_and_null_take_the_fallback(void **state)
{
    (void)state;
    JsonDoc doc = parse("{\"z\": null}");
    static const char *const keys[] = {"z", "absent"};
    for (int k = 0; k < 2; k++) {
        int64_t i = 0;
        double r = 0;
        bool b = false;
        const char *s = NULL;
        json_t *v = doc.root;
        assert_ok(json_get_int_or(doc.root, "place", keys[k], 7, &i));
        assert_int_equal(i, 7);
        assert_ok(json_get_real_or(doc.root, "place", keys[k], 0.5, &r));
        assert_true(r == 0.5);
        assert_ok(json_get_bool_or(doc.root, "place", keys[k], true, &b));
        assert_true(b);
        assert_ok(json_get_string_or(doc.root, "place", keys[k], "fallback", &s));
        assert_string_equal(s, "fallback");
        assert_ok(json_get_object_or_null(doc.root, "place", keys[k], &v));
        assert_null(v);
        v = doc.root;
        assert_ok(json_get_array_or_null(doc.root, "place", keys[k], &v));
        assert_null(v);
        assert_int_equal(json_get_int(doc.root, "place", keys[k], &i), ERR_FORMAT);
        assert_message(k ? "place: key absent: missing"
                         : "place: key z: expected an integer (found null)");
    }
    json_doc_free(&doc);
}

static void json__other_kinds_are_refused_by_name(void **state)
{
    Temp *temp = *state;
    JsonDoc doc = parse("{\"r\": 1.0, \"s\": \"3\", \"i\": 1, \"a\": [1, 2.0], \"n\": \"a\"}");
    int64_t i, *list;
    double r;
    bool b;
    const char *s;
    json_t *v;
    assert_int_equal(json_get_int(doc.root, "place", "r", &i), ERR_FORMAT);
    assert_message("place: key r: expected an integer (found a real)");
    assert_int_equal(json_get_int_or(doc.root, "place", "s", 1, &i), ERR_FORMAT);
    assert_message("place: key s: expected an integer (found a string)");
    assert_int_equal(json_get_real(doc.root, "place", "s", &r), ERR_FORMAT);
    assert_message("expected a number");
    assert_int_equal(json_get_bool(doc.root, "place", "i", &b), ERR_FORMAT);
    assert_message("expected true or false (found an integer)");
    assert_int_equal(json_get_string(doc.root, "place", "i", &s), ERR_FORMAT);
    assert_message("expected a string");
    assert_int_equal(json_get_object(doc.root, "place", "a", &v), ERR_FORMAT);
    assert_message("expected an object (found a list)");
    assert_int_equal(json_get_array(doc.root, "place", "i", &v), ERR_FORMAT);
    assert_message("expected a list");
    assert_int_equal(json_get_int_array(&temp->arena, doc.root, "place", "a", &list, &i),
                     ERR_FORMAT);
    assert_message("key a[1]: expected an integer (found a real)");
    assert_ok(json_get_array(doc.root, "place", "a", &v));
    assert_int_equal(json_get_int(v, "place", "k", &i), ERR_FORMAT);
    assert_message("place: expected an object (found a list)");
    json_doc_free(&doc);
}

static void json__lists_of_integers_are_copied(void **state)
{
    Temp *temp = *state;
    JsonDoc doc = parse("{\"a\": [3, -1, 9223372036854775807], \"e\": []}");
    int64_t *list, n;
    assert_ok(json_get_int_array(&temp->arena, doc.root, "place", "a", &list, &n));
    assert_ok(
        json_get_int_array(&temp->arena, doc.root, "place", "e", &(int64_t *){0}, &(int64_t){0}));
    json_doc_free(&doc);
    assert_int_equal(n, 3);
    assert_int_equal(list[0], 3);
    assert_int_equal(list[1], -1);
    assert_true(list[2] == INT64_MAX);
}

static void json__written_files_are_indented_and_read_again(void **state)
{
    Temp *temp = *state;
    JsonDoc doc = parse("{\"b\":[1,0.1],\"a\":\"\xc3\xa9\"}"), again = {0};
    char *path = temp_path(temp, "a.json"), *text;
    assert_ok(json_write_file(path, doc.root));
    assert_ok(file_read(&temp->arena, path, &text, NULL));
    assert_string_equal(text, "{\n  \"b\": [\n    1,\n    0.10000000000000001\n  ],\n"
                              "  \"a\": \"\xc3\xa9\"\n}\n");
    assert_ok(json_doc_read(&again, path));
    assert_true(json_equal(doc.root, again.root));
    json_doc_free(&doc);
    json_doc_free(&again);
}

static void json__appended_reals_have_17_digits_or_are_null(void **state)
{
    Temp *temp = *state;
    // clang-format off
    static const struct { double value; const char *text; } rows[] = {
        {0.1, "0.10000000000000001"}, {1, "1"}, {-0.0, "-0"}, {1e300, "1.0000000000000001e+300"},
        {NAN, "null"}, {INFINITY, "null"}, {-INFINITY, "null"},
    };
    // clang-format on
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        TextBuffer buffer;
        text_buffer_init(&buffer, &temp->arena);
        json_append_real(&buffer, rows[r].value);
        assert_string_equal(buffer.text, rows[r].text);
    }
}

static void json__appended_strings_are_escaped(void **state)
{
    Temp *temp = *state;
    TextBuffer buffer;
    text_buffer_init(&buffer, &temp->arena);
    json_append_string_n(&buffer, "a\"\\\n\x01\0\xc3\xa9/z", 10);
    assert_string_equal(buffer.text, "\"a\\\"\\\\\\n\\u0001\\u0000\xc3\xa9/z\"");
    text_buffer_init(&buffer, &temp->arena);
    json_append_string(&buffer, "");
    assert_string_equal(buffer.text, "\"\"");
}

/* jansson goes on with what it did not get; so it is never told. */
static void json__ends_the_program_without_memory(void **state)
{
    (void)state;
    json_malloc_t take;
    json_free_t give_back;
    json_get_alloc_funcs(&take, &give_back);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(STDERR_FILENO);
        _exit(take(SIZE_MAX / 2) ? 40 : 41);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(json__bad_text_names_file_line_and_reason),
        TEMP_TEST(json__deep_nesting_is_an_error_not_a_crash),
        TEMP_TEST(json__getters_return_values),
        TEMP_TEST(json__absent_and_null_take_the_fallback),
        TEMP_TEST(json__other_kinds_are_refused_by_name),
        TEMP_TEST(json__lists_of_integers_are_copied),
        TEMP_TEST(json__written_files_are_indented_and_read_again),
        TEMP_TEST(json__appended_reals_have_17_digits_or_are_null),
        TEMP_TEST(json__appended_strings_are_escaped),
        TEMP_TEST(json__ends_the_program_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
