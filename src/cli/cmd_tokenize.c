/* tokenize: texts and samples to ids, with the mask of what would be trained. */
#include "cli/command.h"

#include "base/log.h"
#include "data/chat.h"
#include "io/jsonl.h"

#include <stdio.h>
#include <string.h>

typedef struct TokenizeArgs {
    const char *model, *file, *text, *chat_template;
} TokenizeArgs;

// clang-format off
static const ArgPosition positions[] = {
    {"MODEL",      offsetof(TokenizeArgs, model), false, "folder with tokenizer.json; tokenizer_config.json, config.json and generation_config.json are read if there"},
    {"FILE.jsonl", offsetof(TokenizeArgs, file),  true,  "samples, one a line: messages, texts or rows of ids"},
    {0}};
static const OptionChoice templates[] = {
    {"auto", 0}, {"chatml", 0}, {"qwen3", 0}, {"llama3", 0}, {"deepseek_v3", 0}, {"gpt_oss", 0}, {"none", 0}, {0}};
static const OptionSpec options[] = {
    {"text",          OPT_TEXT, OPTION_AT(TokenizeArgs, text),          NULL,   OPTION_ANY, .help = "one text, encoded as HuggingFace does: special tokens in it are recognised, and those that the tokenizer adds are added"},
    {"chat-template", OPT_NAME, OPTION_AT(TokenizeArgs, chat_template), "auto", OPTION_CHOICES(templates), .help = "how conversations of the file become text; auto: by config.json's model_type", .value = "T", .built = "auto chatml qwen3 none"},
    {0}};
// clang-format on

/* What is known of the model besides its tokenizer. */
typedef struct Known {
    const char *model_type; /* NULL: unknown */
    int32_t eos;            /* -1: none */
    Log *log;
    bool warned; /* of a text without eos */
} Known;

/* eos_token_id is a number or a list, whose first counts. */
static void take_eos(const json_t *root, int32_t *eos)
{
    const json_t *value = json_object_get(root, "eos_token_id");
    if (json_is_array(value)) value = json_array_get(value, 0);
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        json_integer_value(value) <= INT32_MAX)
        *eos = (int32_t)json_integer_value(value);
}

/* generation_config.json's eos wins over config.json's, which wins over tokenizer_config.json's. */
static Status read_known(Known *known, const char *dir, const Tokenizer *tokenizer, Log *log,
                         Arena *arena)
{
    *known = (Known){.eos = tokenizer_eos(tokenizer), .log = log};
    static const char *const names[] = {"config.json", "generation_config.json"};
    for (int i = 0; i < 2; i++) {
        const char *path = path_join(arena, dir, names[i]);
        if (!file_exists(path)) continue;
        JsonDoc doc;
        TRY(json_doc_read(&doc, path));
        take_eos(doc.root, &known->eos);
        const json_t *type = json_object_get(doc.root, "model_type");
        if (i == 0 && json_is_string(type))
            known->model_type = text_copy(arena, json_string_value(type));
        json_doc_free(&doc);
    }
    return OK;
}

/* {"ids": […], "trained": […], "tokens": […]}; trained NULL: all. */
static void print_tokens(const Tokenizer *tokenizer, const int32_t *id, const uint8_t *trained,
                         int64_t n, Arena *arena)
{
    TextBuffer out;
    text_buffer_init(&out, arena);
    text_append_format(&out, "{\"ids\": [");
    for (int64_t t = 0; t < n; t++) text_append_format(&out, "%s%d", t ? ", " : "", id[t]);
    text_append_format(&out, "], \"trained\": [");
    for (int64_t t = 0; t < n; t++)
        text_append_format(&out, "%s%d", t ? ", " : "", trained ? trained[t] : 1);
    text_append_format(&out, "], \"tokens\": [");
    for (int64_t t = 0; t < n; t++) {
        const char *token = tokenizer_token(tokenizer, id[t]);
        if (t) text_append(&out, ", ", 2);
        if (token)
            json_append_string(&out, token);
        else
            text_append_format(&out, "null");
    }
    text_append_format(&out, "]}\n");
    fwrite(out.text, 1, out.length, stdout);
}

