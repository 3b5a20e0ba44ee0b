#include "data/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define EXAMPLE SW_SOURCE_DIR "/examples/tokenizer"

typedef struct Fixture {
    Arena arena;
    Tokenizer *tokenizer;
    TokenBuffer ids;
} Fixture;

static int open_example(void **state)
{
    Fixture *f = calloc(1, sizeof *f);
    arena_init(&f->arena, "test");
    if (tokenizer_open(&f->tokenizer, EXAMPLE, &f->arena, NULL) != OK) {
        print_error("%s\n", status_message());
        return -1;
    }
    *state = f;
    return 0;
}

static int close_example(void **state)
{
    Fixture *f = *state;
    token_buffer_free(&f->ids);
    tokenizer_free(&f->tokenizer);
    assert_null(f->tokenizer);
    arena_free(&f->arena);
    free(f);
    return 0;
}

static void assert_ids(const TokenBuffer *ids, const int32_t *expected, int64_t n)
{
    assert_int_equal(ids->n, n);
    for (int64_t i = 0; i < n; i++) assert_int_equal(ids->id[i], expected[i]);
}

static void tokenizer__example_has_a_token_a_byte(void **state)
{
    Fixture *f = *state;
    char text[255];
    int n = 0;
    for (int c = 1; c < 128; c++) text[n++] = (char)c;
    n += sprintf(text + n, "\xC3\xA9\xE4\xBD\xA0");
    assert_int_equal(tokenizer_encode(f->tokenizer, text, (size_t)n, 0, &f->ids), OK);
    assert_int_equal(f->ids.n, n);
    for (int i = 0; i < n; i++) assert_int_equal(f->ids.id[i], (unsigned char)text[i]);
    assert_int_equal(tokenizer_vocab_size(f->tokenizer), 259);
}

static void tokenizer__reads_eos_from_the_config(void **state)
{
    Fixture *f = *state;
    assert_int_equal(tokenizer_eos(f->tokenizer), 258);
    const char *object = "{\"eos_token\": {\"content\": \"<|endoftext|>\", \"lstrip\": false},"
                         " \"model_max_length\": 1000000000000000019884624838656}";
    assert_int_equal(tokenizer_parse_config(f->tokenizer, object, strlen(object), "config", NULL),
                     OK);
    assert_int_equal(tokenizer_eos(f->tokenizer), 256);
    assert_int_equal(
        tokenizer_parse_config(f->tokenizer, "{\"eos_token\": \"no such\"}", 24, "config", NULL),
        OK);
    assert_int_equal(tokenizer_eos(f->tokenizer), -1);
    assert_int_equal(tokenizer_parse_config(f->tokenizer, "{\"eos_token\": 3}", 16, "config", NULL),
                     ERR_FORMAT);
    assert_non_null(strstr(status_message(), "eos_token"));
}

static void tokenizer__plain_text_has_no_special_tokens(void **state)
{
    Fixture *f = *state;
    const char *text = "a<|im_end|>";
    assert_int_equal(tokenizer_encode(f->tokenizer, text, strlen(text), 0, &f->ids), OK);
    assert_int_equal(f->ids.n, strlen(text));
    f->ids.n = 0;
    assert_int_equal(tokenizer_encode(f->tokenizer, text, strlen(text), TOKENIZE_SPECIAL, &f->ids),
                     OK);
    assert_ids(&f->ids, (const int32_t[]){'a', 258}, 2);
    assert_true(tokenizer_is_special(f->tokenizer, 258));
    assert_false(tokenizer_is_special(f->tokenizer, 'a'));
}

static void tokenizer__encode_appends(void **state)
{
    Fixture *f = *state;
    assert_int_equal(tokenizer_encode(f->tokenizer, "", 0, TOKENIZE_SPECIAL, &f->ids), OK);
    assert_int_equal(f->ids.n, 0);
    assert_int_equal(tokenizer_encode(f->tokenizer, "ab", 2, 0, &f->ids), OK);
    assert_int_equal(tokenizer_encode(f->tokenizer, "c", 1, 0, &f->ids), OK);
    assert_ids(&f->ids, (const int32_t[]){'a', 'b', 'c'}, 3);
}

