#include "cli/command.h"
#include "cli/setup.h"
#include "base/clock.h"
#include "io/file.h"
#include "io/lock.h"
#include "model/partition.h"
#include "train/optimizer.h"
#include "train/step_folder.h"
#include "train/stop_before.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

typedef struct TrainArgs {
    const char *config;
    TextList sets;
    bool resume, override;
} TrainArgs;

/* A signal handler can reach nothing but these. */
static volatile sig_atomic_t stop_asked;
static atomic_flag signalled = ATOMIC_FLAG_INIT;

static void ask_to_stop(int number)
{
    if (atomic_flag_test_and_set(
            &signalled)) { /* its default action, once this handler has returned */
        signal(number, SIG_DFL);
        raise(number);
    }
    stop_asked = 1;
}

/*
 * The first SIGINT, SIGTERM or SIGHUP (unless nohup has it ignored) saves and leaves, a second one, whichever, ends at once.
 * Launchers pass SIGUSR1 on unchanged; SIGTERM of theirs is soon followed by SIGKILL.
 */
static void catch_signals(bool launched)
{
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask); /* one after the other */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    struct sigaction before;
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    if (launched) sigaction(SIGUSR1, &action, NULL);
}

/* A process that was killed, or is still saving, is waited for so long. */
static const double lock_patience = 2;

/* By process 0, for the whole of the run: two that write to one folder would ruin it. */
static Status claim_folder(Setup *s, int *lock)
{
    if (*lock >= 0) return OK;
    TRY(dir_create(s->config.train.output));
    return file_lock(lock, path_join(s->arena, s->config.train.output, "log.txt"), lock_patience);
}

static Status refuse_other_run(Setup *s)
{
    const char *metrics = path_join(s->arena, s->config.train.output, "metrics.jsonl");
    if (!file_exists(metrics)) return OK;
    return FAIL(ERR_USAGE,
                "train.output: %s holds a run already (go on with --resume, or choose another "
                "folder)",
                metrics);
}

/* What the newest checkpoint says, if there is one; the run then reads everything from there, and model.path may be gone. */
static Status find_checkpoint(Setup *s, const TrainArgs *args, TrainPlan *plan, int *lock)
{
    const char *output = s->config.train.output;
    if (!args->resume) {
        if (!s->config.model.init && checkpoint_is(s->config.model.path))
            log_line(&s->log,
                     "%s is a checkpoint: a new run starts from its weights, at step 1 and with "
                     "new moments (to go on with its own run: --resume)",
                     s->config.model.path);
        return refuse_other_run(s);
    }
    if (dir_exists(output)) TRY(claim_folder(s, lock));
    TRY(folder_recover(path_join(s->arena, output, "checkpoints"), &s->log, s->arena));
    TRY(checkpoint_newest(&plan->checkpoint, output, s->arena));
    if (!plan->checkpoint) {
        log_line(&s->log, "%s holds no checkpoint yet: starting at step 1", output);
        return OK;
    }
    CheckpointInfo info;
    double begin = clock_seconds();
    Status status = checkpoint_read(&info, plan->checkpoint, s->arena);
    if (status != OK)
        return FAIL(status, "%s (with %s removed, --resume takes the checkpoint before it)",
                    status_message(), plan->checkpoint);
    plan->check_seconds = clock_seconds() - begin;
    TRY(setup_read_model(s, plan->checkpoint)); /* settles the keys that wait for the model */
    TrainConfig before;
    TRY(config_parse(&before, plan->checkpoint, info.config, strlen(info.config), s->arena));
    const ResumePoint at = {info.state.step, info.state.n_rows};
    if (!args->override) TRY(config_check_resume(&before, &s->config, at, s->place, s->arena));
    if (strcmp(info.kernel_path, s->config.train.isa) != 0)
        log_warning(&s->log, "%s was made on kernel path %s, and goes on with %s: bits will differ",
                    plan->checkpoint, info.kernel_path, s->config.train.isa);
    plan->state = info.state;
    return OK;
}

/*
 * Process 0 looks, and says what it found: another process might see a folder of another moment, above all on a network's
 * disk, and checksums of a large checkpoint need be made but once.
 */