static Status tokenize_text(const Tokenizer *tokenizer, const char *text, Arena *arena)
{
    TokenBuffer ids = {0};
    Status st =
        tokenizer_encode(tokenizer, text, strlen(text), TOKENIZE_SPECIAL | TOKENIZE_TEMPLATE, &ids);
    if (st == OK) print_tokens(tokenizer, ids.id, NULL, ids.n, arena);
    token_buffer_free(&ids);
    return st;
}

static Status tokenize_document(const TokenizeArgs *args, Known *known, const Tokenizer *tokenizer,
                                const Document *document, TrainedTokens *tokens, Arena *arena)
{
    const ChatTemplate *chat;
    trained_tokens_clear(tokens);
    switch (document->kind) {
    case DOCUMENT_IDS:
        print_tokens(tokenizer, document->row.id_t, document->row.trained_t, document->row.n_tokens,
                     arena);
        return OK;
    case DOCUMENT_TEXT:
        if (known->eos < 0 && !known->warned)
            log_warning(known->log, "%s: no eos is known: none is put behind texts", args->model);
        known->warned = true;
        TRY(text_encode(tokens, tokenizer, document->text, document->bytes, known->eos));
        break;
    case DOCUMENT_MESSAGES:
        TRY(chat_template_find(&chat, args->chat_template, known->model_type));
        TRY(chat_encode(tokens, chat, tokenizer, document->message, document->n_messages, false));
        break;
    }
    print_tokens(tokenizer, tokens->ids.id, tokens->trained, tokens->ids.n, arena);
    return OK;
}

static Status tokenize_file(const TokenizeArgs *args, Known *known, const Tokenizer *tokenizer)
{
    JsonlReader reader;
    TRY(jsonl_open(&reader, args->file));
    TrainedTokens tokens;
    trained_tokens_init(&tokens);
    Arena arena;
    arena_init(&arena, "line");
    Status st;
    json_t *line;
    while ((st = jsonl_next(&reader, &line)) == OK && line) {
        arena_reset(&arena);
        Document document;
        /* Ids rows are shown whatever the model's vocabulary, which config.json alone knows. */
        st = document_parse(&document, line, reader.place, DATA_AUTO, INT32_MAX, &arena);
        if (st != OK) break;
        st = tokenize_document(args, known, tokenizer, &document, &tokens, &arena);
        if (st != OK) {
            const char *message = text_copy(&arena, status_message());
            st = FAIL(st, "%s: %s", reader.place, message);
            break;
        }
    }
    arena_free(&arena);
    trained_tokens_free(&tokens);
    jsonl_close(&reader);
    return st;
}

static Status run(const void *args_, const struct World *world, Arena *arena)
{
    (void)world;
    const TokenizeArgs *args = args_;
    if (!args->text == !args->file)
        return FAIL(ERR_USAGE, "tokenize: %s (expected --text TEXT or FILE.jsonl)",
                    args->text ? "--text and a file are both given" : "nothing to tokenize");
    if (args->text && strcmp(args->chat_template, "auto"))
        return FAIL(ERR_USAGE,
                    "tokenize: --chat-template %s: --text is one text, not a "
                    "conversation (expected FILE.jsonl)",
                    args->chat_template);
    Log log;
    TRY(log_open(&log, NULL, 0, true));
    Tokenizer *tokenizer;
    TRY(tokenizer_open(&tokenizer, args->model, arena, &log));
    Known known;
    Status st = read_known(&known, args->model, tokenizer, &log, arena);
    if (st == OK)
        st = args->text ? tokenize_text(tokenizer, args->text, arena)
                        : tokenize_file(args, &known, tokenizer);
    tokenizer_free(&tokenizer);
    log_close(&log);
    return st;
}

const Command command_tokenize = {
    .name = "tokenize",
    .summary = "texts and samples to token ids, with the mask of what is trained",
    .usage = "MODEL (--text TEXT | FILE.jsonl) [--chat-template T]",
    .about =
        "Shows what a model would see: one JSON object a line with the ids, for each id whether it "
        "is trained (1) or only read (0), and the tokens as the vocabulary spells them. Of a "
        "conversation the assistant's texts and the token that ends each of them are trained; of "
        "a pre-training text all, and the eos put behind it. The mask is not shifted: position t "
        "says whether id t is a target.",
    .example = "stagewright tokenize models/tiny --text \"Hello there\"\n"
               "stagewright tokenize models/tiny data/train.jsonl --chat-template chatml",
    .positions = positions,
    .options = options,
    .args_size = sizeof(TokenizeArgs),
    .run = run,
};
