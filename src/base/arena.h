#pragma once
/**
 * A stack of memory with one lifetime. Take as you go, rewind to a mark, free all at once.
 * Blocks never move. Growth takes whole chunks from the system; an arena that was emptied makes one of
 * several when it is next used, and so a warmed-up one allocates nothing and holds little more than it needs. Not thread safe: one arena, one thread (take before a parallel region).
 */
#include "base/status.h"
#include <stddef.h>

typedef struct ArenaChunk ArenaChunk;
typedef struct Arena {
    const char *name;    /* for reports, lent */
    ArenaChunk *first;   /* chunks in the order they are filled */
    ArenaChunk *current; /* the one being filled; NULL before the first take */
    size_t used;         /* bytes taken now, padding included */
    size_t high_water;   /* the most ever taken */
    size_t reserved;     /* bytes held from the system */
    int growths;         /* times the system was asked */
} Arena;

typedef struct ArenaMark {
    ArenaChunk *chunk;
    size_t chunk_used, used;
} ArenaMark;

void arena_init(Arena *arena, const char *name);
void arena_free(Arena *arena); /* gives everything back; the arena can be used again */

/** Bytes aligned to 64, uninitialised. Dies when the system has none: inside a step nothing else helps, and before the start die() ends with 2. */
void *arena_take(Arena *arena, size_t bytes);
/** The same, zeroed. */
void *arena_take_zeroed(Arena *arena, size_t bytes);
/** For setup: *out = count*size zeroed bytes. ERR_MEMORY on overflow or when the system has none. */
Status arena_alloc(Arena *arena, void *out, size_t count, size_t size) MUST_USE;
#define ARENA_NEW(arena, type, count) \
    ((type *)arena_take_zeroed(arena, size_mul((size_t)(count), sizeof(type))))

ArenaMark arena_mark(const Arena *arena);
void arena_rewind(Arena *arena,
                  ArenaMark mark); /* takes back all since mark; poisoned in ASan builds */
void arena_reset(Arena *arena);    /* rewinds to empty */

/** a*b; dies on overflow. */
size_t size_mul(size_t a, size_t b);
