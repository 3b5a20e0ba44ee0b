#include "io/file.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static Status fail_errno(const char *path)
{
    return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
}

/* ---------------------------------------------------------------- reading */

static int open_retry(const char *path, int flags, mode_t mode)
{
    int fd;
    do fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

Status file_read(Arena *arena, const char *path, char **text, size_t *n)
{
    int fd = open_retry(path, O_RDONLY, 0);
    if (fd < 0) return fail_errno(path);
    /* st_size is a first guess only: pipes and /proc say 0. */
    struct stat info;
    size_t capacity = 4096;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) capacity = (size_t)info.st_size + 1;
    char *buffer = NULL;
    size_t length = 0;
    Status st = arena_alloc(arena, &buffer, capacity + 1, 1);
    while (st == OK) {
        ssize_t got = read(fd, buffer + length, capacity - length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) st = fail_errno(path);
        if (got <= 0) break;
        length += (size_t)got;
        if (length == capacity) {
            char *larger = NULL;
            st = arena_alloc(arena, &larger, 2 * capacity + 1, 1);
            if (st != OK) break;
            memcpy(larger, buffer, length);
            buffer = larger;
            capacity *= 2;
        }
    }
    close(fd);
    TRY(st);
    buffer[length] = '\0';
    *text = buffer;
    if (n) *n = length;
    return OK;
}

Status file_map(MappedFile *out, const char *path)
{
    int fd = open_retry(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0) return fail_errno(path);
    struct stat info;
    Status st = OK;
    MappedFile file = {0};
    if (fstat(fd, &info) != 0) {
        st = fail_errno(path);
    } else if (!S_ISREG(info.st_mode)) {
        st = FAIL(ERR_IO, "%s: %s", path,
                  S_ISDIR(info.st_mode) ? strerror(EISDIR) : "not a regular file");
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            st = fail_errno(path);
        else
            file = (MappedFile){.data = data, .bytes = (size_t)info.st_size};
    }
    close(fd);
    if (st == OK) *out = file;
    return st;
}

void file_unmap(MappedFile *file)
{
    /* munmap takes void *, although nothing is written. */
    if (file->data) munmap((void *)(uintptr_t)file->data, file->bytes);
    *file = (MappedFile){0};
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && !S_ISDIR(info.st_mode);
}

bool dir_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

Status file_bytes(int64_t *bytes, const char *path)
{
    struct stat info;
    if (stat(path, &info) != 0) return fail_errno(path);
    *bytes = info.st_size;
    return OK;
}

/* ---------------------------------------------------------------- writing */

Status fd_write(int fd, const char *path, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n > 0) {
        ssize_t put = write(fd, at, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(path);
        at += put;
        n -= (size_t)put;
    }
    return OK;
}

