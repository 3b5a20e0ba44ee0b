#pragma once
/**
 * The room io: bytes in and out of files, knowing nothing of models. Read this header first, then
 * json.h, jsonl.h, safetensors.h and safetensors_index.h.
 *
 * Files and folders. All errors are ERR_IO, "PATH: what the system says"; writes are atomic: a reader
 * sees the old file, the new file or none, never half of one.
 */
#include "base/arena.h"

/** A file's bytes, read only. data is NULL when bytes is 0. */
typedef struct MappedFile {
    const unsigned char *data;
    size_t bytes;
} MappedFile;

/** The whole file (pipes too) as NUL-terminated text in the arena; *n (may be NULL) without the NUL. */
Status file_read(Arena *arena, const char *path, char **text, size_t *n) MUST_USE;

/** Map a regular file. It must not shrink while mapped. */
Status file_map(MappedFile *out, const char *path) MUST_USE;
void file_unmap(MappedFile *file); /* clears it; an empty or cleared one is fine */

/** Temporary name in the same folder, fsync, rename, fsync of the folder. On failure path is untouched. */
Status file_write_atomic(const char *path, const void *bytes, size_t n) MUST_USE;
/** Byte for byte, written as file_write_atomic does. */
Status file_copy(const char *to, const char *from) MUST_USE;
/** Rename within one file system, replacing `to`, and fsync the folder of `to`. */
Status file_rename(const char *to, const char *from) MUST_USE;

bool file_exists(const char *path); /* a regular file or pipe, not a folder */
bool dir_exists(const char *path);
Status file_bytes(int64_t *bytes, const char *path) MUST_USE;

/** The folder and all above it that are missing. No error when it is there. */
Status dir_create(const char *path) MUST_USE;
/** The folder and all below it; links are removed, not followed. No error when there is none. */
Status dir_remove_tree(const char *path) MUST_USE;
/** Names in the folder, sorted by bytes, without . and .. */
Status dir_list(Arena *arena, const char *path, char ***names, int *n) MUST_USE;
/** ERR_IO naming both numbers if the file system of the folder has fewer bytes free for us. Where it does not tell: OK. */
Status dir_require_space(const char *path, int64_t bytes) MUST_USE;
/** fsync of a folder: renames within it survive a crash. */
Status dir_sync(const char *path) MUST_USE;
/** fsync of a file, whoever has written to it. */
Status file_sync(const char *path) MUST_USE;

/**
 * A file: itself. A folder: its files whose names end with suffix (NULL: all), sorted, not recursive.
 * Otherwise a shell pattern (* ? [...]): all matches, sorted, folders among them as above.
 * ERR_IO when nothing is found.
 */
Status paths_expand(Arena *arena, const char *pattern, const char *suffix, char ***out,
                    int *n) MUST_USE;

/** write() and pwrite() of all bytes, however many calls it takes; path is for the message. */
Status fd_write(int fd, const char *path, const void *bytes, size_t n) MUST_USE;
Status fd_write_at(int fd, const char *path, const void *bytes, size_t n, uint64_t offset) MUST_USE;