static Status agree_on_checkpoint(Setup *s, const TrainArgs *args, TrainPlan *plan, int *lock)
{
    const World *world = s->world;
    TRY(world_all_ok(world, world->rank == 0 ? find_checkpoint(s, args, plan, lock) : OK));
    int64_t bytes = plan->checkpoint ? (int64_t)strlen(plan->checkpoint) + 1 : 0;
    TRY(world_share(world, &bytes, sizeof bytes));
    if (!bytes) return setup_open_model(s, s->config.model.path);
    char *path = arena_take(s->arena, (size_t)bytes);
    if (world->rank == 0) memcpy(path, plan->checkpoint, (size_t)bytes);
    TRY(world_share(world, path, (size_t)bytes));
    TRY(world_share(world, &plan->state, sizeof plan->state));
    plan->checkpoint = plan->weights = path;
    if (!s->model) TRY(setup_read_model(s, path));
    return setup_same_model(s);
}

/* What a run that was killed left in them. */
static Status tidy_folders(Setup *s, bool resume)
{
    static const char *const folders[] = {"checkpoints", "hf"};
    for (int i = 0; i < 2; i++) {
        const char *path = path_join(s->arena, s->config.train.output, folders[i]);
        if (file_exists(path))
            return FAIL(ERR_USAGE, "train.output: %s is a file (expected a folder or nothing)",
                        path);
        if (!resume) continue;
        TRY(folder_recover(path, &s->log, s->arena));
        TRY(folder_clear(path, &s->log, s->arena));
    }
    return OK;
}

/* Weights of a later step are not what fewer steps would give, whatever else may be overridden. */
static Status check_length(const TrainPlan *plan, const char *place)
{
    if (!plan->checkpoint || plan->state.step <= plan->n_steps) return OK;
    bool steps = plan->config->train.steps >= 0;
    return FAIL(
        ERR_USAGE,
        "%s: %s: the run ends before its checkpoint %s (found %lld steps, expected at least %lld)",
        place, steps ? "train.steps" : "train.epochs", plan->checkpoint, (long long)plan->n_steps,
        (long long)plan->state.step);
}

/* Nothing is on disk before everything that can be refused here was looked at. */
static Status open_run(Setup *s, bool resume, const TrainPlan *plan, int *lock)
{
    TextBuffer text;
    text_buffer_init(&text, s->arena);
    config_dump(&text, &s->config);
    const char *output = s->config.train.output;
    TRY(claim_folder(s, lock));
    if (!resume) TRY(refuse_other_run(s)); /* one that began while this one read its data */
    TRY(tidy_folders(s, resume));
    TRY(log_attach(&s->log, path_join(s->arena, output, "log.txt")));
    if (plan->checkpoint) TRY(checkpoint_set_latest(plan->checkpoint, s->arena));
    return file_write_atomic(path_join(s->arena, output, "config.yaml"), text.text, text.length);
}

