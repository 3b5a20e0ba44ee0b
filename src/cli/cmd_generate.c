#include "cli/command.h"
#include "cli/setup.h"
#include "io/json.h"
#include "io/jsonl.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef struct GenerateArgs {
    const char *model, *prompt, *messages, *prompts;
    int64_t max_new_tokens;
    double temperature;
    int64_t seed;
    bool json;
    TextList sets;
} GenerateArgs;

/* What the command continues: ids of each prompt one after the other. */
typedef struct Prompts {
    TrainedTokens ids;
    int64_t *end; /* [n] where each ends in ids */
    int64_t n, capacity;
    int64_t longest;
} Prompts;

typedef struct Job {
    const GenerateArgs *args;
    const Setup *setup;
    Prompts prompts;
    Arena *arena;
} Job;

static void close_prompt(Prompts *p, Arena *arena)
{
    if (p->n == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 64;
        int64_t *end = ARENA_NEW(arena, int64_t, capacity);
        if (p->n) memcpy(end, p->end, (size_t)p->n * sizeof *end);
        p->end = end;
        p->capacity = capacity;
    }
    int64_t first = p->n ? p->end[p->n - 1] : 0;
    p->end[p->n++] = p->ids.ids.n;
    if (p->ids.ids.n - first > p->longest) p->longest = p->ids.ids.n - first;
}

static Status add_messages(Job *job, const Message *message, int n)
{
    const ChatTemplate *chat;
    TRY(chat_template_find(&chat, job->setup->config.model.chat_template,
                           job->setup->model->family->model_type));
    TRY(chat_encode(&job->prompts.ids, chat, job->setup->tokenizer, message, n, true));
    close_prompt(&job->prompts, job->arena);
    return OK;
}

/* --prompt: the text as it is, as HuggingFace reads it. */
static Status add_text(Job *job, const char *text, size_t n)
{
    TRY(tokenizer_encode(job->setup->tokenizer, text, n, TOKENIZE_SPECIAL | TOKENIZE_TEMPLATE,
                         &job->prompts.ids.ids));
    close_prompt(&job->prompts, job->arena);
    return OK;
}

/* A line of --prompts: {"prompt": TEXT} or any conversation; a final assistant message is the answer, not part of the prompt. */
static Status add_line(Job *job, const json_t *line, const char *place)
{
    const json_t *text = json_is_object(line) ? json_object_get(line, "prompt") : NULL;
    if (json_is_string(text) && !json_object_get(line, "response"))
        return add_text(job, json_string_value(text), json_string_length(text));
    Document document;
    TRY(document_parse(&document, line, place, DATA_AUTO, job->setup->model->vocab, job->arena));
    if (document.kind == DOCUMENT_TEXT) return add_text(job, document.text, document.bytes);
    if (document.kind != DOCUMENT_MESSAGES)
        return FAIL(ERR_FORMAT, "%s: expected a prompt or messages", place);
    int n = document.n_messages;
    if (n > 1 && document.message[n - 1].role == ROLE_ASSISTANT) n--;
    return add_messages(job, document.message, n);
}

static Status read_prompts(Job *job, const char *path)
{
    JsonlReader reader;
    TRY(jsonl_open(&reader, path));
    Status status;
    json_t *line;
    while ((status = jsonl_next(&reader, &line)) == OK && line) {
        status =
            add_line(job, line, text_format(job->arena, "%s:%lld", path, (long long)reader.line));
        if (status != OK) break;
    }
    jsonl_close(&reader);
    return status;
}

static void print_answer(const Job *job, const int32_t *id, int64_t n, bool ended)
{
    TextBuffer text;
    text_buffer_init(&text, job->arena);
    tokenizer_decode(job->setup->tokenizer, id, n, true, &text);
    if (!job->args->json && !job->args->prompts) {
        printf("%s\n", text.text);
        return;
    }
    TextBuffer out;
    text_buffer_init(&out, job->arena);
    text_append_format(&out, "{\"text\": ");
    json_append_string_n(&out, text.text, text.length);
    text_append_format(&out, ", \"ids\": [");
    for (int64_t i = 0; i < n; i++) text_append_format(&out, "%s%d", i ? ", " : "", id[i]);
    text_append_format(&out, "], \"finish\": \"%s\"}", ended ? "eos" : "length");
    puts(out.text);
}

static Status body(Engine *engine, void *arg)
{
    Job *job = arg;
    const GenerateArgs *args = job->args;
    Generator generator;
    Status status =
        generator_create(&generator, engine, job->prompts.longest + args->max_new_tokens);
    GenerateConfig config = {args->max_new_tokens, args->temperature, (uint64_t)args->seed,
                             (int32_t)tokenizer_vocab_size(job->setup->tokenizer)};
    int32_t *out = ARENA_NEW(job->arena, int32_t, args->max_new_tokens);
    for (int64_t i = 0; i < job->prompts.n && status == OK; i++) {
        int64_t first = i ? job->prompts.end[i - 1] : 0;
        bool ended;
        ArenaMark mark = arena_mark(job->arena);
        int64_t n = generate(&generator, &config, i, job->prompts.ids.ids.id + first,
                             job->prompts.end[i] - first, out, &ended);
        if (n >= 0)
            print_answer(job, out, n, ended);
        else
            status = FAIL(ERR_FAILED,
                          "%s: its logits are not finite (inspect --verify looks "
                          "at the weights)",
                          args->model);
        arena_rewind(job->arena, mark);
    }
    generator_free(&generator);
    return status;
}

