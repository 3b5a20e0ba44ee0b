#pragma once
/**
 * What forward and backward share: a head of a segment as matrices, and the order in which the work is listed.
 */
#include "kernels/cpu/cpu.h"

enum { QUERY_BLOCK = 64, KEY_BLOCK = 256 };

/** Lists work units of segments one after the other: unit u of segment s is number first[s] + u. Takes first from the arena. */
static inline int64_t *attention_units(Arena *scratch, const int32_t *cu_q, int n_segments,
                                       int64_t n_heads, int64_t rows_per_unit)
{
    int64_t *first = ARENA_NEW(scratch, int64_t, n_segments + 1);
    for (int s = 0; s < n_segments; s++)
        first[s + 1] = first[s] + n_heads * cpu_blocks(cu_q[s + 1] - cu_q[s], rows_per_unit);
    return first;
}

/** The segment that unit number u belongs to. */
static inline int attention_segment(const int64_t *first, int n_segments, int64_t u)
{
    int low = 0, high = n_segments;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first[middle] <= u)
            low = middle;
        else
            high = middle;
    }
    return low;
}
