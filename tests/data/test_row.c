#include "fixture.h"

#include "data/row.h"
#include "io/json.h"

static Status parse(Row *row, const char *text, Arena *arena)
{
    JsonDoc doc = {0};
    assert_ok(json_doc_parse(&doc, "test", text, strlen(text)));
    Status st = row_parse(row, doc.root, "f.jsonl:7", 10, arena);
    json_doc_free(&doc);
    return st;
}

static void row__reads_ids_labels_and_segments(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Row row;
    assert_ok(parse(&row,
                    "{\"note\": [], \"input_ids\": [3, 0, 9, 4], \"labels\": [-100, 5, 9, -100], "
                    "\"cu_seqlens\": [0, 1, 4]}",
                    &arena));
    assert_int_equal(row.n_tokens, 4);
    assert_int_equal(row.n_segments, 2);
    static const int32_t id[] = {3, 0, 9, 4}, label[] = {-100, 5, 9, -100}, cu[] = {0, 1, 4};
    static const uint8_t trained[] = {0, 1, 1, 0};
    assert_memory_equal(row.id_t, id, sizeof id);
    assert_memory_equal(row.cu_seqlens, cu, sizeof cu);
    assert_memory_equal(row.trained_t, trained, sizeof trained);
    for (int t = 0; t < 4; t++) assert_int_equal(row_label(&row, t), label[t]);
    arena_free(&arena);
}

static void row__trains_all_of_one_sample_when_only_ids_are_given(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Row row;
    assert_ok(parse(&row, "{\"input_ids\": [9], \"labels\": null}", &arena)); /* T = 1 is legal */
    assert_int_equal(row.n_tokens, 1);
    assert_int_equal(row.n_segments, 1);
    assert_int_equal(row.cu_seqlens[1], 1);
    assert_int_equal(row_label(&row, 0), 9);
    assert_null(row.label_t); /* labels that are the ids cost no memory */
    assert_ok(parse(&row, "{\"input_ids\": [9, 2], \"labels\": [-100, 2]}", &arena));
    assert_null(row.label_t);
    arena_free(&arena);
}

static void row__refuses_bad_lines(void **state)
{
    (void)state;
    // clang-format off
    static const struct { const char *line, *words; } refused[] = {
        {"[1, 2]",                                              "expected an object"},
        {"{}",                                                  "no input_ids"},
        {"{\"input_ids\": null}",                               "no input_ids"},
        {"{\"input_ids\": []}",                                 "input_ids: empty"},
        {"{\"input_ids\": \"1\"}",                              "input_ids: not a list"},
        {"{\"input_ids\": [1, 2.0]}",                           "input_ids[1]: not an integer"},
        {"{\"input_ids\": [true]}",                             "input_ids[0]: not an integer"},
        {"{\"input_ids\": [null]}",                             "input_ids[0]: not an integer"},
        {"{\"input_ids\": [10]}",                               "input_ids[0]: out of range (found 10, expected 0 ... 9)"},
        {"{\"input_ids\": [-1]}",                               "input_ids[0]: out of range"},
        {"{\"input_ids\": [-100]}",                             "input_ids[0]: out of range"},
        {"{\"input_ids\": [4294967297]}",                       "input_ids[0]: out of range"},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}",            "labels: found 1 entries, expected 2"},
        {"{\"input_ids\": [1], \"labels\": []}",                "labels: found 0 entries, expected 1"},
        {"{\"input_ids\": [1], \"labels\": [10]}",              "labels[0]: out of range"},
        {"{\"input_ids\": [1], \"labels\": [-1]}",              "labels[0]: out of range"},
        {"{\"input_ids\": [1], \"labels\": [1.5]}",             "labels[0]: not an integer"},
        {"{\"input_ids\": [1], \"labels\": {}}",                "labels: not a list"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": []}",         "cu_seqlens: found 0 entries"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0]}",        "cu_seqlens: found 1 entries"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [1, 2]}",     "cu_seqlens[0]: found 1, expected 0"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 1]}",     "cu_seqlens: last entry 1, expected the 2"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 3]}",     "cu_seqlens: last entry 3, expected the 2"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 1, 1, 2]}", "cu_seqlens[2]: not above"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 2, 1]}",  "cu_seqlens[2]: not above"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, -5, 2]}", "cu_seqlens[1]: not above"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 2.0]}",   "cu_seqlens[1]: not an integer"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 4294967298]}", "cu_seqlens[1]: out of range"},
    };
    // clang-format on
    Arena arena;
    arena_init(&arena, "test");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        Row row = {.n_tokens = -7};
        assert_fails(parse(&row, refused[i].line, &arena), ERR_FORMAT, refused[i].words);
        assert_non_null(strstr(status_message(), "f.jsonl:7: "));
        assert_int_equal(row.n_tokens, -7); /* outputs are set on success only */
    }
    arena_free(&arena);
}

static void row__reads_a_batch_file(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    char *dir = fixture_dir();
    TextBuffer text;
    text_buffer_init(&text, &arena);
    for (int i = 0; i < 40; i++) text_append_format(&text, "{\"input_ids\": [1, %d]}\n\n", i % 10);
    char *path = fixture_write(&arena, dir, "batch.jsonl", text.text);
    Row *row;
    int64_t n;
    assert_ok(row_read_file(&row, &n, path, 10, &arena));
    assert_int_equal(n, 40);
    for (int i = 0; i < 40; i++) assert_int_equal(row[i].id_t[1], i % 10);

    path =
        fixture_write(&arena, dir, "bad.jsonl", "{\"input_ids\": [1]}\n\n{\"input_ids\": [11]}\n");
    assert_fails(row_read_file(&row, &n, path, 10, &arena), ERR_FORMAT,
                 "bad.jsonl:3: input_ids[0]");
    path = fixture_write(&arena, dir, "json.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [1}\n");
    assert_fails(row_read_file(&row, &n, path, 10, &arena), ERR_FORMAT, "json.jsonl:2: ");
    path = fixture_write(&arena, dir, "empty.jsonl", "\n");
    assert_fails(row_read_file(&row, &n, path, 10, &arena), ERR_FORMAT, "empty.jsonl: no rows");
    assert_fails(row_read_file(&row, &n, "/nonexistent/x.jsonl", 10, &arena), ERR_IO, "x.jsonl");
    fixture_remove(dir);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row__reads_ids_labels_and_segments),
        cmocka_unit_test(row__trains_all_of_one_sample_when_only_ids_are_given),
        cmocka_unit_test(row__refuses_bad_lines),
        cmocka_unit_test(row__reads_a_batch_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
