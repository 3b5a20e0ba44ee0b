#pragma once
/** Continue token sequences with a KV cache, on one rank. */
#include "train/engine.h"

typedef struct GenerateConfig {
    int64_t max_new_tokens;
    double temperature; /* 0: the most likely token, ties to the lower id */
    uint64_t seed;      /* of the draws: token i of sequence n is drawn from (seed, n, i) */
    int32_t
        vocab_used; /* ids the tokenizer knows; higher ones (padding of the embedding) are never chosen */
} GenerateConfig;

/** A loaded model with room for a cache of `capacity` tokens. The engine was created with n_forward[0] = 1 on one rank. */
typedef struct Generator {
    Engine *engine;
    KvCache kv;
    Tensor logit_1v;
    Arena arena;
} Generator;

/** capacity: prompt and new tokens of the longest sequence; engine's max_positions must be at least that. */
Status generator_create(Generator *out, Engine *engine, int64_t capacity) MUST_USE;
void generator_free(Generator *generator); /* not the engine */

/**
 * Continue one prompt; stops at any eos of the model (which is not in the output), at max_new_tokens, or when the cache is full.
 * Shapes: id [n_prompt >= 1]; out has room for max_new_tokens. Returns the number of new tokens, or -1 where the logits are
 * not finite; *ended: an eos came.
 */
int64_t generate(Generator *generator, const GenerateConfig *config, int64_t sequence,
                 const int32_t *id, int64_t n_prompt, int32_t *out, bool *ended);
