#pragma once
/** How much memory a microbatch takes in a stage, before any is run. */
#include "model/stage.h"

/** Bytes: of the slots that one microbatch has, of the arenas that all share, and of what passes the stage's border. */
typedef struct StageBytes {
    size_t f_to_i, f_to_w, i_to_w, scratch, passing, border;
} StageBytes;

/**
 * Run the stage's own code once, in memory of its own, on a backend whose products compute nothing: what it takes is what a
 * step will take. A row of n_tokens whose samples have at most 256: lengths change the time of attention, and
 * hardly its memory. Experts are taken to get equal shares: where they are spread over ranks, a step that sends one rank
 * more than that takes more there. Touches few of the bytes it counts.
 *
 * Before the first step: gradients of vectors hold anything afterwards (a step zeroes them).
 * Collective: over the ranks that share out the experts. Errors: ERR_MEMORY.
 */
Status stage_measure(StageBytes *out, const Stage *stage, int64_t n_tokens,
                     ForwardMode mode) MUST_USE;
