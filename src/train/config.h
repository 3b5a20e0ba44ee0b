#pragma once
/**
 * What a user can say about a run: nine sections, the keys of the YAML file and of --set. The rows in
 * config_keys.c (one per key) hold defaults, limits and help; io/options.h reads them.
 *
 * No value: -1 in whole numbers, NAN in real ones, NULL in texts, at == NULL in lists; the fields that
 * can have none say so. config_load fills in what follows from other keys.
 */
#include "core/tensor.h"
#include "data/batch.h"
#include "data/dataset.h"
#include "io/options.h"

typedef enum ExtraTensors { EXTRA_REFUSE, EXTRA_CARRY } ExtraTensors;
typedef enum LossMode { LOSS_CHUNK, LOSS_FULL } LossMode;
typedef enum BalancingForm { BALANCING_PER_LAYER, BALANCING_HF } BalancingForm;
typedef enum BalancingScope { BALANCING_ROW, BALANCING_GLOBAL } BalancingScope;
typedef enum OptimizerType { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_MUON } OptimizerType;
typedef enum LrScheduleType { LR_COSINE, LR_LINEAR, LR_CONSTANT } LrScheduleType;

typedef struct ModelSection {
    const char *path;
    bool init;
    DType dtype;
    const char *chat_template; /* "auto" until the model is known */
    ExtraTensors extra_tensors;
} ModelSection;

typedef struct ParallelSection {
    int pp_size;
    const char *schedule; /* a name, or the path of a CSV file */
    int num_virtual_stages;
    IntList layer_split;      /* none: balanced by cost */
    int64_t activation_limit; /* bytes; none */
    int dp_size;              /* -1 until the world is known (config_fit_world) */
    int ep_size, sp_size, tp_size;
    int zero_stage;
} ParallelSection;

typedef struct ConfigSource {
    const char *path; /* file, folder or glob */
    double ratio;     /* how often each sample is taken an epoch */
} ConfigSource;

typedef struct ConfigSources {
    ConfigSource *at;
    int n;
} ConfigSources;

typedef struct DataSection {
    ConfigSources train, eval;
    DataFormat format;
    PackKind pack;
    int64_t max_length;
    bool append_eos, skip_bad_lines;
    int64_t seed;          /* resolved: train.seed */
    const char *cache_dir; /* none */
} DataSection;

typedef struct TrainSection {
    const char *output; /* none: an error for the commands that write a run */
    int64_t steps;      /* none: epochs decide */
    double epochs;      /* none: steps decide */
    int64_t global_batch_size;
    int64_t seed;
    double recompute_ratio;
    double max_grad_norm;            /* 0: off */
    double skip_grad_norm_threshold; /* none: NAN, no norm is above it */
    int64_t eval_interval;           /* steps; none: -1 */
    IntList profile_steps;
    double hang_timeout;     /* seconds */
    const char *stop_before; /* wall-clock time or duration, as written; none */
    int threads;             /* none: cores / ranks */
    const char *isa;         /* "auto" until config_fit_machine */
} TrainSection;

typedef struct LossSection {
    LossReduction reduction;
    LossMode mode;
    int64_t chunk_size;
    double balancing_alpha; /* NAN (auto) until config.json is known */
    BalancingForm balancing_form;
    BalancingScope balancing_scope;
    double z_alpha;
} LossSection;

/** Overrides for the parameters whose HuggingFace name matches; the first group that matches counts. */
typedef struct OptimizerGroup {
    const char *match; /* text_matches pattern */
    double lr_scale;
    double weight_decay; /* none: NAN, the optimizer's */
    bool trainable;
} OptimizerGroup;

typedef struct OptimizerGroups {
    OptimizerGroup *at;
    int n;
} OptimizerGroups;

typedef struct OptimizerSection {
    OptimizerType type;
    double lr;
    double betas[2];
    double eps;
    double weight_decay;
    bool decay_1d;
    OptimizerGroups groups;
} OptimizerSection;

typedef struct LrScheduleSection {
    LrScheduleType type;
    double warmup; /* below 1: a ratio of the steps, else steps */
    double lr_min; /* resolved: at most optimizer.lr */
} LrScheduleSection;

typedef struct CheckpointSection {
    int64_t interval; /* steps; none: the last step alone */
    int64_t keep;
    bool async;
    bool required;       /* a save that fails ends the run */
    int64_t hf_interval; /* none */
    int64_t hf_keep;     /* none: all */
    DType hf_dtype;      /* DTYPE_COUNT (auto): each source tensor's */
} CheckpointSection;

