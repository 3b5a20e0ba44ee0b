/**
 * Folders with a tokenizer.json and a golden-ids.jsonl, whose lines say what HuggingFace makes of a text:
 * {"text", "ids"} and, where given, "plain" (no added tokens recognised), "template" (with the
 * post-processor's), "decoded" and "decoded_skip" (skip_special_tokens). Tried are ours, made by
 * scripts/golden/tokenizer_compare.py; those of the shared data where there is any; and the one that
 * the environment variable SW_TOKENIZER_GOLDEN names.
 */
#include "data/tokenizer.h"
#include "io/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

typedef struct Golden {
    const char *dir;
    Tokenizer *tokenizer;
    TokenBuffer ids;
    int lines, failures;
} Golden;

static void show_ids(const char *what, const int32_t *id, int64_t n)
{
    print_error("  %s:", what);
    for (int64_t i = 0; i < n && i < 40; i++) print_error(" %d", id[i]);
    print_error("%s\n", n > 40 ? " …" : "");
}

static void check_ids(Golden *golden, const json_t *line, const char *key, unsigned flags)
{
    const json_t *expected = json_object_get(line, key), *text = json_object_get(line, "text");
    if (!expected) return;
    int64_t n = (int64_t)json_array_size(expected);
    golden->ids.n = 0;
    Status status = tokenizer_encode(golden->tokenizer, json_string_value(text),
                                     json_string_length(text), flags, &golden->ids);
    bool equal = status == OK && golden->ids.n == n;
    for (int64_t i = 0; i < n && equal; i++) {
        equal = json_integer_value(json_array_get(expected, (size_t)i)) == golden->ids.id[i];
    }
    if (equal || golden->failures++ >= 20) return;
    char *shown = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
    print_error("%s line %d, %s: %s\n", golden->dir, golden->lines, key, shown);
    free(shown);
    if (status != OK) print_error("  %s\n", status_message());
    show_ids("found", golden->ids.id, golden->ids.n);
    TokenBuffer wanted = {0};
    for (int64_t i = 0; i < n; i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(expected, (size_t)i));
        assert_int_equal(token_buffer_append(&wanted, &id, 1), OK);
    }
    show_ids("expected", wanted.id, wanted.n);
    token_buffer_free(&wanted);
}

/* The ids of the line (with the template's, if it has those) decoded. */
static void check_text(Golden *golden, const json_t *line, const char *key, bool skip, Arena *arena)
{
    const json_t *expected = json_object_get(line, key), *ids = json_object_get(line, "template");
    if (!expected) return;
    if (!ids) ids = json_object_get(line, "ids");
    golden->ids.n = 0;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int32_t id = (int32_t)json_integer_value(json_array_get(ids, i));
        assert_int_equal(token_buffer_append(&golden->ids, &id, 1), OK);
    }
    ArenaMark mark = arena_mark(arena);
    TextBuffer text;
    text_buffer_init(&text, arena);
    tokenizer_decode(golden->tokenizer, golden->ids.id, golden->ids.n, skip, &text);
    if ((text.length != json_string_length(expected) ||
         memcmp(text.text, json_string_value(expected), text.length) != 0) &&
        golden->failures++ < 20) {
        print_error("%s line %d, %s: found \"%s\", expected \"%s\"\n", golden->dir, golden->lines,
                    key, text.text, json_string_value(expected));
    }
    arena_rewind(arena, mark);
}

static void check_dir(const char *dir)
{
    Arena arena;
    arena_init(&arena, "golden");
    const char *path = path_join(&arena, dir, "golden-ids.jsonl");
    char *text;
    size_t n;
    Golden golden = {.dir = dir};
    if (tokenizer_open(&golden.tokenizer, dir, &arena, NULL) != OK)
        fail_msg("%s", status_message());
    if (file_read(&arena, path, &text, &n) != OK) fail_msg("%s", status_message());
    for (char *at = text, *end; at < text + n; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + n - at));
        if (!end) end = text + n;
        golden.lines++;
        json_error_t error;
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, &error);
        if (!line) fail_msg("%s:%d: %s", path, golden.lines, error.text);
        check_ids(&golden, line, "ids", TOKENIZE_SPECIAL);
        check_ids(&golden, line, "template", TOKENIZE_SPECIAL | TOKENIZE_TEMPLATE);
        check_ids(&golden, line, "plain", 0);
        check_text(&golden, line, "decoded", false, &arena);
        check_text(&golden, line, "decoded_skip", true, &arena);
        json_decref(line);
    }
    assert_true(golden.lines > 0);
    print_message("%s: %d lines, %d differ\n", dir, golden.lines, golden.failures);
    assert_int_equal(golden.failures, 0);
    token_buffer_free(&golden.ids);
    tokenizer_free(&golden.tokenizer);
    arena_free(&arena);
}

static void check_dirs(const char *parent)
{
    Arena arena;
    arena_init(&arena, "list");
    char **names;
    int n, tried = 0;
    if (dir_list(&arena, parent, &names, &n) != OK) fail_msg("%s", status_message());
    for (int i = 0; i < n; i++) {
        const char *dir = path_join(&arena, parent, names[i]);
        if (!file_exists(path_join(&arena, dir, "golden-ids.jsonl"))) continue;
        check_dir(dir);
        tried++;
    }
    assert_true(tried > 0);
    arena_free(&arena);
}

static void tokenizer__matches_our_goldens(void **state)
{
    (void)state;
    check_dirs(SW_SOURCE_DIR "/tests/data/tokenizer");
}

static void tokenizer__matches_published_tokenizers(void **state)
{
    (void)state;
    const char *shared = getenv("SW_SHARED_DATA");
    if (!shared) shared = SW_SOURCE_DIR "/../shared/data";
    Arena arena;
    arena_init(&arena, "path");
    const char *dir = path_join(&arena, shared, "tokenizers");
    if (!dir_exists(dir)) {
        print_message("no %s: published tokenizers are not tried\n", dir);
        arena_free(&arena);
        skip();
    }
    check_dirs(dir);
    arena_free(&arena);
}

static void tokenizer__matches_the_named_folder(void **state)
{
    (void)state;
    const char *dir = getenv("SW_TOKENIZER_GOLDEN");
    if (!dir) skip();
    check_dir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer__matches_our_goldens),
        cmocka_unit_test(tokenizer__matches_published_tokenizers),
        cmocka_unit_test(tokenizer__matches_the_named_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
