#include "base/fault.h"

/* ISO C wants something in every file. */
typedef int FaultFile;

#ifdef SW_FAULTS
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const kind_names[] = {
    [FAULT_ALLOC] = "alloc", [FAULT_READ] = "read",     [FAULT_WRITE] = "write",
    [FAULT_FSYNC] = "fsync", [FAULT_RENAME] = "rename", [FAULT_MESSAGE] = "message"};

/* Constant once it was read. */
static int armed = -1;
static const char *mark;
static atomic_long left;
static pthread_once_t once = PTHREAD_ONCE_INIT;

int __real_open(const char *path, int flags, ...);

static void read_environment(void)
{
    const char *text = getenv("SW_FAULT");
    const char *colon = text ? strchr(text, ':') : NULL;
    if (!colon) return;
    char *end;
    left = strtol(colon + 1, &end, 10);
    mark = *end == ':' ? end + 1 : NULL;
    for (int k = 0; k < (int)(sizeof kind_names / sizeof *kind_names); k++)
        if (strlen(kind_names[k]) == (size_t)(colon - text) &&
            !strncmp(kind_names[k], text, (size_t)(colon - text)))
            armed = k;
}

bool fault_here(FaultKind kind)
{
    pthread_once(&once, read_environment);
    if ((int)kind != armed || atomic_fetch_sub(&left, 1) != 1) return false;
    int fd = mark ? __real_open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) close(fd);
    return true;
}

static bool fails(FaultKind kind, int error)
{
    if (!fault_here(kind)) return false;
    errno = error;
    return true;
}

/* The linker turns calls of NAME into calls of __wrap_NAME, and __real_NAME into NAME. */
#define WRAP(type, name, parameters, arguments, kind, error, failure) \
    type __real_##name parameters; \
    type __wrap_##name parameters; \
    type __wrap_##name parameters \
    { \
        return fails(kind, error) ? (failure) : __real_##name arguments; \
    }

// clang-format off
WRAP(void *,  malloc,        (size_t n),                                      (n),         FAULT_ALLOC, ENOMEM, NULL)
WRAP(void *,  calloc,        (size_t n, size_t size),                         (n, size),   FAULT_ALLOC, ENOMEM, NULL)
WRAP(void *,  realloc,       (void *p, size_t n),                             (p, n),      FAULT_ALLOC, ENOMEM, NULL)
WRAP(void *,  aligned_alloc, (size_t align, size_t n),                        (align, n),  FAULT_ALLOC, ENOMEM, NULL)
WRAP(char *,  strdup,        (const char *text),                              (text),      FAULT_ALLOC, ENOMEM, NULL)
WRAP(char *,  strndup,       (const char *text, size_t n),                    (text, n),   FAULT_ALLOC, ENOMEM, NULL)
WRAP(FILE *,  fopen,         (const char *path, const char *mode),            (path, mode), FAULT_READ, EIO,    NULL)
WRAP(DIR *,   opendir,       (const char *path),                              (path),      FAULT_READ,  EIO,    NULL)
WRAP(int,     fstat,         (int fd, struct stat *out),                      (fd, out),   FAULT_READ,  EIO,    -1)
WRAP(ssize_t, read,          (int fd, void *out, size_t n),                   (fd, out, n), FAULT_READ, EIO,    -1)
WRAP(void *,  mmap,          (void *at, size_t n, int protect, int flags, int fd, off_t offset),
                             (at, n, protect, flags, fd, offset),                          FAULT_READ,  EIO,    MAP_FAILED)
WRAP(ssize_t, write,         (int fd, const void *from, size_t n),            (fd, from, n), FAULT_WRITE, ENOSPC, -1)
WRAP(ssize_t, pwrite,        (int fd, const void *from, size_t n, off_t at),  (fd, from, n, at), FAULT_WRITE, ENOSPC, -1)
WRAP(int,     ftruncate,     (int fd, off_t n),                               (fd, n),     FAULT_WRITE, ENOSPC, -1)
WRAP(int,     mkdir,         (const char *path, mode_t mode),                 (path, mode), FAULT_WRITE, ENOSPC, -1)
WRAP(int,     fsync,         (int fd),                                        (fd),        FAULT_FSYNC, EIO,    -1)
WRAP(int,     rename,        (const char *from, const char *to),              (from, to),  FAULT_RENAME, EIO,   -1)
// clang-format on

int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    bool writes = (flags & O_ACCMODE) != O_RDONLY;
    if (fails(writes ? FAULT_WRITE : FAULT_READ, writes ? ENOSPC : EIO)) return -1;
    return __real_open(path, flags, mode);
}

int __real_fflush(FILE *file);
int __wrap_fflush(FILE *file);
int __wrap_fflush(FILE *file)
{
    if (file == stdout && fails(FAULT_WRITE, ENOSPC)) return EOF;
    return __real_fflush(file);
}
#endif
