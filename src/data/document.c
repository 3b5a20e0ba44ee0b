#include "data/document.h"

#include "io/json.h"

#include <string.h>

// clang-format off
const char *const data_format_names[] = {
    [DATA_AUTO] = "auto", [DATA_MESSAGES] = "messages", [DATA_TEXT] = "text", [DATA_IDS] = "ids", NULL};
const char *const role_names[] = {
    [ROLE_SYSTEM] = "system", [ROLE_USER] = "user", [ROLE_ASSISTANT] = "assistant",
    [ROLE_TOOL] = "tool", [ROLE_PRETRAIN] = "pretrain", NULL};

/* What a user asks, what may be added to it, what the assistant answers. */
static const struct Pair {
    const char *ask, *more, *answer;
} pairs[] = {
    {"instruction", "input", "output"  },
    {"prompt",      NULL,    "response"},
    {"question",    NULL,    "answer"  },
};
// clang-format on

enum { N_PAIRS = sizeof pairs / sizeof pairs[0] };

/** A text in the arena: the string's bytes and a NUL. */
static Status copy_string(const char **text, size_t *bytes, const json_t *string, Arena *arena)
{
    size_t n = json_string_length(string);
    char *copy = NULL;
    TRY(arena_alloc(arena, &copy, n + 1, 1));
    memcpy(copy, json_string_value(string), n);
    *text = copy;
    *bytes = n;
    return OK;
}

static Status expect_string(const json_t *value, const char *place, const char *key)
{
    if (json_is_string(value)) return OK;
    return FAIL(ERR_FORMAT, "%s: %s: not a text (found %s)", place, key, json_kind_name(value));
}

/** Text parts one after the other; pictures and the like are not for this trainer. */
static Status join_parts(const char **text, size_t *bytes, const json_t *parts, const char *place,
                         Arena *arena)
{
    size_t total = 0, n = json_array_size(parts);
    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_array_get(parts, i), *type = json_object_get(part, "type");
        if (!json_is_string(type)) return FAIL(ERR_FORMAT, "%s: content[%zu]: no type", place, i);
        if (strcmp(json_string_value(type), "text") != 0)
            return FAIL(ERR_FORMAT,
                        "%s: content[%zu]: unknown type (found \"%s\", expected \"text\")", place,
                        i, json_string_value(type));
        const json_t *piece = json_object_get(part, "text");
        TRY(expect_string(piece, place, "text of a content part"));
        total += json_string_length(piece);
    }
    char *joined = NULL;
    TRY(arena_alloc(arena, &joined, total + 1, 1));
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *piece = json_object_get(json_array_get(parts, i), "text");
        memcpy(joined + at, json_string_value(piece), json_string_length(piece));
        at += json_string_length(piece);
    }
    *text = joined;
    *bytes = total;
    return OK;
}

static Status parse_message(Message *out, const json_t *value, const char *place, size_t index,
                            Arena *arena)
{
    char where[1200];
    snprintf(where, sizeof where, "%s: message %zu", place, index + 1);
    TRY(json_expect_object(value, where));
    const char *name;
    TRY(json_get_string(value, where, "role", &name));
    Role role = 0;
    while (role < ROLE_COUNT && strcmp(role_names[role], name) != 0) role++;
    if (role == ROLE_COUNT)
        return FAIL(ERR_FORMAT,
                    "%s: unknown role (found \"%.64s\", expected system, user, assistant, tool or "
                    "pretrain)",
                    where, name);
    bool trained;
    TRY(json_get_bool_or(value, where, "loss", role == ROLE_ASSISTANT || role == ROLE_PRETRAIN,
                         &trained));
    *out = (Message){.role = role, .trained = trained};
    const json_t *content = json_object_get(value, "content");
    if (json_is_array(content)) return join_parts(&out->text, &out->bytes, content, where, arena);
    TRY(expect_string(content, where, "content"));
    return copy_string(&out->text, &out->bytes, content, arena);
}

static Status parse_messages(Document *out, const json_t *list, const char *place, Arena *arena)
{
    if (!json_is_array(list))
        return FAIL(ERR_FORMAT, "%s: messages: not a list (found %s)", place, json_kind_name(list));
    size_t n = json_array_size(list);
    if (n == 0) return FAIL(ERR_FORMAT, "%s: no messages", place);
    if (n > INT32_MAX) return FAIL(ERR_FORMAT, "%s: %zu messages are too many", place, n);
    Message *message = NULL;
    TRY(arena_alloc(arena, &message, n, sizeof *message));
    for (size_t i = 0; i < n; i++)
        TRY(parse_message(&message[i], json_array_get(list, i), place, i, arena));
    *out = (Document){.kind = DOCUMENT_MESSAGES, .message = message, .n_messages = (int)n};
    return OK;
}

