#pragma once
/** What the tests of this room share: a folder for temporary files, and a tokenizer whose ids are bytes. */
#include "base/text.h"
#include "data/tokenizer.h"
#include "io/file.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Ids of the byte tokenizer: 0 ... 255 are the bytes, then the added tokens. */
enum { ID_EOS = 256, ID_START = 257, ID_END = 258, ID_THINK = 259, BYTE_VOCAB = 260 };

#define assert_ok(expression) assert_string_equal(fixture_message(expression), "")
static inline const char *fixture_message(Status st)
{
    return st == OK ? "" : status_message();
}
#define assert_fails(expression, code, words) \
    do { \
        assert_int_equal((expression), (code)); \
        if (!strstr(status_message(), words)) \
            fail_msg("\"%s\" does not say \"%s\"", status_message(), words); \
    } while (0)

static inline char *fixture_dir(void)
{
    static char dir[64];
    snprintf(dir, sizeof dir, "/tmp/sw-data-XXXXXX");
    assert_non_null(mkdtemp(dir));
    return dir;
}

static inline void fixture_remove(const char *dir)
{
    assert_ok(dir_remove_tree(dir));
}

static inline char *fixture_write(Arena *arena, const char *dir, const char *name, const char *text)
{
    char *path = path_join(arena, dir, name);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    return path;
}

/** The letter that byte-level BPE writes for a byte (GPT-2's bytes_to_unicode). */
static inline unsigned fixture_letter(int byte)
{
    unsigned next = 256;
    for (int b = 0; b < 256; b++) {
        int shown = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte) return shown ? (unsigned)b : next;
        next += !shown;
    }
    return 0;
}

/** tokenizer.json of the byte tokenizer: no merges, id = byte. */
static inline char *fixture_tokenizer_json(Arena *arena)
{
    TextBuffer json;
    text_buffer_init(&json, arena);
    text_append_format(&json, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                              "\"added_tokens\": [");
    static const char *const added[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"};
    for (int i = 0; i < 4; i++)
        text_append_format(&json,
                           "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, "
                           "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                           "\"special\": %s}",
                           i ? ", " : "", 256 + i, added[i], i < 3 ? "true" : "false");
    text_append_format(&json,
                       "], \"normalizer\": null,\n"
                       "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                       "\"trim_offsets\": false, \"use_regex\": false},\n"
                       "\"post_processor\": null,\n"
                       "\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                       "\"trim_offsets\": false, \"use_regex\": false},\n"
                       "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                       "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": \"\", "
                       "\"fuse_unk\": false, \"byte_fallback\": false, \"vocab\": {");
    for (int b = 0; b < 256; b++)
        text_append_format(&json, "%s\"\\u%04x\": %d", b ? ", " : "", fixture_letter(b), b);
    text_append_format(&json, "}, \"merges\": []}}");
    return json.text;
}

static inline Tokenizer *fixture_tokenizer(Arena *arena)
{
    Tokenizer *tokenizer = NULL;
    char *json = fixture_tokenizer_json(arena);
    assert_ok(tokenizer_parse(&tokenizer, json, strlen(json), "fixture", arena, NULL));
    return tokenizer;
}
