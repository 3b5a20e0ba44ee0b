#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

char *text_format(Arena *arena, const char *format, ...)
{
    char small[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    char *text;
    if (n < 0) {
        text = text_copy(arena, "");
    } else if ((size_t)n < sizeof small) {
        text = text_copy_n(arena, small, (size_t)n);
    } else {
        text = arena_take(arena, (size_t)n + 1);
        vsnprintf(text, (size_t)n + 1, format, again);
    }
    va_end(again);
    return text;
}

char *text_copy(Arena *arena, const char *text)
{
    return text_copy_n(arena, text, strlen(text));
}

char *text_copy_n(Arena *arena, const char *text, size_t bytes)
{
    char *copy = arena_take(arena, bytes + 1);
    if (bytes) memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return copy;
}

char *path_join(Arena *arena, const char *dir, const char *name)
{
    size_t n = strlen(dir);
    return text_format(arena, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name);
}

bool text_matches(const char *pattern, const char *text)
{
    const char *star = NULL, *retry = NULL;
    while (*text) {
        if (*pattern == '*') {
            star = pattern++;
            retry = text;
        } else if (*pattern == '?' || *pattern == *text) {
            pattern++;
            text++;
        } else if (star) {
            pattern = star + 1;
            text = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t n = strlen(a), m = strlen(b), row[MAX + 1];
    if (n > MAX || m > MAX) return SIZE_MAX;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *text_nearest(const char *word, const char *const *candidates)
{
    size_t limit = strlen(word) / 3 > 2 ? strlen(word) / 3 : 2;
    const char *best = NULL;
    for (; *candidates; candidates++) {
        size_t distance = edit_distance(word, *candidates);
        if (distance <= limit && distance < strlen(*candidates)) {
            limit = distance ? distance - 1 : 0;
            best = *candidates;
            if (distance == 0) break;
        }
    }
    return best;
}

void text_buffer_init(TextBuffer *buffer, Arena *arena)
{
    *buffer = (TextBuffer){.arena = arena, .text = text_copy(arena, ""), .capacity = 0};
}

void text_append(TextBuffer *buffer, const char *bytes, size_t n)
{
    if (buffer->length + n > buffer->capacity) {
        size_t capacity = 2 * (buffer->length + n) + 64;
        char *text = arena_take(buffer->arena, capacity + 1);
        memcpy(text, buffer->text, buffer->length);
        buffer->text = text;
        buffer->capacity = capacity;
    }
    if (n) memcpy(buffer->text + buffer->length, bytes, n);
    buffer->length += n;
    buffer->text[buffer->length] = '\0';
}

void text_append_format(TextBuffer *buffer, const char *format, ...)
{
    char small[256];
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof small) {
        text_append(buffer, small, (size_t)n);
    } else if (n > 0) {
        char *large = arena_take(buffer->arena, (size_t)n + 1);
        vsnprintf(large, (size_t)n + 1, format, again);
        text_append(buffer, large, (size_t)n);
    }
    va_end(again);
}
