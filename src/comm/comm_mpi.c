#include "base/clock.h"
#include "comm/comm_mpi_parts.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Hydra ends a process that aborts without a look at what its stderr, a pipe, still holds. One second at most. */
static void wait_until_read(int fd)
{
    struct stat is;
    int left = 0;
    if (fstat(fd, &is) || !S_ISFIFO(is.st_mode)) return;
    for (int ms = 0; ms < 1000 && ioctl(fd, FIONREAD, &left) == 0 && left > 0; ms++)
        clock_sleep_us(1000);
}

static void end_all(int exit_code)
{
    wait_until_read(STDERR_FILENO);
    alarm(5); /* should MPI not manage: then this process ends, and the launcher the others */
    MPI_Abort(MPI_COMM_WORLD, exit_code);
}

void mpi_world_abort(int exit_code)
{
    end_all(exit_code);
    _exit(exit_code);
}

static Status mpi_error(int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (MPI_Error_string(error, text, &n) != MPI_SUCCESS) n = 0;
    return FAIL(ERR_UNSUPPORTED, "MPI: %s: %.*s", what, n, text);
}

static Status check_library(int threads)
{
    if (threads < MPI_THREAD_FUNNELED)
        return FAIL(ERR_UNSUPPORTED,
                    "MPI: no support of threads (found level %d, expected at "
                    "least MPI_THREAD_FUNNELED)",
                    threads);
    int known = 0, *bound = NULL;
    int error = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &known);
    if (error != MPI_SUCCESS) return mpi_error(error, "MPI_TAG_UB");
    if (!known || *bound < N_TAGS)
        return FAIL(ERR_UNSUPPORTED, "MPI: tags up to MPI_TAG_UB %d (expected at least %d)",
                    known ? *bound : 0, N_TAGS);
    return OK;
}

/* The only collective of MPI besides its start and end, waited for by sleeping. */
static Status duplicate(MPI_Comm *out)
{
    MPI_Request request;
    int error = MPI_Comm_idup(MPI_COMM_WORLD, out, &request);
    for (int done = 0; error == MPI_SUCCESS && !done;) {
        error = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done) clock_sleep_us(50);
    }
    return error == MPI_SUCCESS ? OK : mpi_error(error, "MPI_Comm_idup");
}

/*
 * On one machine UCX, below MPICH, needs no network. Left to itself it sends long messages by TCP where processes may not
 * read each other's memory, and with that MPI_Finalize hangs now and then: one process waits for an answer of another that
 * already sleeps in its own. The user's word on UCX_TLS goes first; Open MPI does not set MPI_LOCALNRANKS.
 */
static void keep_to_shared_memory(void)
{
    const char *here = getenv("MPI_LOCALNRANKS"), *all = getenv("PMI_SIZE");
    if (here && all && strcmp(here, all) == 0) setenv("UCX_TLS", "self,sysv,posix,cma", 0);
}

Status mpi_world_create(MpiWorld **out)
{
    *out = NULL;
    keep_to_shared_memory();
    bool inherited[N_FILES];
    for (int fd = 0; fd < N_FILES; fd++) inherited[fd] = fcntl(fd, F_GETFD) >= 0;
    int threads = 0;
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &threads);
    if (error != MPI_SUCCESS) return mpi_error(error, "MPI_Init_thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    die_hook(end_all);
    TRY(check_library(threads));
    MpiWorld *w = calloc(1, sizeof *w);
    if (!w) return FAIL(ERR_MEMORY, "out of memory: MPI ranks");
    memcpy(w->inherited, inherited, sizeof inherited);
    w->comm.name = "mpi";
    MPI_Comm_rank(MPI_COMM_WORLD, &w->comm.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &w->comm.size);
    Status status = mpi_messages_init(w);
    if (status == OK) status = duplicate(&w->mpi);
    if (status != OK) {
        mpi_messages_free(w);
        free(w);
        return status;
    }
    mpi_messages_listen(w);
    *out = w;
    return OK;
}

Comm *mpi_world_comm(MpiWorld *w)
{
    return &w->comm;
}

#ifdef MPICH_VERSION
/*
 * Ends the network connections that MPI made; the launcher's come from our parent and are not ours to end. Never a part of
 * its caller: of a thread that is cancelled there, AddressSanitizer would take the variables for used after their scope.
 */
__attribute__((noinline)) static void hang_up(const MpiWorld *w)
{
    for (int fd = 0; fd < N_FILES; fd++) {
        struct sockaddr_storage own;
        socklen_t size = sizeof own;
        if (!w->inherited[fd] && getsockname(fd, (struct sockaddr *)&own, &size) == 0 &&
            own.ss_family != AF_UNIX)
            shutdown(fd, SHUT_RDWR);
    }
}
#endif

/*
 * All is said and done when MPI_Finalize is called: it may not keep a run from ending. Over TCP, UCX below MPICH now and then
 * waits there for an answer of a process that already waits for all and answers no more: the end of the connection will do.
 * A good end gets more time, for a crowded machine.
 */
static void *end_anyway(void *world)
{
    const MpiWorld *w = world;
    unsigned patience = w->exit_code ? 1 : 4;
    sleep(patience);
#ifdef MPICH_VERSION
    hang_up(w);
#endif
    sleep(2 * patience);
    _exit(w->exit_code);
}

void mpi_world_free(MpiWorld **out, int exit_code)
{
    MpiWorld *w = *out;
    *out = NULL;
    if (!w) return;
    mpi_messages_free(w);
    w->exit_code = exit_code;
    pthread_t watch;
    bool watched = pthread_create(&watch, NULL, end_anyway, w) == 0;
    MPI_Finalize();
    /* What comes after may take longer: LeakSanitizer's search. */
    if (watched && pthread_cancel(watch) == 0) pthread_join(watch, NULL);
    free(w);
    die_hook(NULL);
}
