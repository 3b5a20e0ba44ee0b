#pragma once
/**
 * The letters of shapes, used in names (x_td) and headers:
 *   T tokens of a microbatch    D hidden size        H query heads       G key/value heads
 *   C head dim                  F ffn size           E experts           K experts per token
 *   R routed rows (T*K)         V vocabulary         L layers            M microbatches of a step
 *   I, O features in and out of a linear             N any number of rows
 * and what makes up a decoder-only model of our families.
 */
#include "base/status.h"

typedef enum RopeKind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } RopeKind;

typedef struct RopeConfig {
    RopeKind kind;
    double theta;
    double factor;                            /* linear, llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn; 0: from factor (and mscale) */
    double mscale, mscale_all_dim;            /* yarn; 0: absent */
    bool truncate;                            /* yarn */
    int64_t original_max_positions;           /* llama3, yarn */
} RopeConfig;
