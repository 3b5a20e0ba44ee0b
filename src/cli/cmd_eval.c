#include "cli/command.h"
#include "cli/setup.h"
#include "io/json.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

typedef struct EvalArgs {
    const char *model;
    TextList data, sets;
} EvalArgs;

static void print(const EvalResult *result, Arena *arena)
{
    TextBuffer out;
    text_buffer_init(&out, arena);
    text_append_format(&out, "{\"loss\": ");
    json_append_real(&out, result->n_trained ? result->loss : NAN);
    text_append_format(&out, ", \"perplexity\": ");
    json_append_real(&out, result->n_trained ? exp(result->loss) : NAN);
    printf("%s, \"tokens\": %lld, \"trained_tokens\": %lld}\n", out.text,
           (long long)result->n_tokens, (long long)result->n_trained);
}

static Status run(const void *args_, const World *world, Arena *arena)
{
    const EvalArgs *args = args_;
    Setup s;
    TRY(setup_create(&s, NULL, &args->sets, args->model, world, arena));
    ConfigSources sources = {ARENA_NEW(arena, ConfigSource, args->data.n), args->data.n};
    for (int i = 0; i < sources.n; i++) sources.at[i] = (ConfigSource){args->data.at[i], NAN};
    Dataset *data = NULL;
    EvalResult result;
    Status status = setup_dataset(&data, &s, "--data", &sources, false);
    if (status == OK) status = setup_same_data(&s, "--data", data);
    if (status == OK) {
        EvalPlan plan = {&s.config, s.model, s.config.model.init ? NULL : args->model, data};
        status = launch_eval(world, &result, &plan);
    }
    if (status == OK && world->rank == 0) {
        print(&result, arena);
        if (!result.n_trained)
            log_warning(&s.log, "--data: no token to evaluate: no loss");
        else if (!isfinite(result.loss))
            log_warning(&s.log, "%s: the loss is not finite", args->model);
    }
    dataset_free(&data);
    setup_free(&s);
    return status;
}

static const ArgPosition positions[] = {
    {"MODEL", offsetof(EvalArgs, model), false, "HuggingFace folder or checkpoint"}, {0}};
// clang-format off
static const OptionSpec options[] = {
    {"data", OPT_TEXTS, OPTION_AT(EvalArgs, data), "[]", OPTION_ANY, .help = "JSONL files, folders or globs, in any form that training takes", .value = "FILE", .required = true, .rest = true},
    {"set",  OPT_TEXTS, OPTION_AT(EvalArgs, sets), "[]", OPTION_ANY, .help = "a configuration key (data.*, parallel.*, …)", .value = "KEY=VALUE"},
    {0}};
// clang-format on

const Command command_eval = {
    .name = "eval",
    .summary = "loss and perplexity on data",
    .usage = "MODEL --data FILE… [--set KEY=VALUE]…",
    .about = "Prints one JSON object: loss (mean over the trained tokens of all rows, or as "
             "loss.reduction says), perplexity "
             "exp(loss), tokens, trained_tokens.",
    .example = "stagewright eval runs/first/hf/final --data test.jsonl",
    .positions = positions,
    .options = options,
    .args_size = sizeof(EvalArgs),
    .all_ranks = true,
    .run = run,
};
