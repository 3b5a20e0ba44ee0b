#pragma once
/**
 * One sample of a JSONL file as it was written, before any token:
 *
 *   messages  {"messages": [{"role": ..., "content": ...}, ...]} or the bare list, or a pair
 *             {"instruction", "input" (may be absent or empty), "output"}: user "instruction\ninput", assistant
 *             {"prompt", "response"}, {"question", "answer"}: user, assistant
 *   text      {"text": ...} or {"content": ...}
 *   ids       {"input_ids": ...} (row.h)
 *
 * With DATA_AUTO each line decides for itself, by the first that is there of: a list, "input_ids",
 * "messages", "text", "content", the pairs in the order above. Other keys are ignored.
 * A message's content is a string, or a list of {"type": "text", "text": ...} parts, joined with nothing
 * between. `"loss": true|false` in a message says whether it is trained; else its role does.
 */
#include "data/row.h"

typedef enum DataFormat {
    DATA_AUTO,
    DATA_MESSAGES,
    DATA_TEXT,
    DATA_IDS,
    DATA_FORMAT_COUNT
} DataFormat;
extern const char *const data_format_names[]; /* as in the configuration; ends with NULL */

typedef enum Role {
    ROLE_SYSTEM,
    ROLE_USER,
    ROLE_ASSISTANT,
    ROLE_TOOL,
    ROLE_PRETRAIN, /* text as is, no template around it */
    ROLE_COUNT
} Role;
extern const char *const role_names[]; /* ends with NULL */

typedef struct Message {
    Role role;
    const char *text; /* UTF-8, not NUL-terminated: it may hold NULs */
    size_t bytes;
    bool trained; /* assistant and pretrain, unless "loss" says otherwise */
} Message;

typedef enum DocumentKind { DOCUMENT_MESSAGES, DOCUMENT_TEXT, DOCUMENT_IDS } DocumentKind;

typedef struct Document {
    DocumentKind kind;
    const Message *message; /* [n_messages], n_messages >= 1: DOCUMENT_MESSAGES */
    int n_messages;
    const char *text; /* DOCUMENT_TEXT */
    size_t bytes;
    Row row; /* DOCUMENT_IDS */
} Document;

/**
 * Read one line; place is its FILE:LINE, for messages.
 *
 * Owner:  arena holds what the document points to.
 * Errors: ERR_FORMAT "FILE:LINE: ..." for what is none of the above or not of `format`, an unknown role, a
 *         content that is not text, an empty list of messages, and what row_parse refuses.
 */
Status document_parse(Document *out, const json_t *line, const char *place, DataFormat format,
                      int64_t vocab_size, Arena *arena) MUST_USE;

/**
 * Read a whole file that holds one conversation (generate --messages): one JSON value, a list of messages or
 * an object with "messages".
 */
Status document_read_messages(const Message **out, int *n_messages, const char *path,
                              Arena *arena) MUST_USE;
