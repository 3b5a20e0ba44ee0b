#include "data/chat.h"

#include <stdlib.h>
#include <string.h>

struct ChatTemplate {
    const char *name;
    const char *before_role, *after_role; /* both "": the role is not written */
    const char *end_trained;              /* trained with the message */
    const char *end_rest;
};

// clang-format off
static const ChatTemplate templates[] = {
    {"chatml", "<|im_start|>", "\n", "<|im_end|>", "\n"},
    {"qwen3",  "<|im_start|>", "\n", "<|im_end|>", "\n"},
    {"none",   "",             "",   "",           ""  },
};
static const char *const known_later[] = {"llama3", "deepseek_v3", "gpt_oss", NULL};
static const char *const all_names[] = {
    "auto", "chatml", "qwen3", "llama3", "deepseek_v3", "gpt_oss", "none", NULL};

static const struct {
    const char *model_type, *chat_template;
} automatic[] = {
    {"qwen3",     "qwen3"},
    {"qwen3_moe", "qwen3"},
};
// clang-format on

/* How message and pre-training texts are read. */
enum { TEXT_FLAGS = TOKENIZE_ADDED };

void trained_tokens_init(TrainedTokens *tokens)
{
    *tokens = (TrainedTokens){0};
}

void trained_tokens_free(TrainedTokens *tokens)
{
    token_buffer_free(&tokens->ids);
    free(tokens->trained);
    trained_tokens_init(tokens);
}

void trained_tokens_clear(TrainedTokens *tokens)
{
    tokens->ids.n = 0;
}

/** Give the ids that came since `from` their mask. */
static Status mark(TrainedTokens *tokens, int64_t from, bool trained)
{
    if (tokens->capacity < tokens->ids.n) {
        int64_t capacity = tokens->ids.n + tokens->ids.n / 2 + 64;
        uint8_t *grown = realloc(tokens->trained, (size_t)capacity);
        if (!grown)
            return FAIL(ERR_MEMORY, "out of memory (%lld tokens of one sample)",
                        (long long)capacity);
        tokens->trained = grown;
        tokens->capacity = capacity;
    }
    if (tokens->ids.n > from)
        memset(tokens->trained + from, trained, (size_t)(tokens->ids.n - from));
    return OK;
}

static Status add(TrainedTokens *out, const Tokenizer *tokenizer, const char *text, size_t bytes,
                  unsigned flags, bool trained)
{
    int64_t from = out->ids.n;
    TRY(tokenizer_encode(tokenizer, text, bytes, flags, &out->ids));
    return mark(out, from, trained);
}

static Status add_template(TrainedTokens *out, const Tokenizer *tokenizer, const char *text,
                           bool trained)
{
    return add(out, tokenizer, text, strlen(text), TOKENIZE_SPECIAL, trained);
}

/** before_role ROLE after_role, tokenised as one piece. */
static Status add_header(TrainedTokens *out, const ChatTemplate *chat, const Tokenizer *tokenizer,
                         Role role)
{
    if (!*chat->before_role && !*chat->after_role) return OK;
    char header[128];
    snprintf(header, sizeof header, "%s%s%s", chat->before_role, role_names[role],
             chat->after_role);
    return add_template(out, tokenizer, header, false);
}

Status chat_template_find(const ChatTemplate **out, const char *name, const char *model_type)
{
    bool by_type = strcmp(name, "auto") == 0;
    const char *wanted = by_type ? NULL : name;
    for (size_t i = 0; by_type && model_type && i < sizeof automatic / sizeof automatic[0]; i++)
        if (strcmp(automatic[i].model_type, model_type) == 0) wanted = automatic[i].chat_template;
    if (!wanted)
        return FAIL(ERR_USAGE,
                    "model.chat_template: auto knows no template for model type \"%.64s\": set "
                    "chatml, qwen3 or none",
                    model_type ? model_type : "");
    for (size_t i = 0; i < sizeof templates / sizeof templates[0]; i++)
        if (strcmp(templates[i].name, wanted) == 0) {
            *out = &templates[i];
            return OK;
        }
    for (int i = 0; known_later[i]; i++)
        if (strcmp(known_later[i], wanted) == 0)
            return FAIL(ERR_UNSUPPORTED, "model.chat_template: %s is not available yet", wanted);
    const char *nearest = text_nearest(wanted, all_names);
    if (nearest)
        return FAIL(ERR_USAGE, "model.chat_template: unknown template \"%.64s\" (did you mean %s?)",
                    wanted, nearest);
    return FAIL(ERR_USAGE,
                "model.chat_template: unknown template \"%.64s\" (expected auto, chatml, qwen3 or "
                "none)",
                wanted);
}

const char *chat_template_name(const ChatTemplate *chat)
{
    return chat->name;
}

Status chat_encode(TrainedTokens *out, const ChatTemplate *chat, const Tokenizer *tokenizer,
                   const Message *message, int n_messages, bool generate)
{
    for (int i = 0; i < n_messages; i++) {
        const Message *m = &message[i];
        bool framed = m->role != ROLE_PRETRAIN;
        if (framed) TRY(add_header(out, chat, tokenizer, m->role));
        TRY(add(out, tokenizer, m->text, m->bytes, TEXT_FLAGS, m->trained));
        if (!framed) continue;
        TRY(add_template(out, tokenizer, chat->end_trained, m->trained));
        TRY(add_template(out, tokenizer, chat->end_rest, false));
    }
    return generate ? add_header(out, chat, tokenizer, ROLE_ASSISTANT) : OK;
}

Status text_encode(TrainedTokens *out, const Tokenizer *tokenizer, const char *text, size_t bytes,
                   int32_t eos_id)
{
    TRY(add(out, tokenizer, text, bytes, TEXT_FLAGS, true));
    if (eos_id < 0) return OK;
    int64_t from = out->ids.n;
    TRY(token_buffer_append(&out->ids, &eos_id, 1));
    return mark(out, from, true);
}

Status document_encode(TrainedTokens *out, const Document *document, const ChatTemplate *chat,
                       const Tokenizer *tokenizer, int32_t eos_id)
{
    const Row *row = &document->row;
    int64_t from = out->ids.n;
    switch (document->kind) {
    case DOCUMENT_MESSAGES:
        return chat_encode(out, chat, tokenizer, document->message, document->n_messages, false);
    case DOCUMENT_TEXT: return text_encode(out, tokenizer, document->text, document->bytes, eos_id);
    case DOCUMENT_IDS: break;
    }
    TRY(token_buffer_append(&out->ids, row->id_t, row->n_tokens));
    TRY(mark(out, from, false));
    memcpy(out->trained + from, row->trained_t, (size_t)row->n_tokens);
    return OK;
}
