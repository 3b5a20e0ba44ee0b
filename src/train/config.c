#include "train/config.h"

#include "kernels/path.h"
#include "pipeline/schedule.h"
#include "train/stop_before.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

Status config_defaults(TrainConfig *out, Arena *arena)
{
    TrainConfig config = {0};
    TRY(options_defaults(&config, config_sections(), arena));
    *out = config;
    return OK;
}

/* ---- what follows from other keys ------------------------------------------------------------------ */

static void resolve(TrainConfig *config)
{
    ParallelSection *parallel = &config->parallel;
    TrainSection *train = &config->train;
    const ScheduleKind *kind;
    if (parallel->num_virtual_stages < 0 &&
        schedule_find(&kind, parallel->schedule) == OK) /* a file says it itself */
        parallel->num_virtual_stages = kind->n_virtual_default;
    if (train->steps < 0 && isnan(train->epochs)) train->epochs = 1;
    if (config->data.seed < 0) config->data.seed = train->seed;
    if (config->lr_schedule.lr_min > config->optimizer.lr)
        config->lr_schedule.lr_min = config->optimizer.lr;
}

/* ---- combinations ---------------------------------------------------------------------------------- */

static Status check_schedule(const ParallelSection *parallel, const char *place)
{
    const char *name = parallel->schedule;
    if (schedule_is_file(name))
        return OK; /* what contradicts it is found when it is read (schedule_build) */
    const ScheduleKind *kind;
    Status st = schedule_find(&kind, name);
    if (st != OK) return FAIL(st, "%s: parallel.schedule: %s", place, status_message());
    if (!kind->generate)
        return FAIL(ERR_UNSUPPORTED, "%s: parallel.schedule: %s is not available yet", place, name);
    int v = parallel->num_virtual_stages;
    if (v < kind->n_virtual_min || v > kind->n_virtual_max)
        return FAIL(ERR_USAGE,
                    "%s: parallel.num_virtual_stages: does not fit parallel.schedule %s (found %d, "
                    "expected %d to %d)",
                    place, name, v, kind->n_virtual_min, kind->n_virtual_max);
    return OK;
}

static Status check_layer_split(const ParallelSection *parallel, const char *place)
{
    const IntList *split = &parallel->layer_split;
    int n_stages = parallel->pp_size * parallel->num_virtual_stages; /* below 0: a file says it */
    if (split->at && n_stages > 0 && split->n != n_stages)
        return FAIL(ERR_USAGE,
                    "%s: parallel.layer_split: needs a count for each stage (found %d counts, "
                    "expected %d = pp_size %d * num_virtual_stages %d)",
                    place, split->n, n_stages, parallel->pp_size, parallel->num_virtual_stages);
    return OK;
}

static Status check(const TrainConfig *config, const char *place)
{
    const TrainSection *train = &config->train;
    if (train->steps >= 0 && !isnan(train->epochs))
        return FAIL(ERR_USAGE,
                    "%s: train.steps and train.epochs are both given (found %lld and %g, expected "
                    "one of them to be null)",
                    place, (long long)train->steps, train->epochs);
    const LrScheduleSection *lr = &config->lr_schedule;
    if (lr->warmup >= 1 && lr->warmup != floor(lr->warmup))
        return FAIL(ERR_USAGE,
                    "%s: lr_schedule.warmup: from 1 on it counts steps (found %g, expected a whole "
                    "number, or a share below 1)",
                    place, lr->warmup);
    TRY(stop_before_check_form(train->stop_before, place));
    const ParallelSection *parallel = &config->parallel;
    TRY(check_schedule(parallel, place));
    return check_layer_split(parallel, place);
}

/* ---- reading --------------------------------------------------------------------------------------- */

static Status read_yaml(TrainConfig *config, YamlDoc *yaml, Arena *arena)
{
    Status st = options_read(config, config_sections(), yaml, arena);
    yaml_doc_free(yaml);
    return st;
}

static Status finish(TrainConfig *out, TrainConfig *config, const char *place)
{
    resolve(config);
    TRY(check(config, place));
    *out = *config;
    return OK;
}

const char *config_place(const char *path, int n_sets, Arena *arena)
{
    if (!path) return "--set";
    return n_sets ? text_format(arena, "%s with --set", path) : path;
}