/* Told again where stages are made; here, before the data has taken its time. */
static Status check_model(Setup *s)
{
    const ParallelSection *p = &s->config.parallel;
    Schedule *schedule;
    TRY(setup_schedule(&schedule, s, s->config.train.global_batch_size / p->dp_size,
                       "train.global_batch_size / parallel.dp_size"));
    int n_stages = schedule->n_stages;
    LayerRange *range = ARENA_NEW(s->arena, LayerRange, n_stages);
    PartitionRequest request = {
        .n_stages = n_stages, .split = p->layer_split.at, .cost = {.config = s->model}};
    TRY(partition_layers(range, &request, s->arena));
    ParamSet whole;
    paramset_init(&whole, s->arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(&whole, s->model);
    return optimizer_check_groups(&whole, s->model, &s->config.optimizer, s->arena);
}

static Status open_data(Setup *s, Dataset **train, Dataset **eval)
{
    TRY(check_model(s));
    if (s->config.train.steps == 0) return OK;
    TRY(setup_dataset(train, s, "data.train", &s->config.data.train, true));
    return s->config.data.eval.n ? setup_dataset(eval, s, "data.eval", &s->config.data.eval, false)
                                 : OK;
}

/* Steps without one change nothing; a run of such steps alone is a mistake in the data. */
static Status expect_trained_token(const Dataset *data)
{
    int64_t n = dataset_n_rows(data);
    for (int64_t i = 0; i < n; i++) {
        Row row;
        BatchTotals totals;
        dataset_rows(data, i, 1, &row);
        batch_totals(&totals, &row, 1, REDUCTION_TOKEN);
        if (totals.n_trained) return OK;
    }
    return FAIL(ERR_FORMAT,
                "data.train: no token to train in %lld rows (expected an assistant's text, or a "
                "label that is not -100, behind another token)",
                (long long)n);
}

/* All processes have read the same rows, and a run that goes on has those it began with. */
static Status check_rows(Setup *s, const TrainArgs *args, TrainPlan *plan)
{
    TrainState *state = &plan->state;
    int64_t n_rows = dataset_n_rows(plan->train);
    TRY(expect_trained_token(plan->train));
    uint64_t hash = setup_hash_data(plan->train);
    TRY(world_same(s->world, "data.train", hash));
    if (state->rows_hash && state->rows_hash != hash && !args->override)
        return FAIL(ERR_USAGE,
                    "data.train: the data changed since %s, which alters the maths (found %lld "
                    "rows, expected %lld%s; --override goes on all the same)",
                    plan->checkpoint, (long long)n_rows, (long long)state->n_rows,
                    n_rows == state->n_rows ? " of other content" : "");
    state->n_rows = n_rows;
    state->rows_hash = hash;
    return OK;
}

static Status run(const void *args_, const World *world, Arena *arena)
{
    const TrainArgs *args = args_;
    Setup s;
    double begin = clock_seconds();
    Dataset *train = NULL, *eval = NULL;
    int lock = -1;
    if (args->override && !args->resume)
        return FAIL(ERR_USAGE, "--override: found without --resume, expected both: it allows what "
                               "a checkpoint would forbid");
    signal(SIGPIPE, SIG_IGN); /* who reads our log may go away: log.txt has it too */
    TRY(setup_configure(&s, args->config, &args->sets, NULL, world, arena));
    TRY(world_same(world, "--resume and --override",
                   (uint64_t)(2 * args->resume + args->override)));
    TRY(config_require_run(&s.config, s.place));
    double seconds;
    TRY(stop_before_seconds(&seconds, s.config.train.stop_before, s.place, time(NULL)));
    TrainPlan plan = {.config = &s.config,
                      .stop = &stop_asked,
                      .stop_before = isinf(seconds) ? 0 : begin + seconds,
                      .weights = s.config.model.init ? NULL : s.config.model.path};
    Status status = agree_on_checkpoint(&s, args, &plan, &lock);
    if (status == OK) status = open_data(&s, &train, &eval);
    plan.model = s.model;
    plan.train = train;
    plan.eval = eval;
    plan.n_steps = train ? train_n_steps(&s.config, dataset_n_rows(train)) : 0;
    if (status == OK) status = check_length(&plan, s.place);
    /* All data is read before the folder is made, and the folder made before anybody writes to it. */
    if (status == OK && train) status = check_rows(&s, args, &plan);
    if (status == OK && eval) status = setup_same_data(&s, "data.eval", eval);
    if (status == OK)
        status =
            world_all_ok(world, world->rank == 0 ? open_run(&s, args->resume, &plan, &lock) : OK);
    if (status == OK) {
        catch_signals(world->launched);
        status = launch_train(world, &plan);
    }
    dataset_free(&train);
    dataset_free(&eval);
    setup_free(&s);
    file_unlock(&lock);
    return status;
}

static const ArgPosition positions[] = {
    {"CONFIG.yaml", offsetof(TrainArgs, config), false, "the run's configuration"}, {0}};
// clang-format off
static const OptionSpec options[] = {
    {"set",      OPT_TEXTS, OPTION_AT(TrainArgs, sets),     "[]",    OPTION_ANY, .help = "a configuration key, over the file's", .value = "KEY=VALUE"},
    {"resume",   OPT_BOOL,  OPTION_AT(TrainArgs, resume),   "false", OPTION_ANY, .help = "go on from the newest checkpoint in train.output; with none, start at step 1"},
    {"override", OPT_BOOL,  OPTION_AT(TrainArgs, override), "false", OPTION_ANY, .help = "with --resume: allow keys that alter the maths to differ from the checkpoint's"},
    {0}};
// clang-format on

const Command command_train = {
    .name = "train",
    .summary = "train a model",
    .usage = "CONFIG.yaml [--set KEY=VALUE]… [--resume] [--override]",
    .about = "Trains all parameters of the model in model.path on data.train and writes metrics, "
             "log, checkpoints and a "
             "HuggingFace folder (hf/final) to train.output. The ranks, pp_size * dp_size, run as "
             "threads "
             "of this process, each "
             "with train.threads OpenMP threads. The result does not depend on how the model is "
             "cut. The first SIGINT or "
             "SIGTERM saves a checkpoint and leaves with exit status 3; a second one ends at once.",
    .example = "stagewright train run.yaml --set parallel.pp_size=2 --set train.output=runs/first",
    .positions = positions,
    .options = options,
    .args_size = sizeof(TrainArgs),
    .config_help = true,
    .all_ranks = true,
    .run = run,
};
