#pragma once
/**
 * Conversations -> token ids, and which of them are trained.
 *
 * A template is a row of a table; a message becomes, tokenised piece by piece,
 *
 *   before_role ROLE after_role | TEXT | end_trained | end_rest
 *
 *   chatml, qwen3   <|im_start|>ROLE\n | TEXT | <|im_end|> | \n      no default system, think blocks kept
 *   none            nothing around TEXT
 *
 * Template pieces are read with special tokens, TEXT without: "<|im_end|>" inside it does not end a message. Added
 * tokens that are not special, such as Qwen3's "<think>", are tokens in TEXT too, as the model knows them. A trained
 * message trains TEXT and end_trained, nothing else. A `pretrain` message is its TEXT alone, in every template.
 */
#include "data/document.h"
#include "data/tokenizer.h"

typedef struct ChatTemplate ChatTemplate;

/** Ids and, for each, whether it is trained (the raw label mask: no shift). */
typedef struct TrainedTokens {
    TokenBuffer ids;
    uint8_t *trained; /* [ids.n] 0/1 */
    int64_t capacity; /* of trained */
} TrainedTokens;

void trained_tokens_init(TrainedTokens *tokens);
void trained_tokens_free(TrainedTokens *tokens);
void trained_tokens_clear(TrainedTokens *tokens); /* empty, memory kept */

/**
 * The template of model.chat_template; "auto" takes the model type's (may be NULL: unknown).
 *
 * Errors: ERR_USAGE, naming model.chat_template: an unknown name, or auto with a model type that has none;
 *         ERR_UNSUPPORTED for llama3, deepseek_v3, gpt_oss.
 */
Status chat_template_find(const ChatTemplate **out, const char *name,
                          const char *model_type) MUST_USE;
const char *chat_template_name(const ChatTemplate *chat);

/**
 * Append a conversation. With generate, the start of an assistant's message follows, for the model to go on.
 *
 * Errors: ERR_MEMORY and what the tokenizer refuses.
 */
Status chat_encode(TrainedTokens *out, const ChatTemplate *chat, const Tokenizer *tokenizer,
                   const Message *message, int n_messages, bool generate) MUST_USE;

/** Append a pre-training text, all trained, and then eos_id, trained too (negative: none). */
Status text_encode(TrainedTokens *out, const Tokenizer *tokenizer, const char *text, size_t bytes,
                   int32_t eos_id) MUST_USE;

/**
 * Append a document of any kind: a conversation, a text with its eos, or the ids of an ids row as they are.
 * Neither template nor tokenizer is used for ids.
 */
Status document_encode(TrainedTokens *out, const Document *document, const ChatTemplate *chat,
                       const Tokenizer *tokenizer, int32_t eos_id) MUST_USE;
