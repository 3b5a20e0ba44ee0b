#pragma once
/** Strings in arenas, and the nearest known name for error messages. */
#include "base/arena.h"

char *text_format(Arena *arena, const char *format, ...) PRINTF_LIKE(2, 3);
char *text_copy(Arena *arena, const char *text);
char *text_copy_n(Arena *arena, const char *text, size_t bytes);
/** dir/name, with one slash between. */
char *path_join(Arena *arena, const char *dir, const char *name);

/** A shell-like pattern: '*' any run of characters (dots and slashes too), '?' any one. */
bool text_matches(const char *pattern, const char *text);

/**
 * The candidate with the least edit distance to word, NULL if none is near (distance > max(2, length/3)).
 * candidates ends with NULL.
 */
const char *text_nearest(const char *word, const char *const *candidates);

/** Text that grows in an arena; always NUL-terminated. */
typedef struct TextBuffer {
    Arena *arena;
    char *text;
    size_t length, capacity;
} TextBuffer;

void text_buffer_init(TextBuffer *buffer, Arena *arena);
void text_append(TextBuffer *buffer, const char *bytes, size_t n);
void text_append_format(TextBuffer *buffer, const char *format, ...) PRINTF_LIKE(2, 3);
