#pragma once
/**
 * Rotary position embedding: tables of cos and sin, built once at setup and shared by all blocks.
 *
 *   cos_pc[p, c] = a cos(p f_c),  sin_pc[p, c] = a sin(p f_c),  c = 0 … C/2-1
 *
 * with frequencies f_c and attention factor a by RopeKind. All in f64, rounded once into the tables.
 * Source: HF transformers, modeling_rope_utils.py (which computes in f32).
 */
#include "nn/run.h"

typedef struct RopeTables {
    Tensor cos_pc, sin_pc; /* [P, C/2] */
    int64_t n_positions;   /* P */
} RopeTables;

/**
 * frequency_c [C/2] overwritten; returns the attention factor. config: factor > 0; llama3 and yarn
 * have original_max_positions > 0; yarn has beta_fast, beta_slow > 0 and theta > 1.
 */
double rope_frequencies(const RopeConfig *config, int64_t head_dim, double *frequency_c);

/**
 * Tables for positions 0 … n_positions-1, memory from the arena (model). To grow, call again with
 * more positions: the struct stays where the blocks point to, old tables stay in the arena.
 * dtype: dtype_acc. Errors: ERR_MEMORY.
 */
Status rope_tables_build(RopeTables *t, Arena *arena, const RopeConfig *config, int64_t head_dim,
                         int64_t n_positions, DType dtype) MUST_USE;

/** Rotates x_thc [T, n_heads*C] in place by the positions of run->mb; inverse turns gradients back. */
void rope_apply(const RopeTables *t, Run *run, Tensor x_thc, int64_t n_heads, bool inverse);
