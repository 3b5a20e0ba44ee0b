#include "cli/command.h"
#include "cli/setup.h"
#include "io/file.h"

#include <stddef.h>

typedef struct ProbeArgs {
    const char *model, *batch, *out;
    bool logits, grads;
    TextList sets;
} ProbeArgs;

static Status run(const void *args_, const World *world, Arena *arena)
{
    const ProbeArgs *args = args_;
    Setup s;
    TRY(setup_create(&s, NULL, &args->sets, args->model, world, arena));
    ProbePlan plan = {.config = &s.config,
                      .model = s.model,
                      .out = args->out,
                      .logits = args->logits,
                      .grads = args->grads,
                      .weights = s.config.model.init ? NULL : args->model};
    Row *rows;
    TRY(row_read_file(&rows, &plan.n_rows, args->batch, s.model->vocab, arena));
    plan.row = rows;
    if (plan.n_rows % s.config.parallel.dp_size)
        return FAIL(ERR_USAGE,
                    "%s: lines must be a multiple of parallel.dp_size (found %lld and %d)",
                    args->batch, (long long)plan.n_rows, s.config.parallel.dp_size);
    if (plan.n_rows > 1000000)
        return FAIL(ERR_USAGE, "%s: too many lines (found %lld, expected at most 1000000)",
                    args->batch, (long long)plan.n_rows);
    TRY(setup_same_rows(&s, args->batch, rows, plan.n_rows));
    Schedule *schedule;
    TRY(setup_schedule(&schedule, &s, plan.n_rows / s.config.parallel.dp_size,
                       "the lines of the batch / parallel.dp_size"));
    TRY(world_all_ok(world, world->rank == 0 ? dir_create(args->out) : OK));
    return launch_probe(world, &plan);
}

static const ArgPosition positions[] = {
    {"MODEL", offsetof(ProbeArgs, model), false, "HuggingFace folder or checkpoint"}, {0}};
// clang-format off
static const OptionSpec options[] = {
    {"batch",  OPT_TEXT,  OPTION_AT(ProbeArgs, batch),  NULL,    OPTION_ANY, .help = "a microbatch a line: {\"input_ids\": […], \"labels\": […], \"cu_seqlens\": […]}", .value = "FILE.jsonl", .required = true},
    {"out",    OPT_TEXT,  OPTION_AT(ProbeArgs, out),    NULL,    OPTION_ANY, .help = "folder for losses.json and what the flags ask for", .value = "DIR", .required = true},
    {"logits", OPT_BOOL,  OPTION_AT(ProbeArgs, logits), "false", OPTION_ANY, .help = "write logits.safetensors: f32 tensors mb0, mb1, … [T, V]"},
    {"grads",  OPT_BOOL,  OPTION_AT(ProbeArgs, grads),  "false", OPTION_ANY, .help = "write grads.safetensors: f32, every parameter, before clipping"},
    {"set",    OPT_TEXTS, OPTION_AT(ProbeArgs, sets),   "[]",    OPTION_ANY, .help = "a configuration key (parallel.*, loss.*, …)", .value = "KEY=VALUE"},
    {0}};
// clang-format on

const Command command_probe = {
    .name = "probe",
    .summary = "one forward and backward: losses, logits, gradients",
    .usage = "MODEL --batch FILE.jsonl --out DIR [--logits] [--grads] [--set KEY=VALUE]…",
    .about =
        "Runs one training step's forward and backward on given token ids, in any layout, "
        "without an update, and writes the "
        "numbers. The same files come out for every pp_size, layer_split, schedule, zero_stage, "
        "recompute_ratio and thread count, byte "
        "for byte: the way to check a layout, or this program against another one.",
    .example = "stagewright probe models/tiny --batch batch.jsonl --out probe --grads --set "
               "parallel.pp_size=2",
    .positions = positions,
    .options = options,
    .args_size = sizeof(ProbeArgs),
    .all_ranks = true,
    .run = run,
};
