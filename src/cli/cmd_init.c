#include "cli/command.h"
#include "cli/setup.h"
#include "io/file.h"
#include "train/export.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

typedef struct InitArgs {
    const char *out, *config;
    int64_t seed;
    DType dtype; /* DTYPE_COUNT: config.json's */
    int64_t max_shard_size;
} InitArgs;

static Status refuse_full_folder(const char *dir, Arena *arena)
{
    char **names;
    int n = 0;
    if (file_exists(dir))
        return FAIL(ERR_USAGE, "%s: is a file (expected a folder, new or empty)", dir);
    if (dir_exists(dir)) TRY(dir_list(arena, dir, &names, &n));
    return n ? FAIL(ERR_USAGE, "%s: exists and is not empty", dir) : OK;
}

static Status body(Engine *engine, void *arg)
{
    const InitArgs *args = arg;
    for (int i = 0; i < engine->layout->n; i++)
        if (args->dtype != DTYPE_COUNT) engine->layout->at[i].dtype = args->dtype;
    TRY(export_folder(engine, args->out, args->dtype, args->max_shard_size));
    int64_t n = 0;
    for (int i = 0; i < engine->layout->n; i++) n += engine->layout->at[i].count;
    fprintf(stderr, "%s: %lld parameters, seed %lld\n", args->out, (long long)n,
            (long long)args->seed);
    return OK;
}

static Status run(const void *args_, const World *world, Arena *arena)
{
    (void)world;
    InitArgs args = *(const InitArgs *)args_;
    TRY(refuse_full_folder(args.out, arena));
    Setup s;
    TextList none = {0};
    TRY(setup_create(&s, NULL, &none, args.config, NULL, arena));
    s.config.train.seed = args.seed;
    s.config.model.dtype = DTYPE_F32;
    SoloPlan plan = {
        .config = &s.config, .model = s.model, .max_positions = 1, .body = body, .arg = &args};
    return launch_solo(&plan);
}

static const ArgPosition positions[] = {
    {"OUT", offsetof(InitArgs, out), false, "folder to write; new or empty"}, {0}};
static const OptionChoice dtypes[] = {
    {"auto", DTYPE_COUNT}, {"f32", DTYPE_F32}, {"bf16", DTYPE_BF16}, {0}};
// clang-format off
static const OptionSpec options[] = {
    {"config",         OPT_TEXT, OPTION_AT(InitArgs, config),         NULL,   OPTION_ANY, .help = "a config.json, or a folder with one; tokenizer and generation files beside it are copied", .value = "FILE_OR_DIR", .required = true},
    {"seed",           OPT_INT,  OPTION_AT(InitArgs, seed),           "42",   OPTION_RANGE(0, 9e15), .help = "of the random weights"},
    {"dtype",          OPT_ENUM, OPTION_AT(InitArgs, dtype),          "auto", OPTION_CHOICES(dtypes), .help = "of the weights; auto: config.json's, else f32"},
    {"max-shard-size", OPT_SIZE, OPTION_AT(InitArgs, max_shard_size), "5GB",  OPTION_AT_LEAST(1), .help = "weights beyond this go to several files and an index"},
    {0}};
// clang-format on

const Command command_init = {
    .name = "init",
    .summary = "write a HuggingFace folder with random weights",
    .usage = "OUT --config FILE_OR_DIR [--seed N] [--dtype f32|bf16] [--max-shard-size 5GB]",
    .about =
        "Makes a model to start from: norms 1, biases 0, everything else normal with "
        "initializer_range. Each element is "
        "drawn from (seed, tensor name, index), so the same seed gives the same model anywhere.",
    .example = "stagewright init models/tiny --config examples/addition/model --seed 1",
    .positions = positions,
    .options = options,
    .args_size = sizeof(InitArgs),
    .run = run,
};