static const struct Pair *find_pair(const json_t *line)
{
    for (int i = 0; i < N_PAIRS; i++)
        if (json_object_get(line, pairs[i].ask) && json_object_get(line, pairs[i].answer))
            return &pairs[i];
    return NULL;
}

static Status parse_pair(Document *out, const struct Pair *pair, const json_t *line,
                         const char *place, Arena *arena)
{
    const json_t *ask = json_object_get(line, pair->ask);
    const json_t *more = pair->more ? json_object_get(line, pair->more) : NULL;
    const json_t *answer = json_object_get(line, pair->answer);
    TRY(expect_string(ask, place, pair->ask));
    TRY(expect_string(answer, place, pair->answer));
    if (more && !json_is_null(more)) TRY(expect_string(more, place, pair->more));
    Message *message = NULL;
    TRY(arena_alloc(arena, &message, 2, sizeof *message));
    message[0] = (Message){.role = ROLE_USER};
    message[1] = (Message){.role = ROLE_ASSISTANT, .trained = true};
    size_t n_ask = json_string_length(ask), n_more = json_string_length(more);
    if (n_more > 0) {
        char *joined = NULL;
        TRY(arena_alloc(arena, &joined, n_ask + n_more + 2, 1));
        memcpy(joined, json_string_value(ask), n_ask);
        joined[n_ask] = '\n';
        memcpy(joined + n_ask + 1, json_string_value(more), n_more);
        message[0].text = joined;
        message[0].bytes = n_ask + 1 + n_more;
    } else {
        TRY(copy_string(&message[0].text, &message[0].bytes, ask, arena));
    }
    TRY(copy_string(&message[1].text, &message[1].bytes, answer, arena));
    *out = (Document){.kind = DOCUMENT_MESSAGES, .message = message, .n_messages = 2};
    return OK;
}

static Status parse_text(Document *out, const json_t *line, const char *place, Arena *arena)
{
    const char *key = json_object_get(line, "text") ? "text" : "content";
    const json_t *text = json_object_get(line, key);
    if (!text) return FAIL(ERR_FORMAT, "%s: neither \"text\" nor \"content\"", place);
    TRY(expect_string(text, place, key));
    *out = (Document){.kind = DOCUMENT_TEXT};
    return copy_string(&out->text, &out->bytes, text, arena);
}

static DataFormat guess_format(const json_t *line)
{
    if (json_object_get(line, "input_ids")) return DATA_IDS;
    if (json_is_array(line) || json_object_get(line, "messages")) return DATA_MESSAGES;
    if (json_object_get(line, "text") || json_object_get(line, "content")) return DATA_TEXT;
    return find_pair(line) ? DATA_MESSAGES : DATA_AUTO;
}

Status document_parse(Document *out, const json_t *line, const char *place, DataFormat format,
                      int64_t vocab_size, Arena *arena)
{
    if (format == DATA_AUTO) format = guess_format(line);
    if (format == DATA_AUTO) {
        TRY(json_expect_object(line, place));
        return FAIL(ERR_FORMAT,
                    "%s: not a sample (expected messages, text, content, input_ids, or a pair such "
                    "as question and answer)",
                    place);
    }
    if (format == DATA_MESSAGES && json_is_array(line))
        return parse_messages(out, line, place, arena);
    TRY(json_expect_object(line, place));
    if (format == DATA_MESSAGES) {
        const json_t *list = json_object_get(line, "messages");
        const struct Pair *pair = list ? NULL : find_pair(line);
        if (pair) return parse_pair(out, pair, line, place, arena);
        if (!list) return FAIL(ERR_FORMAT, "%s: no messages", place);
        return parse_messages(out, list, place, arena);
    }
    if (format == DATA_TEXT) return parse_text(out, line, place, arena);
    *out = (Document){.kind = DOCUMENT_IDS};
    return row_parse(&out->row, line, place, vocab_size, arena);
}

Status document_read_messages(const Message **out, int *n_messages, const char *path, Arena *arena)
{
    JsonDoc doc = {0};
    TRY(json_doc_read(&doc, path));
    Document document = {0};
    Status st = document_parse(&document, doc.root, path, DATA_MESSAGES, 0, arena);
    json_doc_free(&doc);
    TRY(st);
    *out = document.message;
    *n_messages = document.n_messages;
    return OK;
}
