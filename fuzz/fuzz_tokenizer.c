/* Input: a tokenizer.json, a NUL, a text. What loads must encode the text in every mode and decode it. */
#include "fuzz_target.h"
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static void encode(const Tokenizer *tokenizer, const char *text, size_t n, unsigned flags,
                   Arena *arena)
{
    TokenBuffer ids = {0}, again = {0};
    Status status = tokenizer_encode(tokenizer, text, n, flags, &ids);
    if (status != OK && ids.n != 0) abort();
    /* a second time, now with the words in the cache */
    if (tokenizer_encode(tokenizer, text, n, flags, &again) != status) abort();
    if (again.n != ids.n || (ids.n && memcmp(ids.id, again.id, (size_t)ids.n * 4) != 0)) abort();
    for (int64_t i = 0; i < ids.n; i++) {
        const char *token = tokenizer_token(tokenizer, ids.id[i]);
        if (ids.id[i] < 0 || ids.id[i] >= tokenizer_vocab_size(tokenizer)) abort();
        if (token && tokenizer_id(tokenizer, token) != ids.id[i]) abort();
    }
    TextBuffer decoded;
    text_buffer_init(&decoded, arena);
    tokenizer_decode(tokenizer, ids.id, ids.n, flags != 0, &decoded);
    token_buffer_free(&ids);
    token_buffer_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    const char *text = nul ? (const char *)nul + 1 : "Hello  w\xC3\xB6rld's 123\n";
    size_t n_text = nul ? size - n - 1 : strlen(text);
    Arena arena;
    arena_init(&arena, "fuzz");
    Tokenizer *tokenizer = NULL;
    if (tokenizer_parse(&tokenizer, (const char *)data, n, "fuzz", &arena, NULL) == OK) {
        if (tokenizer_parse_config(tokenizer, text, n_text, "fuzz", NULL) != OK &&
            (tokenizer_eos(tokenizer) >= tokenizer_vocab_size(tokenizer))) {
            abort();
        }
        for (unsigned flags = 0; flags < 4; flags++) encode(tokenizer, text, n_text, flags, &arena);
        tokenizer_free(&tokenizer);
    } else if (tokenizer) {
        abort(); /* nothing is handed out with an error */
    }
    arena_free(&arena);
    return 0;
}
