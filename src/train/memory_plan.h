#pragma once
/** What memory a rank will need, known before step 1: its schedule's slots times what a microbatch takes of each. */
#include "train/engine.h"

/** Bytes of one rank's arenas at most. */
typedef struct MemoryPlan {
    int64_t weights, gradients, moments;
    int64_t activations; /* slots, scratch */
    int64_t messages;    /* send buffers */
    int64_t copy;        /* what saves beside training are written from */
    int64_t total;       /* these, and lists, tables and what loading took */
} MemoryPlan;

/**
 * For rows of at most that many tokens; longest_eval counts where the engine has forward-only passes. After the moments are
 * made, before the first step. Errors: ERR_MEMORY.
 */
Status memory_plan(MemoryPlan *out, const Engine *engine, int64_t longest_train,
                   int64_t longest_eval) MUST_USE;

/**
 * A table of the ranks of pp to the log: layers, share of the time that shapes let expect, parameters, memory (copy_bytes of
 * it, which the engine's arena holds already, for saving).
 * Collective: over pp; rank 0 logs it (NULL: silent). Errors: those of memory_plan, ERR_PEER.
 */
Status memory_plan_log(Engine *engine, int64_t longest_train, int64_t longest_eval,
                       int64_t copy_bytes, Log *log) MUST_USE;
