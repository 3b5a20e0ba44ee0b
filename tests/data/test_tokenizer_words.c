/**
 * Lines {"split": a Split pre-tokenizer (as in the lines before where there is none), "text", "words":
 * HuggingFace's}: tests/data/tokenizer's, made by scripts/golden/tokenizer_compare.py, and those of the
 * file that SW_TOKENIZER_WORDS names.
 */
#include "data/tokenizer_parts.h"
#include "io/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A tokenizer whose pre_tokenizer is the given Split. */
static Tokenizer *open_split(json_t *split, Arena *arena)
{
    json_t *root =
        json_pack("{s:s, s:{s:{}, s:[]}, s:{s:s, s:[O, {s:s, s:b, s:b}]}}", "version", "1.0",
                  "model", "vocab", "merges", "pre_tokenizer", "type", "Sequence", "pretokenizers",
                  split, "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0);
    assert_non_null(root);
    char *text = json_dumps(root, 0);
    Tokenizer *tokenizer = NULL;
    if (tokenizer_parse(&tokenizer, text, strlen(text), "split", arena, NULL) != OK) {
        fail_msg("%s", status_message());
    }
    free(text);
    json_decref(root);
    return tokenizer;
}

static bool words_equal(const PretokenizeWork *work, const char *text, const json_t *words)
{
    if (work->words.n != json_array_size(words)) return false;
    for (size_t i = 0; i < work->words.n; i++) {
        const json_t *word = json_array_get(words, i);
        if (work->words.at[i].n != json_string_length(word) ||
            memcmp(text + work->words.at[i].start, json_string_value(word), work->words.at[i].n) !=
                0) {
            return false;
        }
    }
    return true;
}

static void check_file(const char *path)
{
    Arena arena, scratch;
    arena_init(&arena, "text");
    arena_init(&scratch, "tokenizer");
    char *text;
    size_t n;
    int lines = 0, failures = 0;
    if (file_read(&arena, path, &text, &n) != OK) fail_msg("%s", status_message());
    Tokenizer *tokenizer = NULL;
    PretokenizeWork work = {0};
    for (char *at = text, *end; at < text + n; at = end + 1) {
        end = memchr(at, '\n', (size_t)(text + n - at));
        if (!end) end = text + n;
        lines++;
        json_error_t error;
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, &error);
        if (!line) fail_msg("%s:%d: %s", path, lines, error.text);
        json_t *split = json_object_get(line, "split");
        if (split) {
            tokenizer_free(&tokenizer);
            arena_reset(&scratch);
            tokenizer = open_split(split, &scratch);
        }
        const json_t *sample = json_object_get(line, "text");
        const json_t *words = json_object_get(line, "words");
        const char *out = NULL;
        Status status = pretokenize(tokenizer, json_string_value(sample),
                                    json_string_length(sample), &work, &out);
        if ((status != OK || !words_equal(&work, out, words)) && failures++ < 20) {
            char *shown = json_dumps(line, JSON_ENSURE_ASCII);
            print_error("%s:%d: %s\n  %s, found", path, lines, shown,
                        status == OK ? "words differ" : status_message());
            for (size_t i = 0; i < work.words.n && status == OK; i++) {
                print_error(" [%.*s]", (int)work.words.at[i].n, out + work.words.at[i].start);
            }
            print_error("\n");
            free(shown);
        }
        json_decref(line);
    }
    print_message("%s: %d lines, %d differ\n", path, lines, failures);
    assert_true(lines > 0);
    assert_int_equal(failures, 0);
    pretokenize_work_free(&work);
    tokenizer_free(&tokenizer);
    arena_free(&scratch);
    arena_free(&arena);
}

static void tokenizer_pretokenize__cuts_as_huggingface_does(void **state)
{
    (void)state;
    check_file(SW_SOURCE_DIR "/tests/data/tokenizer/words.jsonl");
}

static void tokenizer_pretokenize__cuts_as_the_named_file_says(void **state)
{
    (void)state;
    const char *path = getenv("SW_TOKENIZER_WORDS");
    if (!path) skip();
    check_file(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_pretokenize__cuts_as_huggingface_does),
        cmocka_unit_test(tokenizer_pretokenize__cuts_as_the_named_file_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
