#pragma once
/** The activations of a rank: an arena per slot (core/stage.h, Slots), shared by all its stages. */
#include "base/arena.h"

typedef struct StageMemory {
    Arena scratch;
    Arena passing; /* activations that nobody keeps: forward only, recomputed layers */
    int n_f_to_i, n_f_to_w, n_i_to_w;
    Arena *f_to_i, *f_to_w, *i_to_w; /* per slot */
} StageMemory;

/** With that many slots of each kind, at least one. The lists live in `model`. Errors: ERR_MEMORY. */
Status stage_memory_create(StageMemory *out, int n_f_to_i, int n_f_to_w, int n_i_to_w,
                           Arena *model) MUST_USE;
/** A zeroed one is fine. */
void stage_memory_free(StageMemory *memory);

/** Bytes of the high-water marks now, added up. */
size_t stage_memory_high_water(const StageMemory *memory);
/** How often any of the arenas asked the system for memory. */
int64_t stage_memory_growths(const StageMemory *memory);
