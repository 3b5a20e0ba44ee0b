#pragma once
/**
 * What a folder's config.json says, in our words, and the model families as tables.
 *
 * A family is two tables and, rarely, a hook: which keys of config.json it reads and into what, and under which
 * HuggingFace names its parameters are stored. One reader serves load, save, shape checks, inspect and counts.
 */
#include "base/log.h"
#include "core/shapes.h"
#include "core/tensor.h"

typedef struct Family Family;

enum { EOS_MAX = 16 };

typedef struct ModelConfig {
    const Family *family;
    const char *dir;    /* where it was read */
    const char *source; /* the folder again, or the config file that was named itself */
    int64_t n_layers, hidden, vocab; /* L, D, V */
    int64_t n_heads, n_kv_heads, head_dim;
    int64_t ffn_dense; /* F of dense layers */
    int64_t n_experts, experts_per_token,
        ffn_expert; /* E, K, F of MoE layers; E = 0: a dense model */
    int64_t
        sparse_step; /* layer l is MoE iff E > 0, not listed dense, and (l + 1) % sparse_step == 0 */
    int64_t *dense_layer; /* mlp_only_layers */
    int64_t n_dense_layers;
    int64_t max_positions; /* max_position_embeddings */
    double norm_eps, init_range, aux_coef;
    bool attention_bias, tied, normalise, output_router_logits;
    RopeConfig rope;
    DType dtype;          /* config.json's dtype / torch_dtype; F32 when absent */
    int32_t eos[EOS_MAX]; /* generation_config.json's, else config.json's */
    int n_eos;
    uint64_t hash; /* of config.json's bytes */
} ModelConfig;

/**
 * Read DIR/config.json (or a config.json file) and DIR/generation_config.json.
 * Errors: ERR_FORMAT / ERR_UNSUPPORTED naming file, key, found and expected. A value of a key that changes the maths and
 * that we do not compute is refused; keys nobody knows are named in one warning.
 */
Status model_config_read(ModelConfig **out, const char *path, Arena *arena, Log *log) MUST_USE;

/** The files' content, for those who have it in memory. */
typedef struct ConfigText {
    const char *dir, *path;          /* for messages; path names config.json */
    const char *config, *generation; /* generation_config.json; NULL: none */
    size_t config_bytes, generation_bytes;
} ConfigText;

Status model_config_parse(ModelConfig **out, const ConfigText *text, Arena *arena,
                          Log *log) MUST_USE;

bool model_config_is_moe(const ModelConfig *config, int64_t layer);
int64_t model_config_n_moe_layers(const ModelConfig *config);

/** Where a tensor of a folder lies in one of our parameters. */
typedef enum WeightPart {
    PART_WHOLE,
    PART_UPPER_ROWS,        /* the first half of the rows: gate */
    PART_LOWER_ROWS,        /* the second half: up */
    PART_EXPERT,            /* expert {e} of [E, O, I] */
    PART_EXPERT_UPPER_ROWS, /* the first half of expert {e}'s rows */
    PART_EXPERT_LOWER_ROWS,
} WeightPart;

/** Names as patterns: {l} layer, {e} expert. */
typedef struct WeightSpec {
    const char *hf;    /* the folder's name */
    const char *param; /* ours (core/param.h) */
    WeightPart part;
    bool
        fused; /* belongs to the layout with all experts of a layer in one tensor, instead of the one per expert */
} WeightSpec;

typedef enum ConfigType { CONFIG_INT, CONFIG_REAL, CONFIG_BOOL } ConfigType;

typedef struct ConfigField {
    const char *key;
    ConfigType type;
    size_t offset;        /* in ModelConfig */
    const char *fallback; /* as text; NULL: the key is required */
    double min, max;      /* of numbers */
} ConfigField;

/** A key that would change the maths, and the one value (as JSON text) that we compute; absent or null is fine too. */
typedef struct ConfigFixed {
    const char *key, *value;
} ConfigFixed;

struct Family {
    const char *model_type;
    const char *architecture;
    const ConfigField *fields; /* ends with a NULL key */
    const WeightSpec *weights; /* ends with a NULL name */
    bool qk_norm;
};
