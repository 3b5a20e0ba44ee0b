#pragma once
/**
 * Faults on demand, for tests: the n-th event of a kind fails as the system would let it fail.
 *
 * Built with -DSW_FAULTS=ON only; otherwise fault_here is the constant false and costs nothing. The environment's
 * SW_FAULT=KIND:N[:FILE] arms one fault when the first event comes; FILE is made when the N-th event is reached, so that
 * a test can tell a run that had no such event from one that got over it. Events of all threads are counted together.
 *
 *   alloc     a take from an arena; malloc, calloc, realloc, aligned_alloc, strdup, strndup, pthread_create: no memory
 *   read      open for reading, openat, fopen, fread, opendir, fdopendir, readdir, lstat, fstat, read, mmap: EIO
 *   write     open for writing, write, pwrite, ftruncate, mkdir, close, fflush of stdout: ENOSPC; unlink, unlinkat: EIO
 *   fsync     EIO
 *   rename    EIO
 *   message   a wait for a message: this rank is cut off from all others
 *
 * The functions named above are caught by the linker (--wrap in CMakeLists.txt): all calls of ours, none of libraries. Not
 * among them is stat, which only asks whether something is there. Any other word in SW_FAULT is one line and exit 2.
 */
#include <stdbool.h>

typedef enum FaultKind {
    FAULT_ALLOC,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_FSYNC,
    FAULT_RENAME,
    FAULT_MESSAGE
} FaultKind;

#ifdef SW_FAULTS
/** Whether this event is the one that fails. */
bool fault_here(FaultKind kind);
#else
static inline bool fault_here(FaultKind kind)
{
    (void)kind;
    return false;
}
#endif