static void tokenizer__names_the_byte_that_is_not_utf8(void **state)
{
    Fixture *f = *state;
    // clang-format off
    static const struct { const char *text; int at; } cases[] = {
        {"ab\xFFz", 2}, {"\xC3", 0}, {"a\xC0\x80", 1}, {"\xE0\x80\x80", 0}, {"x\xED\xA0\x80", 1},
        {"\xF4\x90\x80\x80", 0}, {"ok \xE4\xBD", 3}, {"\xC3\xA9\x80", 2}, {"\xF0\x9F\x98 ", 0},
    };
    // clang-format on
    assert_int_equal(tokenizer_encode(f->tokenizer, "z", 1, 0, &f->ids), OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char place[32];
        snprintf(place, sizeof place, "at byte %d ", cases[i].at);
        assert_int_equal(tokenizer_encode(f->tokenizer, cases[i].text, strlen(cases[i].text),
                                          TOKENIZE_SPECIAL, &f->ids),
                         ERR_FORMAT);
        assert_non_null(strstr(status_message(), place));
        assert_ids(&f->ids, (const int32_t[]){'z'}, 1);
    }
}

static void check_decode(Fixture *f, const int32_t *id, int64_t n, bool skip, const char *expected)
{
    TextBuffer text;
    text_buffer_init(&text, &f->arena);
    tokenizer_decode(f->tokenizer, id, n, skip, &text);
    assert_string_equal(text.text, expected);
}

static void tokenizer__decodes_bytes_leniently(void **state)
{
    Fixture *f = *state;
    const char *r = "\xEF\xBF\xBD";
    char expected[64];
    check_decode(f, (const int32_t[]){'h', 0xC3, 0xA9, 258, 'x'}, 5, false, "h\xC3\xA9<|im_end|>x");
    check_decode(f, (const int32_t[]){'h', 0xC3, 0xA9, 258, 'x'}, 5, true, "h\xC3\xA9x");
    check_decode(f, (const int32_t[]){'a', -1, 259, 100000, 'b'}, 5, false, "ab");
    snprintf(expected, sizeof expected, "a%s", r); /* one for a character cut short */
    check_decode(f, (const int32_t[]){'a', 0xF0, 0x9F, 0x98}, 4, false, expected);
    snprintf(expected, sizeof expected, "%s<|im_end|>%s", r, r);
    check_decode(f, (const int32_t[]){0xE4, 258, 0xBD}, 3, false, expected);
    snprintf(expected, sizeof expected, "%s%s%s!", r, r, r); /* a surrogate: each byte is wrong */
    check_decode(f, (const int32_t[]){0xED, 0xA0, 0x80, '!'}, 4, false, expected);
}

enum { N_THREADS = 4 };

static void *encode_often(void *argument)
{
    Fixture *f = argument;
    const char *text = "<|im_start|>user\nna\xC3\xAFve 123   <|im_end|>\n";
    TokenBuffer ids = {0};
    bool good = true;
    for (int i = 0; i < 500 && good; i++) {
        ids.n = 0;
        good = tokenizer_encode(f->tokenizer, text, strlen(text), TOKENIZE_SPECIAL, &ids) == OK &&
               ids.n == (int64_t)strlen(text) - 20 && ids.id[0] == 257 && ids.id[ids.n - 1] == '\n';
    }
    token_buffer_free(&ids);
    return good ? f : NULL;
}

static void tokenizer__encodes_on_many_threads(void **state)
{
    pthread_t thread[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&thread[i], NULL, encode_often, *state), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        void *result;
        assert_int_equal(pthread_join(thread[i], &result), 0);
        assert_ptr_equal(result, *state);
    }
}

#define MODEL \
    "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a " \
    "b\"]}"
#define BYTES \
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": " \
    "false}"
#define ADDED(more) \
    "\"id\": 3, \"content\": \"x\", \"single_word\": false, \"lstrip\": false, " \
    "\"rstrip\": false, \"normalized\": false, \"special\": true" more
#define SPLIT(pattern, behavior) \
    "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": " pattern ", \"behavior\": \"" behavior \
    "\", \"invert\": false}"

