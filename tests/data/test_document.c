#include "fixture.h"

#include "data/document.h"
#include "io/jsonl.h"

static Status parse(Document *out, const char *text, DataFormat format, Arena *arena)
{
    JsonlReader reader;
    json_t *value;
    assert_ok(jsonl_open_memory(&reader, "f.jsonl", text, strlen(text)));
    assert_ok(jsonl_next(&reader, &value));
    Status st = document_parse(out, value, reader.place, format, 10, arena);
    jsonl_close(&reader);
    return st;
}

/** "role:text:trained|…" or "text:…" or "ids:n". */
static char *shown(const Document *document, Arena *arena)
{
    if (document->kind == DOCUMENT_TEXT)
        return text_format(arena, "text:%.*s", (int)document->bytes, document->text);
    if (document->kind == DOCUMENT_IDS)
        return text_format(arena, "ids:%d", (int)document->row.n_tokens);
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    for (int i = 0; i < document->n_messages; i++) {
        const Message *m = &document->message[i];
        text_append_format(&buffer, "%s%s:%.*s:%d", i ? "|" : "", role_names[m->role],
                           (int)m->bytes, m->text, m->trained);
    }
    return buffer.text;
}

static void document__reads_every_kind_of_line(void **state)
{
    (void)state;
    // clang-format off
    static const struct { const char *line, *shown; } known[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], \"id\": 3}",
         "user:a:0|assistant:b:1"},
        {"[{\"content\": \"a\", \"role\": \"system\"}, {\"role\": \"tool\", \"content\": \"\", \"name\": 7}]",
         "system:a:0|tool::0"},
        {"[{\"role\": \"pretrain\", \"content\": \"p\"}, {\"role\": \"pretrain\", \"content\": \"q\", \"loss\": false}]",
         "pretrain:p:1|pretrain:q:0"},
        {"[{\"role\": \"user\", \"content\": \"a\", \"loss\": true}, {\"role\": \"assistant\", \"content\": \"b\", \"loss\": false}]",
         "user:a:1|assistant:b:0"},
        {"[{\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"r\", \"loss\": null}]",
         "assistant:b:1"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}]",
         "user:ab:0"},
        {"[{\"role\": \"user\", \"content\": []}]", "user::0"},
        {"{\"text\": \"hello\"}", "text:hello"},
        {"{\"content\": \"hello\"}", "text:hello"},
        {"{\"text\": \"t\", \"content\": \"c\"}", "text:t"},
        {"{\"input_ids\": [1, 2, 3]}", "ids:3"},
        {"{\"instruction\": \"i\", \"input\": \"x\", \"output\": \"o\"}", "user:i\nx:0|assistant:o:1"},
        {"{\"instruction\": \"i\", \"input\": \"\", \"output\": \"o\"}", "user:i:0|assistant:o:1"},
        {"{\"instruction\": \"i\", \"output\": \"o\"}", "user:i:0|assistant:o:1"},
        {"{\"instruction\": \"i\", \"input\": null, \"output\": \"o\"}", "user:i:0|assistant:o:1"},
        {"{\"prompt\": \"p\", \"response\": \"r\"}", "user:p:0|assistant:r:1"},
        {"{\"question\": \"q\", \"answer\": \"a\"}", "user:q:0|assistant:a:1"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"m\"}], \"text\": \"t\"}", "user:m:0"},
        {"{\"input_ids\": [1], \"messages\": []}", "ids:1"},
    };
    // clang-format on
    Arena arena;
    arena_init(&arena, "test");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        Document document;
        assert_ok(parse(&document, known[i].line, DATA_AUTO, &arena));
        assert_string_equal(shown(&document, &arena), known[i].shown);
    }
    arena_free(&arena);
}

static void document__keeps_nul_characters(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Document document;
    assert_ok(parse(&document, "{\"text\": \"a\\u0000b\"}", DATA_AUTO, &arena));
    assert_int_equal(document.bytes, 3);
    assert_memory_equal(document.text, "a\0b", 4);
    arena_free(&arena);
}

static void document__takes_only_the_format_asked_for(void **state)
{
    (void)state;
    static const char *const line[] = {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
                                       "{\"text\": \"t\"}", "{\"input_ids\": [1]}",
                                       "{\"question\": \"q\", \"answer\": \"a\"}"};
    static const bool good[4][DATA_FORMAT_COUNT] = {{[DATA_MESSAGES] = true, [DATA_AUTO] = true},
                                                    {[DATA_TEXT] = true, [DATA_AUTO] = true},
                                                    {[DATA_IDS] = true, [DATA_AUTO] = true},
                                                    {[DATA_MESSAGES] = true, [DATA_AUTO] = true}};
    Arena arena;
    arena_init(&arena, "test");
    for (int i = 0; i < 4; i++)
        for (int format = 0; format < DATA_FORMAT_COUNT; format++) {
            Document document;
            Status st = parse(&document, line[i], (DataFormat)format, &arena);
            assert_int_equal(st, good[i][format] ? OK : ERR_FORMAT);
        }
    arena_free(&arena);
}

