#include "base/arena.h"
#include "base/fault.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#define RED_ZONE 64 /* a poisoned gap behind each block, so that overruns are seen */
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#define RED_ZONE 0
#endif

/* Chunks are at least half of what the arena has, within these bounds, or what is asked for. */
enum {
    ALIGN = 64,
    CHUNK_MIN = 64 * 1024,
    CHUNK_MAX = 64 * 1024 * 1024,
    HUGE_PAGE = 2 * 1024 * 1024
};

struct ArenaChunk {
    ArenaChunk *next;
    size_t size, used; /* bytes behind the header */
    char *data;
};

void arena_init(Arena *arena, const char *name)
{
    *arena = (Arena){.name = name};
}

size_t size_mul(size_t a, size_t b)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) die("size overflow: %zu * %zu bytes", a, b);
    return product;
}

static ArenaChunk *chunk_new(size_t bytes)
{
    ArenaChunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk) return NULL;
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 4096;
    size_t size = (bytes + align - 1) / align * align;
    chunk->data = size >= bytes ? aligned_alloc(align, size) : NULL;
    if (!chunk->data) {
        free(chunk);
        return NULL;
    }
    chunk->size = size;
    if (align == HUGE_PAGE) madvise(chunk->data, size, MADV_HUGEPAGE);
    POISON(chunk->data, size);
    return chunk;
}

static void free_chunks(Arena *arena)
{
    for (ArenaChunk *chunk = arena->first, *next; chunk; chunk = next) {
        next = chunk->next;
        UNPOISON(chunk->data, chunk->size);
        free(chunk->data);
        free(chunk);
    }
    arena->first = arena->current = NULL;
    arena->reserved = 0;
}

/* The chunk that follows `last`; NULL: the system has none. */
static ArenaChunk *add_chunk(Arena *arena, ArenaChunk *last, size_t need, size_t wish)
{
    ArenaChunk *chunk = chunk_new(need > wish ? need : wish);
    if (!chunk && need < wish) chunk = chunk_new(need);
    if (!chunk) return NULL;
    if (last)
        last->next = chunk;
    else
        arena->first = chunk;
    arena->reserved += chunk->size;
    arena->growths++;
    return chunk;
}

static void *try_take(Arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 4 || fault_here(FAULT_ALLOC)) return NULL;
    size_t need = (bytes + ALIGN - 1) / ALIGN * ALIGN + RED_ZONE;
    /* Empty, and once grown piece by piece: one chunk for all. Else pieces that became too small would stay for ever. */
    if (arena->used == 0 && arena->first && arena->first->next) {
        free_chunks(arena);
        add_chunk(arena, NULL, need, arena->high_water + arena->high_water / 16);
    }
    ArenaChunk *chunk = arena->current ? arena->current : arena->first;
    ArenaChunk *last = chunk;
    /* Later chunks are empty: what does not fit here goes into the first that is large enough. */
    while (chunk && chunk->size - chunk->used < need) {
        last = chunk;
        chunk = chunk->next;
    }
    if (!chunk) {
        size_t wish = arena->reserved / 2;
        wish = wish < CHUNK_MIN ? CHUNK_MIN : wish > CHUNK_MAX ? CHUNK_MAX : wish;
        chunk = add_chunk(arena, last, need, wish);
        if (!chunk) return NULL;
    }
    arena->current = chunk;
    char *block = chunk->data + chunk->used;
    chunk->used += need;
    arena->used += need;
    if (arena->used > arena->high_water) arena->high_water = arena->used;
    UNPOISON(block, bytes);
    return block;
}

void arena_free(Arena *arena)
{
    free_chunks(arena);
    arena_init(arena, arena->name);
}

void *arena_take(Arena *arena, size_t bytes)
{
    void *block = try_take(arena, bytes);
    if (!block)
        die("out of memory: arena %s holds %zu bytes and needs %zu more", arena->name, arena->used,
            bytes);
    return block;
}

void *arena_take_zeroed(Arena *arena, size_t bytes)
{
    return memset(arena_take(arena, bytes), 0, bytes);
}

Status arena_alloc(Arena *arena, void *out, size_t count, size_t size)
{
    size_t bytes;
    void *block = __builtin_mul_overflow(count, size, &bytes) ? NULL : try_take(arena, bytes);
    if (!block)
        return FAIL(ERR_MEMORY,
                    "out of memory: arena %s holds %zu bytes and needs %zu times %zu more",
                    arena->name, arena->used, count, size);
    memset(block, 0, bytes);
    *(void **)out = block;
    return OK;
}

ArenaMark arena_mark(const Arena *arena)
{
    /* Of an empty arena no chunk is remembered: taking may replace them. */
    if (arena->used == 0) return (ArenaMark){NULL, 0, 0};
    return (ArenaMark){arena->current, arena->current->used, arena->used};
}

void arena_rewind(Arena *arena, ArenaMark mark)
{
    ArenaChunk *keep = mark.chunk ? mark.chunk : arena->first;
    if (!keep) return;
    for (ArenaChunk *chunk = keep; chunk; chunk = chunk->next) {
        size_t start = chunk == mark.chunk ? mark.chunk_used : 0;
        POISON(chunk->data + start, chunk->used - start);
        chunk->used = start;
        if (chunk == arena->current) break;
    }
    arena->current = mark.chunk;
    arena->used = mark.used;
}

void arena_reset(Arena *arena)
{
    arena_rewind(arena, (ArenaMark){NULL, 0, 0});
}
