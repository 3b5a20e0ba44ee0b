#include "cli/command.h"
#include "cli/setup.h"
#include "io/file.h"
#include "train/checkpoint.h"
#include "train/export.h"

#include <stddef.h>
#include <stdio.h>

typedef struct ExportArgs {
    const char *checkpoint, *out;
    DType dtype;
} ExportArgs;

static Status body(Engine *engine, void *arg)
{
    const ExportArgs *args = arg;
    TRY(export_folder(engine, args->out, args->dtype, 0));
    fprintf(stderr, "exported %s\n", args->out);
    return OK;
}

static Status run(const void *args_, const World *world, Arena *arena)
{
    (void)world;
    ExportArgs args = *(const ExportArgs *)args_;
    const char *dir = args.checkpoint;
    if (!checkpoint_is(dir)) {
        const char *latest = NULL;
        if (dir_exists(dir)) TRY(checkpoint_newest(&latest, dir, arena));
        if (!latest)
            return FAIL(ERR_USAGE, "%s: not a checkpoint, nor a run's folder with one", dir);
        dir = latest;
    }
    if (dir_exists(args.out) || file_exists(args.out))
        return FAIL(ERR_USAGE, "%s: exists already", args.out);
    CheckpointInfo info;
    TRY(checkpoint_read(&info, dir, arena));
    Setup s;
    static const char *const carry[] = {"model.extra_tensors=carry"};
    TextList sets = {ARENA_NEW(arena, const char *, 1), 1};
    sets.at[0] = carry[0];
    TRY(setup_configure(&s, NULL, &sets, dir, NULL, arena));
    TRY(setup_read_model(&s, dir));
    s.config.model.dtype = DTYPE_F32; /* masters as they are */
    SoloPlan plan = {.config = &s.config,
                     .model = s.model,
                     .weights = dir,
                     .max_positions = 1,
                     .body = body,
                     .arg = &args};
    return launch_solo(&plan);
}

static const ArgPosition positions[] = {
    {"CHECKPOINT", offsetof(ExportArgs, checkpoint), false,
     "a checkpoint, or a run's folder: its newest one"},
    {"OUT", offsetof(ExportArgs, out), false, "folder to write; must not exist"},
    {0}};
static const OptionChoice dtypes[] = {
    {"auto", DTYPE_COUNT}, {"bf16", DTYPE_BF16}, {"f32", DTYPE_F32}, {0}};
// clang-format off
static const OptionSpec options[] = {
    {"dtype", OPT_ENUM, OPTION_AT(ExportArgs, dtype), "auto", OPTION_CHOICES(dtypes), .help = "of the weights; auto: as in the folder that the run started from"},
    {0}};
// clang-format on

const Command command_export = {
    .name = "export",
    .summary = "training checkpoint to HuggingFace folder",
    .usage = "CHECKPOINT OUT [--dtype auto|bf16|f32]",
    .about = "Writes the weights of a checkpoint with the tensor names, layout, files and dtypes "
             "of the folder that the run started "
             "from; config, tokenizer and chat template are carried over.",
    .example = "stagewright export runs/first/checkpoints/step-000100 models/first",
    .positions = positions,
    .options = options,
    .args_size = sizeof(ExportArgs),
    .run = run,
};
