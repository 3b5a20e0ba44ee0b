#include "base/text.h"
#include "base/arena_state.h"

#include <string.h>

static void text__format_takes_any_length(void **state)
{
    Arena *a = *state;
    assert_string_equal(text_format(a, "%s", ""), "");
    assert_string_equal(text_format(a, "%d-%s", 7, "x"), "7-x");
    /* Around the size of any buffer on the stack. */
    for (int n = 200; n < 1100; n++) {
        char *text = text_format(a, "%*d", n, 5);
        assert_int_equal(strlen(text), n);
        assert_int_equal(text[n - 1], '5');
    }
}

static void text__copies_are_copies(void **state)
{
    Arena *a = *state;
    char source[] = "abc";
    char *whole = text_copy(a, source), *part = text_copy_n(a, source, 2);
    source[0] = 'X';
    assert_string_equal(whole, "abc");
    assert_string_equal(part, "ab");
    assert_string_equal(text_copy_n(a, NULL, 0), "");
}

static void text__path_join_has_one_slash(void **state)
{
    Arena *a = *state;
    assert_string_equal(path_join(a, "a", "b"), "a/b");
    assert_string_equal(path_join(a, "a/", "b"), "a/b");
    assert_string_equal(path_join(a, "/", "b"), "/b");
}

static void text__patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool match;
    } rows[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"*", "a.b/c", true},
        {"a", "a", true},
        {"a", "b", false},
        {"a", "ab", false},
        {"ab", "a", false},
        {"?", "", false},
        {"?", "x", true},
        {"a?c", "abc", true},
        {"a?c", "ac", false},
        {"*.weight", "model.norm.weight", true},
        {"*.weight", "model.norm.bias", false},
        {"model.layers.*.mlp.*", "model.layers.12.mlp.gate.weight", true},
        {"model.layers.*.mlp.*", "model.layers.12.self_attn.q", false},
        {"*a*b", "xaybzab", true}, /* needs a second try of both stars */
        {"*aab", "aaaab", true},
        {"*ab*ab", "abab", true},
        {"*ab*ab", "aab", false},
        {"**", "x", true},
        {"a**b", "ab", true},
        {"[a]", "a", false}, /* no classes */
        {"a*", "ba", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (text_matches(rows[i].pattern, rows[i].text) != rows[i].match)
            fail_msg("%s on %s: expected %d", rows[i].pattern, rows[i].text, rows[i].match);
}

static void text__nearest(void **state)
{
    (void)state;
    static const char *const names[] = {"train", "probe", "generate", "tokenize", "ab", NULL};
    static const struct {
        const char *word, *want;
    } rows[] = {
        {"train", "train"},  {"trian", "train"}, {"tran", "train"},
        {"xtrain", "train"}, {"probing", NULL},  {"tokenise", "tokenize"},
        {"zzzzzzzz", NULL},  {"", NULL},         {"generatexxx", "generate"},
        {"xx", NULL},        {"q", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *got = text_nearest(rows[i].word, names);
        if (!rows[i].want ? got != NULL : !got || strcmp(got, rows[i].want))
            fail_msg("%s: nearest is %s, expected %s", rows[i].word, got ? got : "none",
                     rows[i].want ? rows[i].want : "none");
    }
    static const char *const none[] = {NULL};
    assert_null(text_nearest("train", none));
    char huge[300];
    memset(huge, 'a', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    assert_null(text_nearest(huge, names));
    assert_null(text_nearest("x", (const char *const[]){huge, NULL}));
}

static void text__nearest_prefers_the_least_distance_then_the_first(void **state)
{
    (void)state;
    assert_string_equal(text_nearest("abcx", (const char *const[]){"abyy", "abcd", NULL}), "abcd");
    assert_string_equal(text_nearest("abcx", (const char *const[]){"abcy", "abcd", NULL}), "abcy");
}

static void text__buffer_grows_and_stays_terminated(void **state)
{
    Arena *a = *state;
    TextBuffer b;
    text_buffer_init(&b, a);
    assert_string_equal(b.text, "");
    text_append(&b, "", 0);
    assert_int_equal(b.length, 0);
    for (int i = 0; i < 3000; i++) {
        text_append_format(&b, "%d,", i % 10);
        assert_int_equal(strlen(b.text), b.length);
    }
    assert_int_equal(b.length, 6000);
    for (size_t i = 0; i < b.length; i += 2) assert_int_equal(b.text[i], '0' + (int)(i / 2 % 10));
    text_append(&b, "a\0b", 3);
    assert_int_equal(b.length, 6003);
    assert_memory_equal(b.text + 6000, "a\0b", 4);
    /* longer than the formatter's own buffer */
    text_append_format(&b, "%*d", 1000, 1);
    assert_int_equal(b.length, 7003);
    assert_int_equal(b.text[7002], '1');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(text__format_takes_any_length),
        ARENA_TEST(text__copies_are_copies),
        ARENA_TEST(text__path_join_has_one_slash),
        ARENA_TEST(text__patterns),
        ARENA_TEST(text__nearest),
        ARENA_TEST(text__nearest_prefers_the_least_distance_then_the_first),
        ARENA_TEST(text__buffer_grows_and_stays_terminated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
