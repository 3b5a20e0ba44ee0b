#pragma once
/**
 * Text to ids and back, as the HuggingFace `tokenizers` library does for a tokenizer.json of the
 * byte-level BPE kind (GPT-2, Llama 3, Qwen, DeepSeek, gpt-oss, OLMoE, GLM, …).
 *
 * Read: model BPE; added_tokens with all their flags; normalizer null, NFC, NFD, NFKC, NFKD and
 * Sequences of these; pre_tokenizer Split, Digits, Sequence, ending in one ByteLevel; post_processor
 * ByteLevel, TemplateProcessing, Sequence; decoder ByteLevel or null. Anything else, and any key that
 * would change ids and is not known here, is refused with ERR_UNSUPPORTED, naming key and value.
 *
 * Encoding goes: added tokens with normalized=false are cut out of the raw text, the rest is
 * normalised, added tokens with normalized=true are cut out of that, the rest is cut into words by the
 * pre-tokenizer, and each word is merged by rank.
 *
 * Unicode. HuggingFace's parts have tables of different ages, and so have our libraries; where they
 * differ we follow HuggingFace, checked for every code point:
 *   patterns        Oniguruma, Unicode 16 (\s without U+180E)   ours PCRE2 10.42, Unicode 14
 *   normalisation   Unicode 9                                   ours utf8proc 2.8, Unicode 15
 *   Digits          Rust, Unicode 17
 * What is left: a pattern that names by number a character newer than Unicode 14 may not find it, and
 * \p{script} is read for a few scripts only. Patterns are Oniguruma's; constructs that PCRE2 has no
 * equal for (&& in classes, backreferences, lookbehind of varying length, …) are refused by name. One
 * match may take 1,000,000 steps and 64 for each byte; beyond that encoding fails.
 *
 * A Tokenizer does not change once it is there: any number of threads may use it at once.
 */
#include "base/log.h"
#include "base/text.h"

typedef struct Tokenizer Tokenizer;

enum {
    /** Recognise added tokens (special or not) in the text, as HuggingFace's encode does. Without
     *  this and the next, text is plain text: "<|im_end|>" is so many letters, and so is "<think>". */
    TOKENIZE_SPECIAL = 1,
    /** Recognise the added tokens that are not special alone: "<think>", but not "<|im_end|>". For
     *  what people write, who may use the first and must not forge the second. */
    TOKENIZE_ADDED = 4,
    /** Apply the post-processor's template (add_special_tokens=True), e.g. put a bos in front. */
    TOKENIZE_TEMPLATE = 2,
};

/** Ids that grow; zero-initialise, use again and again, free at the end. */
typedef struct TokenBuffer {
    int32_t *id;
    int64_t n, capacity;
} TokenBuffer;

Status token_buffer_append(TokenBuffer *buffer, const int32_t *id, int64_t n) MUST_USE;
void token_buffer_free(TokenBuffer *buffer);

/**
 * Read DIR/tokenizer.json, and DIR/tokenizer_config.json if it is there (only eos is taken
 * from it; a warning says where transformers would let it change ids).
 * Errors: ERR_IO, ERR_FORMAT, ERR_UNSUPPORTED, ERR_MEMORY. The tables live in the arena, which must
 * outlive the tokenizer; tokenizer_free gives back the rest. log may be NULL.
 */
Status tokenizer_open(Tokenizer **out, const char *model_dir, Arena *arena, Log *log) MUST_USE;
/** The same from tokenizer.json's text; place is put in front of messages. */
Status tokenizer_parse(Tokenizer **out, const char *json, size_t n, const char *place, Arena *arena,
                       Log *log) MUST_USE;
/** Take eos from tokenizer_config.json's text. A token that has no id: a warning, -1. */
Status tokenizer_parse_config(Tokenizer *tokenizer, const char *json, size_t n, const char *place,
                              Log *log) MUST_USE;
void tokenizer_free(Tokenizer **tokenizer);

/**
 * Append the ids of n bytes of text to out. flags: TOKENIZE_* or 0. Empty text has no ids (but a
 * template may add some). Text that is not valid UTF-8 is ERR_FORMAT and names the byte; out is
 * then as it was.
 */
Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t n, unsigned flags,
                        TokenBuffer *out) MUST_USE;

/**
 * Append the text of n ids to out. Ids that no token has are left out, as are special tokens with
 * skip_special. Bytes that are not UTF-8 (a character cut in two by the end of the ids) become U+FFFD,
 * one for each maximal part, as in Rust's from_utf8_lossy.
 */
void tokenizer_decode(const Tokenizer *tokenizer, const int32_t *id, int64_t n, bool skip_special,
                      TextBuffer *out);

int64_t
tokenizer_vocab_size(const Tokenizer *tokenizer); /* highest id + 1, added tokens included */
/** The string as the file has it ("Ġthe"); NULL: no such id. Lent. */
const char *tokenizer_token(const Tokenizer *tokenizer, int64_t id);
int32_t tokenizer_id(const Tokenizer *tokenizer,
                     const char *token); /* of such a string; -1: none */
bool tokenizer_is_special(const Tokenizer *tokenizer, int64_t id);
/** From tokenizer_config.json; -1: none. */
int32_t tokenizer_eos(const Tokenizer *tokenizer);