static void tokenizer__refuses_what_it_does_not_know(void **state)
{
    (void)state;
    // clang-format off
    static const struct { const char *json; Status status; const char *says; } cases[] = {
        {"", ERR_FORMAT, "here"},
        {"[]", ERR_FORMAT, "object"},
        {"{\"model\": {\"type\": \"BPE\"", ERR_FORMAT, "here"},
        {"{" BYTES "}", ERR_FORMAT, "model"},
        {"{" MODEL "}", ERR_UNSUPPORTED, "ByteLevel"},
        {"{" MODEL ", " BYTES ", \"version\": \"2.0\"}", ERR_UNSUPPORTED, "2.0"},
        {"{" MODEL ", " BYTES ", \"truncation\": {\"max_length\": 5}}", ERR_UNSUPPORTED, "truncation"},
        {"{" MODEL ", " BYTES ", \"padding\": {\"strategy\": {\"Fixed\": 5}}}", ERR_UNSUPPORTED, "padding"},
        {"{" MODEL ", " BYTES ", \"normalizer\": {\"type\": \"Lowercase\"}}", ERR_UNSUPPORTED, "normalizer: type Lowercase"},
        {"{" MODEL ", " BYTES ", \"normalizer\": {\"type\": \"NFC\", \"x\": 1}}", ERR_UNSUPPORTED, "key x"},
        {"{" MODEL ", " BYTES ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Strip\"}]}}", ERR_UNSUPPORTED, "normalizer[0]: type Strip"},
        {"{" MODEL ", " BYTES ", \"post_processor\": {\"type\": \"RobertaProcessing\"}}", ERR_UNSUPPORTED, "RobertaProcessing"},
        {"{" MODEL ", " BYTES ", \"decoder\": {\"type\": \"Metaspace\"}}", ERR_UNSUPPORTED, "Metaspace"},
        {"{" MODEL ", " BYTES ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"s\"}}], \"special_tokens\": {\"s\": {\"ids\": [3]}}}}", ERR_FORMAT, "id 3 is outside"},
        {"{" MODEL ", " BYTES ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\"}}], \"special_tokens\": {}}}", ERR_UNSUPPORTED, "Sequence B"},
        {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"Whitespace\"}}", ERR_UNSUPPORTED, "pre_tokenizer: type Whitespace"},
        {"{" MODEL ", " SPLIT("{\"String\": \"-\"}", "Isolated") "}", ERR_UNSUPPORTED, "ByteLevel"},
        {"{" MODEL ", " SPLIT("{\"String\": \"-\"}", "Around") "}", ERR_UNSUPPORTED, "behavior Around"},
        {"{" MODEL ", " SPLIT("{}", "Isolated") "}", ERR_FORMAT, "either Regex or String"},
        {"{" MODEL ", " SPLIT("{\"Regex\": \"a(b\"}", "Isolated") "}", ERR_FORMAT, "a(b"},
        {"{" MODEL ", " SPLIT("{\"Regex\": \"*\"}", "Isolated") "}", ERR_FORMAT, "does not compile"},
        {"{" MODEL ", " SPLIT("{\"Regex\": \"[a&&b]\"}", "Isolated") "}", ERR_UNSUPPORTED, "&&"},
        {"{" MODEL ", " SPLIT("{\"Regex\": \"(a)\\\\1\"}", "Isolated") "}", ERR_UNSUPPORTED, "escape"},
        {"{" MODEL ", " SPLIT("{\"Regex\": \"\\\\p{Latin}\"}", "Isolated") "}", ERR_UNSUPPORTED, "Latin"},
        {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, {\"type\": \"Digits\", \"individual_digits\": true}]}}", ERR_UNSUPPORTED, "after ByteLevel"},
        {"{" BYTES ", \"model\": {\"type\": \"Unigram\", \"vocab\": []}}", ERR_UNSUPPORTED, "type Unigram"},
        {"{" BYTES ", \"model\": {\"dropout\": 0.1, \"vocab\": {}, \"merges\": []}}", ERR_UNSUPPORTED, "dropout"},
        {"{" BYTES ", \"model\": {\"byte_fallback\": true, \"vocab\": {}, \"merges\": []}}", ERR_UNSUPPORTED, "byte_fallback"},
        {"{" BYTES ", \"model\": {\"end_of_word_suffix\": \"</w>\", \"vocab\": {}, \"merges\": []}}", ERR_UNSUPPORTED, "</w>"},
        {"{" BYTES ", \"model\": {\"cache\": 3, \"vocab\": {}, \"merges\": []}}", ERR_UNSUPPORTED, "key cache"},
        {"{" BYTES ", \"model\": {\"vocab\": [], \"merges\": []}}", ERR_FORMAT, "vocab"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", ERR_FORMAT, "\"a\" has no id"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 99999999999}, \"merges\": []}}", ERR_FORMAT, "\"a\" has no id"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": \"0\"}, \"merges\": []}}", ERR_FORMAT, "\"a\" has no id"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}", ERR_FORMAT, "same id 1"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}}", ERR_FORMAT, "duplicate"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]}}", ERR_FORMAT, "merges[0]: \"ab\""},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 0, \"ab\": 1}, \"merges\": [[\"a\", \"b\"]]}}", ERR_FORMAT, "merges[0]: \"b\""},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 0}, \"merges\": [\"a b c\"]}}", ERR_FORMAT, "merges[0] is not a pair"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}", ERR_FORMAT, "merges[0] is not a pair"},
        {"{" BYTES ", \"model\": {\"vocab\": {\"a\": 0}, \"unk_token\": \"u\", \"merges\": []}}", ERR_FORMAT, "unk_token"},
        {"{" MODEL ", " BYTES ", \"added_tokens\": [{\"id\": 3}]}", ERR_FORMAT, "added_tokens[0]"},
        {"{" MODEL ", " BYTES ", \"added_tokens\": [{\"id\": 7, \"content\": \"x\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}]}", ERR_FORMAT, "id 7 (expected 3"},
        {"{" MODEL ", " BYTES ", \"added_tokens\": [{" ADDED("") "}, {" ADDED("") "}]}", ERR_FORMAT, "twice"},
        {"{" MODEL ", " BYTES ", \"added_tokens\": [{" ADDED(", \"colour\": 1") "}]}", ERR_UNSUPPORTED, "key colour"},
    };
    // clang-format on
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Arena arena;
        arena_init(&arena, "refuse");
        Tokenizer *tokenizer = NULL;
        Status status =
            tokenizer_parse(&tokenizer, cases[i].json, strlen(cases[i].json), "here", &arena, NULL);
        if (status != cases[i].status || !strstr(status_message(), cases[i].says) || tokenizer) {
            fail_msg("%s: found %d \"%s\"", cases[i].json, status, status_message());
        }
        arena_free(&arena);
    }
}

