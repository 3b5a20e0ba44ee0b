#pragma once
/**
 * A run of layers as the pipeline drives it (core/stage.h), and the declaration of a model's parameters.
 * Activations live in arenas per slot; which microbatch has which slot comes with every call.
 */
#include "core/stage.h"
#include "model/partition.h"
#include "model/routing_scope.h"
#include "model/stage_memory.h"
#include "nn/block.h"
#include "nn/embedding.h"
#include "nn/lm_loss.h"

/** The modules of a run of layers. */
typedef struct ModelPart {
    LayerRange range;
    Embedding embedding; /* has_embedding */
    Block *block;        /* [range.n] */
    RmsNorm norm;        /* has_head */
    LmLoss head;         /* has_head */
} ModelPart;

/** Declare in model order; the part's memory is the set's arena. rope may be NULL when nothing is run. chunk: LmLoss. */
void model_part_declare(ModelPart *part, ParamSet *set, const ModelConfig *config, LayerRange range,
                        const RopeTables *rope, int64_t chunk);
/** All parameters of the whole model, without memory: for names, shapes and counts. */
void model_declare_whole(ParamSet *set, const ModelConfig *config);
/** After all parts of a rank are declared: let tied copies and embedding know each other. */
void model_link_tied(ParamSet *set);

typedef struct StageConfig {
    int n_microbatches; /* of a step, at most */
    double recompute_ratio;
    Comm *ep;                /* the ranks that share out the experts (Run); NULL: all are here */
    bool balancing_together; /* one balancing loss of all layers (form hf); there are MoE layers */
    Comm *
        scope; /* the ranks whose rows of one index the balancing loss counts together (scope global); NULL: a row by itself */
} StageConfig;

/** What one microbatch leaves in a stage between F and W. */
typedef struct StageSaved {
    BlockSaved *block; /* [n layers] */
    RmsNormSaved norm;
    Tensor x_td;        /* input of the first layer, f_to_i */
    Tensor dh_td;       /* gradient at the final norm's output, f_to_i */
    Tensor dx_td;       /* gradient at the embedding's output, i_to_w */
    Tensor routed_2e;   /* last stage, balancing_together: of the whole row, f_to_i */
    Tensor routed_l2e;  /* with a scope, each layer by itself: [n layers, 2, E], f_to_i */
    RoutingScope scope; /* of either */
} StageSaved;

typedef struct Stage {
    const ModelConfig *config;
    ModelPart part;
    StageConfig setup;
    Run run;              /* mb set per call */
    StageMemory *memory;  /* lent; other stages of the rank use it too */
    StageSaved *saved;    /* per f_to_w slot */
    int64_t n_recomputed; /* global layers below this are recomputed */
    /* Results of a step, by microbatch; read by train after the step. */
    double *ce_m; /* [M] loss of each (last stage) */
    double *balancing_raw_ml,
        *z_raw_ml;           /* [M, n layers]; with a scope on its first rank, 0 elsewhere */
    double *balancing_raw_m; /* [M] instead, when balancing_together (last stage) */
    int64_t *count_mle;      /* [M, n layers, E] tokens per expert */
    Tensor
        *logits_m; /* [M] where FORWARD_LOGITS or training writes logits [T, V]; NULL: not wanted */
} Stage;

extern const StageOps stage_ops;

/** The arena `model` owns the struct and lists; part must be declared; memory is lent. Errors: ERR_MEMORY. */
Status stage_create(Stage **out, const ModelConfig *config, const ModelPart *part,
                    const StageConfig *setup, StageMemory *memory, const Backend *be, DType dtype,
                    Arena *model) MUST_USE;

/** Whole-model forward of one segment behind a cache: hidden of all tokens through norm; logits of the last one [1, V]. */
void stage_decode(Stage *stage, const MicroBatch *mb, KvCache *kv, Tensor logit_1v);