static Status collect(Job *job)
{
    const GenerateArgs *args = job->args;
    if (!!args->prompt + !!args->messages + !!args->prompts != 1)
        return FAIL(ERR_USAGE,
                    "generate: exactly one of --prompt, --messages and --prompts is needed");
    if (args->prompt) return add_text(job, args->prompt, strlen(args->prompt));
    if (args->prompts) return read_prompts(job, args->prompts);
    const Message *message;
    int n;
    TRY(document_read_messages(&message, &n, args->messages, job->arena));
    return add_messages(job, message, n);
}

/* Neither configuration names one: then the tokenizer's, as for training texts. */
static void take_eos_of_tokenizer(Setup *s)
{
    int32_t id = setup_eos(s);
    if (s->model->n_eos || id < 0) return;
    s->model->eos[s->model->n_eos++] = id;
}

static Status check_prompts(const Job *job)
{
    const Prompts *p = &job->prompts;
    for (int64_t i = 0; i < p->n; i++)
        if (p->end[i] == (i ? p->end[i - 1] : 0))
            return FAIL(ERR_USAGE, "generate: prompt %lld has no tokens", (long long)i + 1);
    for (int64_t i = 0; i < p->ids.ids.n; i++)
        if (p->ids.ids.id[i] >= job->setup->model->vocab)
            return FAIL(ERR_FORMAT,
                        "generate: token id %d is not below the model's vocab_size %lld",
                        p->ids.ids.id[i], (long long)job->setup->model->vocab);
    return OK;
}

static Status run(const void *args_, const World *world, Arena *arena)
{
    (void)world;
    const GenerateArgs *args = args_;
    Setup s;
    TRY(setup_create(&s, NULL, &args->sets, args->model, NULL, arena));
    Job job = {.args = args, .setup = &s, .arena = arena};
    trained_tokens_init(&job.prompts.ids);
    Status status = setup_tokenizer(&s, true);
    if (status == OK) take_eos_of_tokenizer(&s);
    if (status == OK) status = collect(&job);
    if (status == OK) status = check_prompts(&job);
    if (status == OK && job.prompts.n) {
        SoloPlan plan = {.config = &s.config,
                         .model = s.model,
                         .weights = args->model,
                         .max_positions = job.prompts.longest + args->max_new_tokens,
                         .body = body,
                         .arg = &job};
        status = launch_solo(&plan);
    }
    trained_tokens_free(&job.prompts.ids);
    setup_free(&s);
    return status;
}

static const ArgPosition positions[] = {
    {"MODEL", offsetof(GenerateArgs, model), false, "HuggingFace folder or checkpoint"}, {0}};
// clang-format off
static const OptionSpec options[] = {
    {"prompt",         OPT_TEXT,  OPTION_AT(GenerateArgs, prompt),         "null",  OPTION_ANY, .help = "text to continue, as it is", .value = "TEXT", .unset = "null"},
    {"messages",       OPT_TEXT,  OPTION_AT(GenerateArgs, messages),       "null",  OPTION_ANY, .help = "a JSON file with a conversation; the assistant's next message is written", .value = "FILE", .unset = "null"},
    {"prompts",        OPT_TEXT,  OPTION_AT(GenerateArgs, prompts),        "null",  OPTION_ANY, .help = "a line each: {\"prompt\": TEXT}, or a conversation as for training; one JSON answer a line", .value = "FILE.jsonl", .unset = "null"},
    {"max-new-tokens", OPT_INT,   OPTION_AT(GenerateArgs, max_new_tokens), "256",   OPTION_RANGE(1, 1e6), .help = "of an answer"},
    {"temperature",    OPT_REAL,  OPTION_AT(GenerateArgs, temperature),    "0",     OPTION_RANGE(0, 1e6), .help = "0: always the most likely token"},
    {"seed",           OPT_INT,   OPTION_AT(GenerateArgs, seed),           "42",    OPTION_RANGE(0, 9e15), .help = "of the draws"},
    {"json",           OPT_BOOL,  OPTION_AT(GenerateArgs, json),           "false", OPTION_ANY, .help = "print {\"text\", \"ids\", \"finish\"} instead of text"},
    {"set",            OPT_TEXTS, OPTION_AT(GenerateArgs, sets),           "[]",    OPTION_ANY, .help = "a configuration key (model.chat_template, train.threads)", .value = "KEY=VALUE"},
    {0}};
// clang-format on

const Command command_generate = {
    .name = "generate",
    .summary = "continue texts",
    .usage = "MODEL (--prompt TEXT | --messages FILE | --prompts FILE.jsonl) [--max-new-tokens "
             "256] [--temperature X] [--seed N] [--json]",
    .about = "Continues a text or a conversation, with a KV cache, until an eos of the model comes "
             "or max-new-tokens are written.",
    .example =
        "stagewright generate runs/first/hf/final --prompt 'Once upon a time' --max-new-tokens 50",
    .positions = positions,
    .options = options,
    .args_size = sizeof(GenerateArgs),
    .run = run,
};