static void tokenizer__holes_in_the_vocabulary_are_no_tokens(void **state)
{
    (void)state;
    const char *json = "{" BYTES ", \"model\": {\"vocab\": {\"a\": 0, \"b\": 5}, \"merges\": []}}";
    Arena arena;
    arena_init(&arena, "holes");
    Tokenizer *tokenizer;
    assert_int_equal(tokenizer_parse(&tokenizer, json, strlen(json), "here", &arena, NULL), OK);
    assert_int_equal(tokenizer_vocab_size(tokenizer), 6);
    assert_null(tokenizer_token(tokenizer, 3));
    assert_string_equal(tokenizer_token(tokenizer, 5), "b");
    assert_int_equal(tokenizer_id(tokenizer, "b"), 5);
    assert_int_equal(tokenizer_id(tokenizer, "c"), -1);
    tokenizer_free(&tokenizer);
    arena_free(&arena);
}

static void tokenizer__a_pattern_that_explodes_is_an_error(void **state)
{
    (void)state;
    const char *json = "{" MODEL ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": "
                       "[{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?:a+)+[bd]\"}, "
                       "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", "
                       "\"add_prefix_space\": false, \"use_regex\": false}]}}";
    Arena arena;
    arena_init(&arena, "explode");
    Tokenizer *tokenizer;
    assert_int_equal(tokenizer_parse(&tokenizer, json, strlen(json), "here", &arena, NULL), OK);
    char text[201];
    memset(text, 'a', sizeof text);
    text[200] = 'c';
    TokenBuffer ids = {0};
    assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text, 0, &ids), ERR_FORMAT);
    assert_non_null(strstr(status_message(), "limit"));
    token_buffer_free(&ids);
    tokenizer_free(&tokenizer);
    arena_free(&arena);
}

static void tokenizer__a_missing_folder_is_an_io_error(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "missing");
    Tokenizer *tokenizer = NULL;
    assert_int_equal(tokenizer_open(&tokenizer, SW_SOURCE_DIR "/no such", &arena, NULL), ERR_IO);
    assert_null(tokenizer);
    arena_free(&arena);
}

int main(void)
{
#define EXAMPLE_TEST(name) cmocka_unit_test_setup_teardown(name, open_example, close_example)
    const struct CMUnitTest tests[] = {
        EXAMPLE_TEST(tokenizer__example_has_a_token_a_byte),
        EXAMPLE_TEST(tokenizer__reads_eos_from_the_config),
        EXAMPLE_TEST(tokenizer__plain_text_has_no_special_tokens),
        EXAMPLE_TEST(tokenizer__encode_appends),
        EXAMPLE_TEST(tokenizer__names_the_byte_that_is_not_utf8),
        EXAMPLE_TEST(tokenizer__decodes_bytes_leniently),
        EXAMPLE_TEST(tokenizer__encodes_on_many_threads),
        cmocka_unit_test(tokenizer__refuses_what_it_does_not_know),
        cmocka_unit_test(tokenizer__holes_in_the_vocabulary_are_no_tokens),
        cmocka_unit_test(tokenizer__a_pattern_that_explodes_is_an_error),
        cmocka_unit_test(tokenizer__a_missing_folder_is_an_io_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