typedef struct LogSection {
    int64_t interval;
    TextList trackers;
} LogSection;

typedef struct TrainConfig {
    ModelSection model;
    ParallelSection parallel;
    DataSection data;
    TrainSection train;
    LossSection loss;
    OptimizerSection optimizer;
    LrScheduleSection lr_schedule;
    CheckpointSection checkpoint;
    LogSection log;
} TrainConfig;

/** The tables, for help and tests. */
const OptionSection *config_sections(void);

/** Defaults, with the available value where a default is not built yet. Not resolved. */
Status config_defaults(TrainConfig *out, Arena *arena) MUST_USE;

/** Where keys that do not fit together come from: the file, with --set if something was set so, or --set alone. */
const char *config_place(const char *path, int n_sets, Arena *arena);
/**
 * Defaults, then the file (NULL: none), then each "section.key=value"; then what follows from other keys: train.epochs 1 when
 * neither steps nor epochs are given, data.seed, lr_schedule.lr_min at most optimizer.lr, num_virtual_stages by schedule.
 * Doing that twice changes nothing. Checked are combinations of keys that cannot be, whatever the model and the world.
 * Errors: ERR_IO, ERR_FORMAT (no YAML), ERR_USAGE "PLACE: KEY: …", ERR_UNSUPPORTED (not available yet).
 */
Status config_load(TrainConfig *out, const char *path, const char *const *sets, int n_sets,
                   Arena *arena) MUST_USE;
/** The same from memory, e.g. the configuration a checkpoint holds; place names it in messages. */
Status config_parse(TrainConfig *out, const char *place, const char *text, size_t bytes,
                    Arena *arena) MUST_USE;

/** Steps of a run: train.steps, or ceil(epochs · rows / global_batch_size). */
int64_t train_n_steps(const TrainConfig *config, int64_t n_rows);

/**
 * What a training run cannot do without: train.output, data.train, a batch that divides by dp_size (after config_fit_world).
 * ERR_USAGE naming the key.
 */
Status config_require_run(const TrainConfig *config, const char *place) MUST_USE;
/**
 * Fill in dp_size and check the axes against the ranks there are.
 *
 *   n_ranks = pp_size·dp_size·sp_size·tp_size;  ep_size divides dp_size·sp_size
 *
 * launched: n_world ranks were started and all must be used; else n_world is ignored and dp_size null
 * is 1. Errors: ERR_USAGE naming the axes and the numbers.
 */
Status config_fit_world(TrainConfig *config, bool launched, int n_world, const char *place,
                        int *n_ranks) MUST_USE;

/**
 * train.isa auto becomes the best path of this machine. Errors: ERR_USAGE if it cannot do the one that is asked for, or
 * OMP_THREAD_LIMIT allows fewer threads than train.threads.
 */
Status config_fit_machine(TrainConfig *config, const char *place) MUST_USE;

/** config.yaml: all keys with their values; config_parse reads it back to the same configuration. */
void config_dump(TextBuffer *out, const TrainConfig *config);
/** All keys with default and meaning, for people. */
void config_help(TextBuffer *out);

/** A key whose value differs between two configurations. */
typedef struct ConfigChange {
    const char *key;            /* "optimizer.lr" */
    const char *before, *after; /* as YAML */
    bool maths;                 /* it alters what is computed, beyond rounding */
} ConfigChange;

/** All keys that differ, in table order; in the arena. */
void config_diff(const TrainConfig *before, const TrainConfig *after, Arena *arena,
                 ConfigChange **out, int *n);
/** Whether something of this interval comes after a step; not without one. */
static inline bool step_is_due(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

/** Steps of warm-up in a run of n_steps. */
int64_t lr_warmup_steps(const LrScheduleSection *schedule, int64_t n_steps);

/** Where a run goes on, and the data's rows: of a checkpoint. */
typedef struct ResumePoint {
    int64_t step, n_rows;
} ResumePoint;

/**
 * Whether a run may go on with `after`: no change of the maths, but for train.steps and train.epochs, which may be raised when
 * lr_schedule.type is constant and no step to come has another rate by it: a warm-up that is a ratio of the steps has ended, in
 * the longer run too. lr_schedule.warmup may change to the steps it stands for. Both with their `auto`s filled in. ERR_USAGE
 * names the first key that forbids it.
 */
Status config_check_resume(const TrainConfig *before, const TrainConfig *after, ResumePoint at,
                           const char *place, Arena *arena) MUST_USE;
