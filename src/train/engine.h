#pragma once
/**
 * train: from a configuration to steps. The room ties model, pipeline, data and comm together; it is the only one that
 * sees all of them. Read engine.h (one rank's share of a model, ready to run microbatches), then trainer.h (the loop).
 *
 * An engine holds this rank's stages with their parameters, the schedules and the pipelines that drive them. It knows no
 * optimizer and no data files.
 */
#include "comm/mesh.h"
#include "model/stage.h"
#include "model/weights.h"
#include "pipeline/executor.h"
#include "train/config.h"
#include "train/grad_sync.h"

typedef struct EngineSetup {
    const TrainConfig
        *config; /* model, parallel, train.recompute_ratio, loss, optimizer.groups, … */
    const ModelConfig *model;
    int n_train;      /* microbatches of a training step on a data-parallel rank; 0: forward only */
    int n_forward[2]; /* microbatches of forward-only passes; 0: none */
    int64_t max_positions; /* tokens of the longest segment */
    int64_t row_tokens;    /* of a typical row, for balancing */
    const char
        *weights; /* folder or checkpoint to load from; NULL: random values from train.seed */
} EngineSetup;

enum { PASS_TRAIN, PASS_FORWARD_0, PASS_FORWARD_1, PASS_COUNT };

typedef struct Engine {
    const TrainConfig *config;
    const ModelConfig *model;
    Arena arena; /* "model": parameters, lists; freed with the engine */
    Arena step;  /* microbatches and sums of a step */
    Mesh *mesh;
    Backend be;
    DType dtype;
    int n_stages;
    const int *rank_of_stage; /* [n_stages] */
    CostModel cost;           /* of a microbatch, as the layers were dealt by */
    LayerRange *range;        /* [n_stages] */
    Schedule *schedule[PASS_COUNT];
    Pipeline *pipeline[PASS_COUNT];
    StageMemory memory; /* activations of this rank's stages */
    Stage **stage;      /* [n_stages] NULL: another rank's */
    StageRef *refs;     /* [n_stages] */
    ParamSet set;       /* this rank's parameters */
    ParamSet whole;     /* the whole model's, without memory */
    RopeTables rope;
    ShardIndex *source;  /* open as long as there are carried tensors in it; else NULL */
    double load_seconds; /* that this rank took to read its weights and moments */
    HfLayout *layout;
    int *first_s;          /* [n_stages + 1] set.at of each stage's parameters */
    GradSync *sync;        /* NULL: no rank holds the same parameters, or nothing is trained */
    Comm *scope;           /* of the balancing loss, as in StageConfig */
    Tensor tied_grad;      /* what the other holder of a tied pair sends; null when not needed */
    char side_files[4096]; /* where saving copies config, tokenizer, … from (hf_copy_side_files) */
} Engine;

/**
 * Collective over world. Errors: all that can be wrong with keys, layers, schedule and weights; the same on all ranks
 * (comm_agree).
 */
Status engine_create(Engine **out, const EngineSetup *setup, Comm *world, Log *log) MUST_USE;
void engine_free(Engine **engine);
/** Where side files are copied from, at first the model's folder. Lets go of a checkpoint that is about to be removed. */
Status engine_set_side_files(Engine *engine, const char *dir) MUST_USE;

/** Let this rank's pipelines tell times by the clock of rank 0 (clocks of machines drift). Collective over world. */
Status engine_align_clocks(Engine *engine) MUST_USE;

/**
 * The schedule of a step of n_mb microbatches that the configuration asks for; n_mb 0: of as many as it likes, for its stages
 * alone. Errors: those of schedule_build.
 */
Status engine_schedule(Schedule **out, const ParallelSection *parallel, int n_mb,
                       Arena *arena) MUST_USE;

/** Threads per rank: the configured number, or the rank's share of its machine's processors. */
int engine_threads(const TrainConfig *config, int n_cpus);

/** Where this rank's arenas stand: bytes at most ever used for parameters, activations and messages. */
size_t engine_high_water(const Engine *engine);
/** How often this rank's arenas asked the system for memory since the start. */
int64_t engine_growths(const Engine *engine);

/**
 * Which of the layout's tensors have that tensor of their parameter (frozen ones have no gradient and no moments): [layout->n]
 * flags, the same on all ranks. Collective over world.
 */
Status engine_present(bool **out, const Engine *engine, ParamTensor what, Arena *arena) MUST_USE;

/**
 * This rank's microbatches of a step's rows, with the losses as configured; in engine->step. In *totals the step's sums, the
 * same on all ranks.
 */
MicroBatch *engine_batch(BatchTotals *totals, Engine *engine, const Row *rows, int64_t n_rows);
/**
 * Zero the gradients and run a training step's microbatches: gradients, and the stages' results, are there afterwards. The
 * gradients of a tied pair are added. With zero_stage 1 gradients are complete in Param.own alone. Collective over pp and
 * data.
 */
void engine_forward_backward(Engine *engine, MicroBatch *mb);
/** After the update: with zero_stage 1, all ranks get the values that each has updated of its own. Collective over data. */
void engine_spread_values(Engine *engine);
/** Run the n_forward[pass - PASS_FORWARD_0] microbatches forward only. Collective over pp. */
void engine_forward(Engine *engine, int pass, MicroBatch *mb, ForwardMode mode);

/** Sums of a step, the same bits on all ranks and in every layout. */
typedef struct EngineSums {
    double ce; /* sum over microbatches */
    double
        balancing_raw; /* mean over rows (scope global: over microbatches) of the sum over layers (form hf: of all together), alpha 1 */
    double z_raw;      /* sum over layers and tokens of logsumexp² */
    int64_t *count_le; /* [L, E] tokens per expert (dense layers 0) */
    double balancing;  /* with alpha in it; NAN: dense model (engine_losses) */
    double z;          /* with alpha in it; NAN: dense model (engine_losses) */
    double loss;       /* ce and both (engine_losses) */
    double
        max_violation; /* mean over MoE layers of (max - mean)/mean of the counts; NAN: dense model */
    double norm;       /* L2 of all gradients; 0 when forward only */
    const char
        *bad_tensor; /* first parameter in model order with a non-finite gradient; NULL: none */
    double work, makespan; /* seconds: of the busiest rank; first start to last end of all ranks */
    int64_t *memory_r;     /* [ranks of the world] high-water bytes */
    int64_t flags;         /* sum of the ranks' flags */
} EngineSums;

/** Collective over world, once per step, after engine_forward_backward or engine_forward. Arrays live in engine->step. */
void engine_sums(EngineSums *out, Engine *engine, int pass, int64_t flags);

/** Fill balancing, z and loss from the raw sums; 0 in a step in which nothing is trained (numerics.md 2 to 4). */
void engine_losses(EngineSums *sums, const Engine *engine, const BatchTotals *totals);
