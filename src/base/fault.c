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
int __real_close(int fd);

static void read_environment(void)
{
    const char *text = getenv("SW_FAULT");
    if (!text) return;
    size_t length = strcspn(text, ":");
    char *end = NULL;
    left = text[length] ? strtol(text + length + 1, &end, 10) : 0;
    mark = end && *end == ':' ? end + 1 : NULL;
    for (int k = 0; k < (int)(sizeof kind_names / sizeof *kind_names); k++)
        if (strlen(kind_names[k]) == length && !strncmp(kind_names[k], text, length)) armed = k;
    if (armed >= 0 && left >= 1 && (mark || !*end)) return;
    fprintf(stderr,
            "stagewright: error: SW_FAULT: found %s, expected KIND:N[:FILE], N at least 1, KIND "
            "alloc, read, write, fsync, rename or message\n",
            text);
    _exit(2);
}

bool fault_here(FaultKind kind)
{
    pthread_once(&once, read_environment);
    if ((int)kind != armed || atomic_fetch_sub(&left, 1) != 1) return false;
    int fd = mark ? __real_open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) __real_close(fd);
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
WRAP(DIR *,   fdopendir,     (int fd),                                        (fd),        FAULT_READ,  EIO,    NULL)
WRAP(struct dirent *, readdir, (DIR *dir),                                    (dir),       FAULT_READ,  EIO,    NULL)
WRAP(int,     lstat,         (const char *path, struct stat *out),            (path, out), FAULT_READ,  EIO,    -1)
WRAP(int,     fstat,         (int fd, struct stat *out),                      (fd, out),   FAULT_READ,  EIO,    -1)
WRAP(ssize_t, read,          (int fd, void *out, size_t n),                   (fd, out, n), FAULT_READ, EIO,    -1)
WRAP(void *,  mmap,          (void *at, size_t n, int protect, int flags, int fd, off_t offset),
                             (at, n, protect, flags, fd, offset),                          FAULT_READ,  EIO,    MAP_FAILED)
WRAP(ssize_t, write,         (int fd, const void *from, size_t n),            (fd, from, n), FAULT_WRITE, ENOSPC, -1)
WRAP(ssize_t, pwrite,        (int fd, const void *from, size_t n, off_t at),  (fd, from, n, at), FAULT_WRITE, ENOSPC, -1)
WRAP(int,     ftruncate,     (int fd, off_t n),                               (fd, n),     FAULT_WRITE, ENOSPC, -1)
WRAP(int,     mkdir,         (const char *path, mode_t mode),                 (path, mode), FAULT_WRITE, ENOSPC, -1)
WRAP(int,     unlink,        (const char *path),                              (path),      FAULT_WRITE, EIO,    -1)
WRAP(int,     unlinkat,      (int dir, const char *name, int flags),          (dir, name, flags), FAULT_WRITE, EIO, -1)
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

int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails(FAULT_READ, EIO) ? -1 : __real_openat(dir, path, flags, mode);
}

/* Closed all the same, as the system does it. */
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    bool failed = fault_here(FAULT_WRITE);
    int result = __real_close(fd);
    if (failed) errno = ENOSPC;
    return failed ? -1 : result;
}

/* A folder in the file's place is what the C library itself cannot read. */
size_t __real_fread(void *out, size_t size, size_t n, FILE *file);
size_t __wrap_fread(void *out, size_t size, size_t n, FILE *file);
size_t __wrap_fread(void *out, size_t size, size_t n, FILE *file)
{
    int fd = fault_here(FAULT_READ) ? __real_open("/", O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) dup2(fd, fileno(file));
    if (fd >= 0) __real_close(fd);
    return __real_fread(out, size, n, file);
}

typedef void *ThreadMain(void *);
int __real_pthread_create(pthread_t *out, const pthread_attr_t *how, ThreadMain *body, void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *how, ThreadMain *body, void *arg);
int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *how, ThreadMain *body, void *arg)
{
    if (fault_here(FAULT_ALLOC)) return EAGAIN;
    return __real_pthread_create(out, how, body, arg);
}

int __real_fflush(FILE *file);
int __wrap_fflush(FILE *file);
int __wrap_fflush(FILE *file)
{
    if (file == stdout && fails(FAULT_WRITE, ENOSPC)) return EOF;
    return __real_fflush(file);
}
#endif
