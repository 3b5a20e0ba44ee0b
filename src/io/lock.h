#pragma once
/** A lock of this process on a file: what keeps two runs from writing into one folder. */
#include "base/status.h"

/**
 * Take it; the file is made where there is none. It lasts until file_unlock or the process's end, however that comes. Who holds it
 * is waited for so many seconds: a process that was killed may take a moment to be gone.
 * ERR_USAGE "PATH: in use by another run": it is held. ERR_IO: no such file to be had. Where the file system knows no locks: OK.
 */
Status file_lock(int *fd, const char *path, double patience) MUST_USE;
void file_unlock(int *fd); /* -1 is fine */