Status fd_write_at(int fd, const char *path, const void *bytes, size_t n, uint64_t offset)
{
    const char *at = bytes;
    while (n > 0) {
        ssize_t put = pwrite(fd, at, n, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_errno(path);
        at += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return OK;
}

/* The folder a path is in, as malloc'd text. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return strdup(".");
    if (slash == path) return strdup("/");
    return strndup(path, (size_t)(slash - path));
}

static Status sync_parent(const char *path)
{
    char *dir = parent_of(path);
    if (!dir) return FAIL(ERR_MEMORY, "%s: out of memory", path);
    Status st = dir_sync(dir);
    free(dir);
    return st;
}

static Status sync_path(const char *path, int flags)
{
    int fd = open_retry(path, O_RDONLY | flags, 0);
    /* Some file systems know no fsync of a folder (EINVAL), some folders may not be read: there is nothing more to do there. */
    if (fd < 0) return flags == O_DIRECTORY && errno == EACCES ? OK : fail_errno(path);
    Status st = fsync(fd) == 0 || errno == EINVAL ? OK : fail_errno(path);
    close(fd);
    return st;
}

Status dir_sync(const char *path)
{
    return sync_path(path, O_DIRECTORY);
}

Status file_sync(const char *path)
{
    return sync_path(path, 0);
}

Status file_rename(const char *to, const char *from)
{
    if (rename(from, to) != 0)
        return FAIL(ERR_IO, "%s: renaming %s: %s", to, from, strerror(errno));
    return sync_parent(to);
}

Status file_write_atomic(const char *path, const void *bytes, size_t n)
{
    /* O_EXCL and the process id: two processes that write the same file do not share a temporary one. */
    size_t capacity = strlen(path) + 40;
    char *temporary = malloc(capacity);
    if (!temporary) return FAIL(ERR_MEMORY, "%s: out of memory", path);
    int fd = -1;
    for (int i = 0; i < 1000; i++) {
        snprintf(temporary, capacity, "%s.tmp-%ld-%d", path, (long)getpid(), i);
        fd = open_retry(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (fd >= 0 || errno != EEXIST) break;
    }
    if (fd < 0) {
        Status st = fail_errno(path);
        free(temporary);
        return st;
    }
    Status st = fd_write(fd, path, bytes, n);
    if (st == OK && fsync(fd) != 0) st = fail_errno(path);
    if (close(fd) != 0 && st == OK) st = fail_errno(path);
    if (st == OK) st = file_rename(path, temporary);
    if (st != OK) unlink(temporary);
    free(temporary);
    return st;
}

Status file_copy(const char *to, const char *from)
{
    MappedFile file;
    TRY(file_map(&file, from));
    Status st = file_write_atomic(to, file.data, file.bytes);
    file_unmap(&file);
    return st;
}

/* ---------------------------------------------------------------- folders */

Status dir_create(const char *path)
{
    if (dir_exists(path)) return OK;
    char *prefix = strdup(path);
    if (!prefix) return FAIL(ERR_MEMORY, "%s: out of memory", path);
    Status st = OK;
    for (char *end = prefix + 1; st == OK && *prefix; end++) {
        if (*end != '/' && *end != '\0') continue;
        char kept = *end;
        *end = '\0';
        if (mkdir(prefix, 0777) == 0)
            st = sync_parent(prefix);
        else if (errno == EEXIST && !dir_exists(prefix))
            st = FAIL(ERR_IO, "%s: is no folder (expected one, or nothing)", prefix);
        else if (errno != EEXIST)
            st = fail_errno(prefix);
        *end = kept;
        if (kept == '\0') break;
    }
    if (st == OK && *path == '\0') st = FAIL(ERR_IO, "folder name is empty");
    free(prefix);
    return st;
}

/* Relative to the open folder, so that depth is not limited by the length of a path. */
static Status remove_tree_at(int parent, const char *name, const char *path)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return OK;
    if (errno != EISDIR && errno != EPERM) return fail_errno(path);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return fail_errno(path);
    DIR *dir = fdopendir(fd);
    if (!dir) {
        Status st = fail_errno(path);
        close(fd);
        return st;
    }
    Status st = OK;
    struct dirent *item;
    while (st == OK && (errno = 0, item = readdir(dir)) != NULL)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            st = remove_tree_at(fd, item->d_name, path);
    if (st == OK && errno) st = fail_errno(path);
    closedir(dir);
    if (st == OK && unlinkat(parent, name, AT_REMOVEDIR) != 0) st = fail_errno(path);
    return st;
}

Status dir_remove_tree(const char *path)
{
    return remove_tree_at(AT_FDCWD, path, path);
}

Status dir_require_space(const char *path, int64_t bytes)
{
    struct statvfs info;
    if (statvfs(path, &info) != 0 || info.f_blocks == 0) return OK;
    double free_bytes = (double)info.f_bavail * (double)info.f_frsize;
    if (free_bytes >= (double)bytes) return OK;
    return FAIL(ERR_IO, "%s: not enough space (found %.0f bytes free, needed %lld)", path,
                free_bytes, (long long)bytes);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A list of strings that grows in an arena. */
typedef struct NameList {
    Arena *arena;
    char **name;
    int n, capacity;
} NameList;

static void name_list_add(NameList *list, char *name)
{
    if (list->n == list->capacity) {
        int capacity = 2 * list->capacity + 16;
        char **larger = ARENA_NEW(list->arena, char *, capacity);
        if (list->n) memcpy(larger, list->name, (size_t)list->n * sizeof *larger);
        list->name = larger;
        list->capacity = capacity;
    }
    list->name[list->n++] = name;
}

Status dir_list(Arena *arena, const char *path, char ***names, int *n)
{
    DIR *dir = opendir(path);
    if (!dir) return fail_errno(path);
    NameList list = {.arena = arena};
    struct dirent *item;
    while ((errno = 0, item = readdir(dir)) != NULL)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            name_list_add(&list, text_copy(arena, item->d_name));
    Status st = errno ? fail_errno(path) : OK;
    closedir(dir);
    TRY(st);
    if (list.n) qsort(list.name, (size_t)list.n, sizeof *list.name, compare_names);
    *names = list.name;
    *n = list.n;
    return OK;
}

/* ---------------------------------------------------------------- patterns */

static bool ends_with(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* The path itself, or the files of a folder. */
static Status add_files(NameList *list, const char *path, const char *suffix)
{
    if (!dir_exists(path)) {
        name_list_add(list, text_copy(list->arena, path));
        return OK;
    }
    char **names;
    int n;
    TRY(dir_list(list->arena, path, &names, &n));
    for (int i = 0; i < n; i++) {
        char *file = path_join(list->arena, path, names[i]);
        if ((!suffix || ends_with(file, suffix)) && file_exists(file)) name_list_add(list, file);
    }
    return OK;
}

Status paths_expand(Arena *arena, const char *pattern, const char *suffix, char ***out, int *n)
{
    NameList list = {.arena = arena};
    if (dir_exists(pattern)) {
        TRY(add_files(&list, pattern, suffix));
        if (!list.n)
            return FAIL(ERR_IO, "%s: the folder holds no %s files", pattern, suffix ? suffix : "");
    } else if (file_exists(pattern) || !strpbrk(pattern, "*?[")) {
        struct stat info;
        if (stat(pattern, &info) != 0) return fail_errno(pattern);
        TRY(add_files(&list, pattern, suffix));
    } else {
        glob_t found = {0};
        int failure = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);
        Status st = OK;
        if (failure == GLOB_NOSPACE)
            st = FAIL(ERR_MEMORY, "%s: out of memory", pattern);
        else if (failure == GLOB_ABORTED)
            st = fail_errno(pattern);
        /* The system sorts by the locale's rules; data order must not depend on those. */
        if (!failure) qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare_names);
        for (size_t i = 0; st == OK && !failure && i < found.gl_pathc; i++)
            st = add_files(&list, found.gl_pathv[i], suffix);
        globfree(&found);
        TRY(st);
        if (!list.n) return FAIL(ERR_IO, "%s: no file matches", pattern);
    }
    *out = list.name;
    *n = list.n;
    return OK;
}