Status config_load(TrainConfig *out, const char *path, const char *const *sets, int n_sets,
                   Arena *arena)
{
    TrainConfig config;
    TRY(config_defaults(&config, arena));
    if (path) {
        YamlDoc yaml;
        TRY(yaml_doc_read(&yaml, path, arena));
        TRY(read_yaml(&config, &yaml, arena));
    }
    for (int i = 0; i < n_sets; i++) TRY(options_set(&config, config_sections(), sets[i], arena));
    return finish(out, &config, config_place(path, n_sets, arena));
}

Status config_parse(TrainConfig *out, const char *place, const char *text, size_t bytes,
                    Arena *arena)
{
    TrainConfig config;
    YamlDoc yaml;
    TRY(config_defaults(&config, arena));
    TRY(yaml_doc_parse(&yaml, place, text, bytes, arena));
    TRY(read_yaml(&config, &yaml, arena));
    return finish(out, &config, place);
}

/* ---- for a run ------------------------------------------------------------------------------------- */

Status config_require_run(const TrainConfig *config, const char *place)
{
    if (!config->train.output)
        return FAIL(ERR_USAGE, "%s: train.output: missing (expected the folder of the run)", place);
    if (!config->data.train.n)
        return FAIL(ERR_USAGE, "%s: data.train: no data (found [], expected files)", place);
    int64_t rows = config->train.global_batch_size;
    int dp = config->parallel.dp_size;
    if (dp > 0 && rows % dp)
        return FAIL(ERR_USAGE,
                    "%s: train.global_batch_size must be a multiple of parallel.dp_size (found "
                    "%lld and %d)",
                    place, (long long)rows, dp);
    return OK;
}

int64_t train_n_steps(const TrainConfig *config, int64_t n_rows)
{
    if (config->train.steps >= 0) return config->train.steps;
    return sampler_steps(config->train.epochs, n_rows, config->train.global_batch_size);
}

Status config_fit_world(TrainConfig *config, bool launched, int n_world, const char *place,
                        int *n_ranks)
{
    ParallelSection *p = &config->parallel;
    int64_t others = (int64_t)p->pp_size * p->sp_size * p->tp_size;
    int64_t dp = p->dp_size;
    if (dp < 0) {
        if (launched && (n_world < others || n_world % others))
            return FAIL(ERR_USAGE,
                        "%s: parallel.dp_size null: the %d ranks started do not divide by pp_size "
                        "%d * sp_size %d * tp_size %d = %lld",
                        place, n_world, p->pp_size, p->sp_size, p->tp_size, (long long)others);
        dp = launched ? n_world / others : 1;
    }
    int64_t product = others * dp;
    if (launched && product != n_world)
        return FAIL(ERR_USAGE,
                    "%s: parallel: pp_size %d * dp_size %lld * sp_size %d * tp_size %d = %lld "
                    "ranks, but %d were started",
                    place, p->pp_size, (long long)dp, p->sp_size, p->tp_size, (long long)product,
                    n_world);
    if (product > 65536)
        return FAIL(ERR_USAGE, "%s: parallel: %lld ranks (at most 65536)", place,
                    (long long)product);
    if (dp * p->sp_size % p->ep_size)
        return FAIL(ERR_USAGE,
                    "%s: parallel.ep_size must divide dp_size * sp_size (found %d, and %lld * %d)",
                    place, p->ep_size, (long long)dp, p->sp_size);
    p->dp_size = (int)dp;
    *n_ranks = (int)product;
    return OK;
}

Status config_fit_machine(TrainConfig *config, const char *place)
{
    KernelPath path;
    TRY(kernel_path_find(&path, config->train.isa, place));
    config->train.isa = kernel_path_name(path);
    const int most = omp_get_thread_limit();
    if (config->train.threads > most)
        return FAIL(ERR_USAGE,
                    "%s: train.threads: found %d, expected at most %d (OMP_THREAD_LIMIT)", place,
                    config->train.threads, most);
    return OK;
}

/* ---- text ------------------------------------------------------------------------------------------ */

void config_dump(TextBuffer *out, const TrainConfig *config)
{
    options_dump(out, config_sections(), config);
}

void config_help(TextBuffer *out)
{
    options_help(out, config_sections());
}

/* ---- resume ---------------------------------------------------------------------------------------- */

typedef struct Changes {
    Arena *arena;
    ConfigChange *at;
    int n, capacity;
} Changes;