static void document__refuses_bad_lines(void **state)
{
    (void)state;
    // clang-format off
    static const struct { const char *line, *words; } refused[] = {
        {"{}",                                                        "not a sample"},
        {"{\"tekst\": \"a\"}",                                        "not a sample"},
        {"{\"question\": \"q\"}",                                     "not a sample"},
        {"[]",                                                        "no messages"},
        {"{\"messages\": []}",                                        "no messages"},
        {"{\"messages\": \"a\"}",                                     "messages: not a list"},
        {"{\"messages\": null}",                                      "messages: not a list"},
        {"[1]",                                                       "message 1: expected an object"},
        {"[{\"content\": \"a\"}]",                                    "message 1: key role: missing"},
        {"[{\"role\": 1, \"content\": \"a\"}]",                       "key role"},
        {"[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"bot\", \"content\": \"a\"}]",
         "message 2: unknown role (found \"bot\""},
        {"[{\"role\": \"User\", \"content\": \"a\"}]",                "unknown role"},
        {"[{\"role\": \"user\"}]",                                    "content: not a text (found nothing)"},
        {"[{\"role\": \"user\", \"content\": null}]",                 "content: not a text"},
        {"[{\"role\": \"user\", \"content\": 1}]",                    "content: not a text"},
        {"[{\"role\": \"user\", \"content\": \"a\", \"loss\": 1}]",   "key loss"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", "unknown type (found \"image_url\""},
        {"[{\"role\": \"user\", \"content\": [{\"text\": \"a\"}]}]",  "content[0]: no type"},
        {"[{\"role\": \"user\", \"content\": [\"a\"]}]",              "content[0]: no type"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", "not a text"},
        {"{\"text\": 1}",                                             "text: not a text (found an integer)"},
        {"{\"content\": [\"a\"]}",                                    "content: not a text"},
        {"{\"prompt\": [], \"response\": \"a\"}",                     "prompt: not a text"},
        {"{\"prompt\": \"a\", \"response\": {}}",                     "response: not a text"},
        {"{\"instruction\": \"a\", \"input\": 2, \"output\": \"b\"}", "input: not a text"},
        {"{\"input_ids\": [10]}",                                     "input_ids[0]: out of range"},
    };
    // clang-format on
    Arena arena;
    arena_init(&arena, "test");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        Document document;
        assert_fails(parse(&document, refused[i].line, DATA_AUTO, &arena), ERR_FORMAT,
                     refused[i].words);
        assert_non_null(strstr(status_message(), "f.jsonl:1: "));
    }
    Document document;
    assert_fails(parse(&document, "{\"a\": 1}", DATA_TEXT, &arena), ERR_FORMAT, "neither");
    assert_fails(parse(&document, "{\"a\": 1}", DATA_MESSAGES, &arena), ERR_FORMAT, "no messages");
    assert_fails(parse(&document, "[1]", DATA_TEXT, &arena), ERR_FORMAT, "expected an object");
    assert_fails(parse(&document, "[1]", DATA_IDS, &arena), ERR_FORMAT, "expected an object");
    arena_free(&arena);
}

static void document__reads_a_file_of_messages(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    char *dir = fixture_dir();
    char *path =
        fixture_write(&arena, dir, "m.json",
                      "{\n  \"messages\": [\n{\"role\": \"user\",\n \"content\": \"a\"}]\n}\n");
    const Message *message;
    int n;
    assert_ok(document_read_messages(&message, &n, path, &arena));
    assert_int_equal(n, 1);
    assert_string_equal(message[0].text, "a");
    path = fixture_write(&arena, dir, "n.json", "{\"messages\": 3}");
    assert_fails(document_read_messages(&message, &n, path, &arena), ERR_FORMAT,
                 "n.json: messages");
    fixture_remove(dir);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(document__reads_every_kind_of_line),
        cmocka_unit_test(document__keeps_nul_characters),
        cmocka_unit_test(document__takes_only_the_format_asked_for),
        cmocka_unit_test(document__refuses_bad_lines),
        cmocka_unit_test(document__reads_a_file_of_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
