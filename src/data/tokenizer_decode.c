#include "data/tokenizer_parts.h"

#include <string.h>

/* Bytes that come in one by one; whole characters go out. */
typedef struct Utf8Stream {
    unsigned char held[4]; /* a character's bytes so far */
    int n_held, n_wanted;
    unsigned char low, high; /* what the next byte may be */
    TextBuffer *out;
} Utf8Stream;

static const char replacement[] = "\xEF\xBF\xBD";

static void stream_flush(Utf8Stream *s)
{
    if (s->n_held > 0) text_append(s->out, replacement, 3);
    s->n_held = 0;
}

static void stream_start(Utf8Stream *s, unsigned char c)
{
    if (c < 0x80) {
        char byte = (char)c;
        text_append(s->out, &byte, 1);
        return;
    }
    if (c < 0xC2 || c > 0xF4) {
        text_append(s->out, replacement, 3);
        return;
    }
    s->held[0] = c;
    s->n_held = 1;
    s->n_wanted = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    s->low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    s->high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
}

static void stream_put(Utf8Stream *s, unsigned char c)
{
    if (s->n_held == 0) {
        stream_start(s, c);
        return;
    }
    if (c < s->low || c > s->high) {
        stream_flush(s);
        stream_start(s, c);
        return;
    }
    s->held[s->n_held++] = c;
    s->low = 0x80;
    s->high = 0xBF;
    if (s->n_held == s->n_wanted) {
        text_append(s->out, (const char *)s->held, (size_t)s->n_held);
        s->n_held = 0;
    }
}

static bool all_letters(const char *token)
{
    for (const char *p = token; *p;) {
        int length;
        if (byte_of_letter(utf8_decode(p, &length)) < 0) return false;
        p += length;
    }
    return true;
}

/* A token of byte letters is those bytes; any other, such as an added one with a space, is its text. */
static void put_token(Utf8Stream *s, const char *token)
{
    bool letters = all_letters(token);
    for (const char *p = token; *p;) {
        int length = 1;
        unsigned char byte =
            letters ? (unsigned char)byte_of_letter(utf8_decode(p, &length)) : (unsigned char)*p;
        stream_put(s, byte);
        p += length;
    }
}

void tokenizer_decode(const Tokenizer *tokenizer, const int32_t *id, int64_t n, bool skip_special,
                      TextBuffer *out)
{
    Utf8Stream stream = {.out = out};
    bool first = true;
    for (int64_t i = 0; i < n; i++) {
        const char *token = tokenizer_token(tokenizer, id[i]);
        if (!token || (skip_special && tokenizer_is_special(tokenizer, id[i]))) continue;
        if (tokenizer->decode_bytes) {
            put_token(&stream, token);
        } else {
            if (!first) text_append(out, " ", 1);
            text_append(out, token, strlen(token));
        }
        first = false;
    }
    stream_flush(&stream);
}

int64_t tokenizer_vocab_size(const Tokenizer *tokenizer)
{
    return tokenizer->vocab.n_ids;
}

const char *tokenizer_token(const Tokenizer *tokenizer, int64_t id)
{
    return id >= 0 && id < tokenizer->vocab.n_ids ? tokenizer->vocab.token[id] : NULL;
}

int32_t tokenizer_id(const Tokenizer *tokenizer, const char *token)
{
    return vocab_find(&tokenizer->vocab, token, strlen(token));
}

bool tokenizer_is_special(const Tokenizer *tokenizer, int64_t id)
{
    if (id < 0 || id >= tokenizer->vocab.n_ids) return false;
    const AddedToken *added = tokenizer->added_of_id[id];
    return added && added->special;
}

int32_t tokenizer_eos(const Tokenizer *tokenizer)
{
    return tokenizer->eos;
}