static void add_change(void *context, const char *key, const char *before, const char *after,
                       const OptionSpec *spec)
{
    Changes *changes = context;
    if (changes->n == changes->capacity) {
        changes->capacity = 2 * changes->capacity + 16;
        ConfigChange *grown = ARENA_NEW(changes->arena, ConfigChange, changes->capacity);
        if (changes->n) memcpy(grown, changes->at, (size_t)changes->n * sizeof *grown);
        changes->at = grown;
    }
    changes->at[changes->n++] = (ConfigChange){key, before, after, spec->maths};
}

void config_diff(const TrainConfig *before, const TrainConfig *after, Arena *arena,
                 ConfigChange **out, int *n)
{
    Changes changes = {.arena = arena};
    options_compare(config_sections(), before, after, arena, add_change, &changes);
    *out = changes.at;
    *n = changes.n;
}

int64_t lr_warmup_steps(const LrScheduleSection *schedule, int64_t n_steps)
{
    double w = schedule->warmup < 1 ? schedule->warmup * (double)n_steps : schedule->warmup;
    return (int64_t)fmin(w, 0x1p53);
}

static bool is_length(const char *key)
{
    return !strcmp(key, "train.steps") || !strcmp(key, "train.epochs");
}

/* With a constant rate a longer run is the shorter one, continued, as long as check_warmup finds nothing. */
static bool only_longer(const char *key, const TrainConfig *before, const TrainConfig *after)
{
    if (after->lr_schedule.type != LR_CONSTANT) return false;
    if (!strcmp(key, "train.steps"))
        return before->train.steps >= 0 && after->train.steps > before->train.steps;
    return !strcmp(key, "train.epochs") && after->train.epochs > before->train.epochs;
}

/* The same number of steps may be written otherwise; check_warmup tells what to write. */
static bool same_warmup(const char *key, const TrainConfig *before, const TrainConfig *after,
                        int64_t n_rows)
{
    return !strcmp(key, "lr_schedule.warmup") &&
           lr_warmup_steps(&before->lr_schedule, train_n_steps(before, n_rows)) ==
               lr_warmup_steps(&after->lr_schedule, train_n_steps(after, n_rows));
}

/* A longer run has a longer warm-up when that is a ratio of the steps: then the rate must be past both. */
static Status check_warmup(const TrainConfig *before, const TrainConfig *after, ResumePoint at,
                           const char *place)
{
    int64_t n[2] = {train_n_steps(before, at.n_rows), train_n_steps(after, at.n_rows)};
    int64_t was = lr_warmup_steps(&before->lr_schedule, n[0]),
            is = lr_warmup_steps(&after->lr_schedule, n[1]);
    if (was == is || (at.step >= was && at.step >= is)) return OK;
    return FAIL(ERR_USAGE,
                "%s: lr_schedule.warmup: %g of %lld steps is a warm-up of %lld steps, %g of %lld "
                "was one of %lld, and the checkpoint is at step %lld (write the steps: "
                "lr_schedule.warmup %lld; --override goes on all the same)",
                place, after->lr_schedule.warmup, (long long)n[1], (long long)is,
                before->lr_schedule.warmup, (long long)n[0], (long long)was, (long long)at.step,
                (long long)was);
}

/* data.seed follows train.seed unless it is given: then the key to name is the one that was changed. */
static bool only_follows(const char *key, const TrainConfig *before, const TrainConfig *after)
{
    return !strcmp(key, "data.seed") && before->data.seed == before->train.seed &&
           after->data.seed == after->train.seed;
}

/* The one number of ranks that results depend on beyond rounding. */
static bool alters_maths(const ConfigChange *change, const TrainConfig *after)
{
    return change->maths || (after->loss.balancing_scope == BALANCING_GLOBAL &&
                             !strcmp(change->key, "parallel.dp_size"));
}

Status config_check_resume(const TrainConfig *before, const TrainConfig *after, ResumePoint at,
                           const char *place, Arena *arena)
{
    ConfigChange *change;
    int n;
    config_diff(before, after, arena, &change, &n);
    for (int i = 0; i < n; i++) {
        if (!alters_maths(&change[i], after) || only_longer(change[i].key, before, after) ||
            only_follows(change[i].key, before, after) ||
            same_warmup(change[i].key, before, after, at.n_rows))
            continue;
        return FAIL(ERR_USAGE,
                    "%s: %s changed since the checkpoint, which alters the maths (found %s, "
                    "expected %s%s; --override goes on all the same)",
                    place, change[i].key, change[i].after, change[i].before,
                    is_length(change[i].key) ? " or, with lr_schedule.type constant, more" : "");
    }
    return check_warmup(before, after, at, place);
}
