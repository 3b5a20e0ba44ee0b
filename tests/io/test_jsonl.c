#include "temp_dir.h"
#include "io/jsonl.h"

/* Lines wanted from a text: number and compact dump of each; a dump of NULL is an error. */
typedef struct Row {
    const char *text;
    struct {
        int64_t line;
        const char *dump;
    } want[4]; /* line 0 ends the list */
} Row;

// clang-format off
static const Row rows[] = {
    {"{\"a\":1}\n[2]\n",               {{1, "{\"a\":1}"}, {2, "[2]"}}},
    {"{\"a\":1}\n[2]",                 {{1, "{\"a\":1}"}, {2, "[2]"}}},
    {"[1]\r\n[2]\r\n",                 {{1, "[1]"}, {2, "[2]"}}},
    {"\n \t\r\n[1]\n\n\n[2]\n  ",      {{3, "[1]"}, {6, "[2]"}}},
    {"\xef\xbb\xbf[1]\n",              {{1, "[1]"}}},
    {"[1]\n\xef\xbb\xbf[2]\n[3]\n",    {{1, "[1]"}, {2, NULL}, {3, "[3]"}}},
    {"",                               {{0, NULL}}},
    {"\xef\xbb\xbf",                   {{0, NULL}}},
    {"\r\n\n",                         {{0, NULL}}},
    {"[1] [2]\n[3]\n",                 {{1, NULL}, {2, "[3]"}}},
    {"{\"a\":1,\n\"b\":2}\n[3]\n",     {{1, NULL}, {2, NULL}, {3, "[3]"}}},
    {"{\"a\":1,\"a\":1}\n7\n\"\xff\"\n[4]", {{1, NULL}, {2, NULL}, {3, NULL}, {4, "[4]"}}},
};
// clang-format on

static void check(JsonlReader *reader, const Row *row, const char *path)
{
    Arena arena;
    arena_init(&arena, "check");
    json_t *value;
    for (int i = 0; i < 4 && row->want[i].line; i++) {
        Status st = jsonl_next(reader, &value);
        assert_int_equal(reader->line, row->want[i].line);
        const char *place = text_format(&arena, "%s:%d", path, (int)row->want[i].line);
        assert_string_equal(reader->place, place);
        if (!row->want[i].dump) {
            assert_int_equal(st, ERR_FORMAT);
            assert_message(text_format(&arena, "%s: column ", place));
            continue;
        }
        assert_ok(st);
        char *dump = json_dumps(value, JSON_COMPACT);
        assert_string_equal(dump, row->want[i].dump);
        assert_int_equal(reader->text_bytes, strlen(dump));
        assert_memory_equal(reader->text, dump, reader->text_bytes);
        free(dump);
    }
    for (int again = 0; again < 2; again++) {
        assert_ok(jsonl_next(reader, &value));
        assert_null(value);
    }
    arena_free(&arena);
}

static void jsonl__lines_of_files_and_of_memory(void **state)
{
    Temp *temp = *state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        size_t n = strlen(rows[r].text);
        char *path = temp_file(temp, "lines.jsonl", rows[r].text, n);
        JsonlReader reader;
        assert_ok(jsonl_open(&reader, path));
        check(&reader, &rows[r], path);
        jsonl_close(&reader);
        assert_null(reader.place);
        assert_ok(jsonl_open_memory(&reader, "memory", rows[r].text, n));
        check(&reader, &rows[r], "memory");
        jsonl_close(&reader);
    }
}

static void jsonl__a_line_may_be_megabytes_long(void **state)
{
    Temp *temp = *state;
    size_t n = 3 * 1000 * 1000;
    char *text = arena_take(&temp->arena, n);
    memset(text, 'x', n);
    memcpy(text, "[\"", 2);
    memcpy(text + n - 3, "\"]\n", 3);
    JsonlReader reader;
    json_t *value;
    assert_ok(jsonl_open(&reader, temp_file(temp, "long.jsonl", text, n)));
    assert_ok(jsonl_next(&reader, &value));
    assert_int_equal(json_string_length(json_array_get(value, 0)), n - 5);
    jsonl_close(&reader);
}

static void jsonl__strings_may_hold_nul(void **state)
{
    (void)state;
    const char *text = "{\"t\":\"a\\u0000b\"}";
    JsonlReader reader;
    json_t *value;
    const char *string;
    assert_ok(jsonl_open_memory(&reader, "memory", text, strlen(text)));
    assert_ok(jsonl_next(&reader, &value));
    assert_int_equal(json_string_length(json_object_get(value, "t")), 3);
    assert_int_equal(json_get_string(value, reader.place, "t", &string), ERR_FORMAT);
    assert_message("memory:1: key t: the string holds a NUL");
    jsonl_close(&reader);
}

static void jsonl__missing_file_is_an_error(void **state)
{
    Temp *temp = *state;
    JsonlReader reader = {0};
    char *path = temp_path(temp, "none.jsonl");
    assert_int_equal(jsonl_open(&reader, path), ERR_IO);
    assert_message(path);
    assert_int_equal(jsonl_open(&reader, temp->dir), ERR_IO);
    jsonl_close(&reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(jsonl__lines_of_files_and_of_memory),
        TEMP_TEST(jsonl__a_line_may_be_megabytes_long),
        TEMP_TEST(jsonl__strings_may_hold_nul),
        TEMP_TEST(jsonl__missing_file_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
