#include "io/lock.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

Status file_lock(int *fd, const char *path, double patience)
{
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return FAIL(ERR_IO, "%s: %s", path, strerror(errno));
    double begin = clock_seconds();
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
        if (clock_seconds() - begin < patience) {
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
            continue;
        }
        file_unlock(fd);
        return FAIL(ERR_USAGE, "%s: in use by another run", path);
    }
    return OK;
}

void file_unlock(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
