#pragma once
/**
 * The models and rows that tests run the program on, written as files.
 *
 * Everything here uses stdio alone, nothing of src/: what the program reads and writes is compared
 * with files of an independent origin. A tensor's values depend on seed, HuggingFace name and element
 * index only, so a model has the same values with more layers, in other shards, in either layout of
 * the experts. What cannot be written ends the test program.
 */
#include <stdbool.h>
#include <stdint.h>

enum { FIXTURE_VOCAB = 512, FIXTURE_HIDDEN = 64, FIXTURE_EXPERTS = 4, FIXTURE_MAX_LAYERS = 24 };

/** What a seed of 0 stands for. With it the K-th and (K+1)-th router logits differ by at least 1.2e-5
 * for every token of the rows below (FIXTURE_EQ four times over) in f32 models of up to 10 layers of
 * every kind and of mlp_only_layers [0, 1], [1, 2] or [2, 3], and by 0.2 in FIXTURE_MARGIN: no
 * rounding flips a decision. Other seeds promise nothing. */
enum { FIXTURE_SEED = 203 };

typedef enum FixtureKind {
    /** Qwen3MoeForCausalLM, 4 layers, hidden 64, 4 heads, 2 kv heads, head_dim 16, 4 experts, top-2,
     * moe_intermediate_size 32, intermediate_size 128, norm_topk_prob, vocab 512, rope_theta 10000,
     * rms_norm_eps 1e-6, untied, router_aux_loss_coef 0.001. Matrices normal(0, 0.02), norm weights
     * uniform(0.9, 1.1). Two shards with an index. */
    FIXTURE_MOE,
    FIXTURE_TIED,        /* FIXTURE_MOE with tie_word_embeddings, no lm_head */
    FIXTURE_DENSE_FIRST, /* FIXTURE_MOE with mlp_only_layers [0, 1] */
    /** FIXTURE_MOE whose hidden state stays the embedding: column 0 of the embedding 8, all o_proj and
     * down_proj 0, norm weights 1, gates 0 but for column 0 = (0.2, 0.1, 0, 0). Every token goes to
     * experts 0 and 1, with probabilities (.5396, .2425, .1090, .1090); the main loss gives the gate
     * no gradient. */
    FIXTURE_ROUTER,
    /** FIXTURE_MOE whose routing is decided by a wide margin, in bf16 too: embedding columns 0..3 are
     * a permutation of 0.1 (1.5, 0.75, -0.75, -1.5) that differs from token to token, gates have
     * 0.3 added on those columns' diagonal, rows 0..3 of o_proj and down_proj are 0, post-attention
     * norm weights 0..3 are 1. */
    FIXTURE_MARGIN,
    FIXTURE_DENSE, /* FIXTURE_MOE without experts, Qwen3ForCausalLM */
    FIXTURE_DEEP,  /* FIXTURE_MOE with 24 layers, hidden 32, vocab 128 */
} FixtureKind;

typedef enum FixtureDtype { FIXTURE_F32, FIXTURE_BF16, FIXTURE_F16 } FixtureDtype;

/** Zero is the default of every field: `fixture_write_model(dir, &(Fixture){.kind = …})`. */
typedef struct Fixture {
    FixtureKind kind;
    int n_layers;       /* 0: 4 */
    unsigned mlp_only;  /* bit l: layer l is in mlp_only_layers; besides those of the kind */
    bool tied;          /* as FIXTURE_TIED, for any kind */
    bool fused;         /* experts.gate_up_proj [E, 2I, H] and experts.down_proj [E, H, I] */
    FixtureDtype dtype; /* of all tensors, and torch_dtype in config.json */
    int n_shards;       /* 0: 2; 1: model.safetensors without an index */
    uint64_t seed;
} Fixture;

/** Write config.json and the safetensors files into `dir`, which is made if it is not there. */
void fixture_write_model(const char *dir, const Fixture *fixture);

typedef enum FixtureRows {
    FIXTURE_EQ,  /* 8 rows, each 33 tokens, all trained (32 count) */
    FIXTURE_VAR, /* rows of 5, 37, 128, 9, 64, 2, 90, 17 tokens, all trained (344 count) */
    FIXTURE_SHORT, /* rows of 5, 24, 12, 2, 31, 9, 17, 1 tokens below 128; of the third and fifth 5 and 7 trained */
    FIXTURE_MASK, /* 4 rows of 12, 9, 70, 16 tokens whose trained ones number 2, 2, 60, 4 */
} FixtureRows;

/** Write rows of ids as probe and `format: ids` read them, `times` times with other ids each time. */
void fixture_write_rows(const char *path, FixtureRows rows, int times, uint64_t seed);
