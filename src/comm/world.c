#define _GNU_SOURCE /* sched_getaffinity */
#include "comm/world.h"

#include "base/clock.h"
#include "comm/comm_mpi.h"
#include "comm/comm_threads.h"
#include "comm/placement.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- processors ---------------------------------------------------------------------------------- */

/* Where a process runs: told to all others. */
typedef struct Place {
    char machine[64];
    cpu_set_t cpus; /* that it may use; none: not known */
} Place;

/* How many processors this process may use; *out which, if not NULL. */
static int count_cpus(cpu_set_t *out)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) CPU_ZERO(&cpus);
    if (out) *out = cpus;
    if (CPU_COUNT(&cpus)) return CPU_COUNT(&cpus);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : (int)online;
}

/* The boot's number is the machine's own also in containers, which have names of their own. */
static void name_machine(char *out, size_t size)
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);
    if (fd >= 0) close(fd);
    if (n <= 0 && gethostname(out, size - 1) != 0) out[0] = '\0';
}

static Status share_cpus(World *world)
{
    int n = world->size;
    Place mine = {0}, *all = calloc((size_t)n, sizeof *all);
    Status status = all ? OK : FAIL(ERR_MEMORY, "out of memory: %d processes", n);
    int own = count_cpus(&mine.cpus);
    name_machine(mine.machine, sizeof mine.machine);
    status = comm_agree(world->comm, status);
    if (status == OK) status = comm_all_gather(world->comm, all, &mine, sizeof mine);
    cpu_set_t here = mine.cpus;
    for (int r = 0; r < n && status == OK; r++) {
        if (memcmp(all[r].machine, mine.machine, sizeof mine.machine) != 0) continue;
        world->here += r < world->rank;
        world->n_here++;
        if (!CPU_EQUAL(&mine.cpus, &all[r].cpus)) world->bound = true;
        CPU_OR(&here, &here, &all[r].cpus);
    }
    free(all);
    TRY(status);
    int share = (CPU_COUNT(&here) ? CPU_COUNT(&here) : own) / world->n_here;
    world->n_cpus = share < 1 ? 1 : share < own ? share : own;
    world->comm->n_cpus = world->n_cpus;
    return OK;
}

/* ---- threads ------------------------------------------------------------------------------------- */

enum { STACK_BYTES = 16 * 1024 * 1024 };

typedef struct RankRun {
    ThreadWorld *world;
    const Placement *placement;
    int rank;
    Status (*body)(Comm *world, void *arg);
    void *arg;
    Status status;
    char *message; /* from malloc; NULL: status OK, or no memory for it */
    pthread_t thread;
} RankRun;

static void run_rank(RankRun *run)
{
    Breadcrumb before = *breadcrumb();
    breadcrumb()->rank = run->rank;
    placement_enter(run->placement, run->rank);
    run->status = run->body(thread_world_comm(run->world, run->rank), run->arg);
    if (run->status != OK) run->message = strdup(status_message());
    thread_world_leave(run->world, run->rank);
    placement_leave(run->placement);
    *breadcrumb() = before;
}

static void *thread_main(void *arg)
{
    run_rank(arg);
    return NULL;
}

static int start(RankRun *run)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error) return error;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (!error) error = pthread_create(&run->thread, &attributes, thread_main, run);
    pthread_attr_destroy(&attributes);
    return error;
}

/* The lowest rank with an error of its own; else the lowest with any; else NULL. */
static const RankRun *first_failure(const RankRun *run_r, int n_ranks)
{
    const RankRun *first = NULL;
    for (int r = n_ranks - 1; r >= 0; r--)
        if (run_r[r].status != OK &&
            (run_r[r].status != ERR_PEER || !first || first->status == ERR_PEER))
            first = &run_r[r];
    return first;
}

static int thread_share(int n_ranks)
{
    int share = n_ranks < 1 ? 0 : count_cpus(NULL) / n_ranks;
    return share < 1 ? 1 : share;
}

static Status run_threads(int n_ranks, const Placement *placement,
                          Status (*body)(Comm *world, void *arg), void *arg)
{
    ThreadWorld *world;
    TRY(thread_world_create(&world, n_ranks));
    RankRun *run_r = calloc((size_t)n_ranks, sizeof *run_r);
    if (!run_r) {
        thread_world_free(&world);
        return FAIL(ERR_MEMORY, "out of memory: %d thread ranks", n_ranks);
    }
    int n_cpus = thread_share(n_ranks);
    for (int r = 0; r < n_ranks; r++) {
        Comm *comm = thread_world_comm(world, r);
        comm->n_cpus = n_cpus;
        comm->placement = placement->text;
        run_r[r] =
            (RankRun){.world = world, .placement = placement, .rank = r, .body = body, .arg = arg};
    }

    int n_started = 1; /* rank 0 is this thread */
    int error = 0;
    while (n_started < n_ranks && (error = start(&run_r[n_started])) == 0) n_started++;
    for (int r = n_started; r < n_ranks; r++) thread_world_leave(world, r);
    run_rank(&run_r[0]);
    for (int r = 1; r < n_started; r++) pthread_join(run_r[r].thread, NULL);

    Status status = OK;
    const RankRun *first = first_failure(run_r, n_started);
    if (error)
        status =
            FAIL(ERR_MEMORY, "rank %d: cannot start a thread (%s)", n_started, strerror(error));
    else if (first)
        status = FAIL(first->status, "%s", first->message ? first->message : "out of memory");
    for (int r = 0; r < n_started; r++) free(run_r[r].message);
    free(run_r);
    thread_world_free(&world);
    return status;
}

Status world_run_threads(int n_ranks, Status (*body)(Comm *world, void *arg), void *arg)
{
    return run_threads(n_ranks, &(Placement){0}, body, arg);
}

/* ---- processes ----------------------------------------------------------------------------------- */

/* The first of these variables that is set to a number of at least 0; else -1. */
static int first_number(const char *const *names)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        long value = text ? strtol(text, &end, 10) : -1;
        if (text && end != text && !*end && value >= 0 && value < 1 << 30) return (int)value;
    }
    return -1;
}

static const char *const launcher_marks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", NULL};
static const char *const launcher_ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
/* PMIX_RANK comes without a size: srun says it. */
static const char *const launcher_sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                             "SLURM_STEP_NUM_TASKS", NULL};

/* Under the launcher of another MPI every process believes that it is alone. */
static Status check_launcher(const World *world)
{
    int told = first_number(launcher_sizes);
    if (told <= world->rank) told = world->rank + 1;
    if (world->comm->size > 1 || told == 1) return OK;
    return FAIL(ERR_USAGE,
                "MPI: started by the launcher of another MPI than this program was built "
                "with (%s is set; found a world of 1 process, expected %d)",
                world->mark, told);
}

Status world_open(World *out)
{
    *out = (World){.size = 1};
    for (int i = 0; launcher_marks[i] && !out->mark; i++)
        if (getenv(launcher_marks[i])) out->mark = launcher_marks[i];
    out->launched = out->mark;
    out->n_cpus = count_cpus(NULL);
    if (!out->launched) return OK;
    /* Until MPI tells, and if it cannot, the launcher's word decides who speaks. */
    int rank = first_number(launcher_ranks);
    out->rank = rank < 0 ? 0 : rank;
    MpiWorld *mpi;
    TRY(mpi_world_create(&mpi));
    out->comm = mpi_world_comm(mpi);
    Status status = check_launcher(out);
    if (status != OK) {
        mpi_world_leave(mpi, status);
        if (mpi_world_all_left(mpi, 2)) mpi_world_free(&mpi, 2);
        out->comm = NULL;
        return status;
    }
    out->mpi = mpi;
    out->rank = out->comm->rank;
    out->size = out->comm->size;
    breadcrumb()->rank = out->rank;
    return share_cpus(out);
}

static Status run_process(const World *world, const Placement *placement,
                          Status (*body)(Comm *comm, void *arg), void *arg)
{
    world->comm->placement = placement->text;
    placement_enter(placement, world->here);
    Status status = body(world->comm, arg);
    placement_leave(placement);
    world->comm->placement = NULL;
    return status;
}

Status world_run(const World *world, int n_ranks, int n_threads,
                 Status (*body)(Comm *comm, void *arg), void *arg)
{
    bool launched = world->launched;
    if (launched && n_ranks != world->size)
        return FAIL(ERR_USAGE, "%d ranks are needed, but %d processes were started", n_ranks,
                    world->size);
    if (n_threads < 1) n_threads = launched ? world->n_cpus : thread_share(n_ranks);
    Placement placement;
    placement_find(&placement, launched ? world->n_here : n_ranks, n_threads, count_cpus(NULL),
                   world->bound);
    Status status = launched ? run_process(world, &placement, body, arg)
                             : run_threads(n_ranks, &placement, body, arg);
    placement_free(&placement);
    return status;
}

Status world_all_ok(const World *world, Status own)
{
    TRY(own);
    return world->comm ? comm_barrier(world->comm) : OK;
}

Status world_same(const World *world, const char *what, uint64_t number)
{
    if (!world->comm) return OK;
    int64_t least, most;
    memcpy(&least, &number, sizeof least);
    most = least;
    TRY(comm_min_i64(world->comm, &least, 1));
    TRY(comm_max_i64(world->comm, &most, 1));
    if (least == most) return OK;
    return FAIL(ERR_USAGE, "%s: the %d processes found different ones (expected the same on all)",
                what, world->size);
}

Status world_share(const World *world, void *data, size_t bytes)
{
    return world->comm ? comm_broadcast(world->comm, data, bytes, 0) : OK;
}

static bool is_own_error(Status status)
{
    return status != OK && status != ERR_PEER && status != ERR_STOPPED;
}

/* The lowest process known to have an error of its own: -1 none. *worst: of those that have none. */
static int lowest_failure(const World *world, Status *worst)
{
    *worst = OK;
    for (int r = 0; r < world->size; r++) {
        Status status;
        if (!mpi_world_has_left(world->mpi, r, &status)) continue;
        if (is_own_error(status)) return r;
        if (status != OK && *worst != ERR_PEER) *worst = status;
    }
    return -1;
}

/*
 * Without a world nobody knows of the others. Process 0 speaks first, for launchers end the others as soon as one fails.
 * MPICH's does not where the program never spoke with it: what all find alike is left to process 0 there.
 */
static bool speaks_without_world(const World *world, Status own)
{
    if (!is_own_error(own) || world->rank == 0) return is_own_error(own);
    sleep(1);
    int channel = first_number((const char *const[]){"PMI_FD", NULL});
    bool all_alike = own != ERR_MEMORY;
    return !(all_alike && channel >= 0 && fcntl(channel, F_GETFD) >= 0);
}

Status world_settle(World *world, Status own, bool *speaks)
{
    if (!world->mpi) {
        *speaks = speaks_without_world(world, own);
        return own;
    }
    mpi_world_leave(world->mpi, own);
    bool failed = own != OK && own != ERR_STOPPED;
    world->all_left = mpi_world_all_left(world->mpi, failed ? 2 : 0);
    Status worst, status;
    int first = lowest_failure(world, &worst);
    if (!world->all_left && first != world->rank) {
        /* The one that speaks also ends all. */
        world->all_left = mpi_world_all_left(world->mpi, 2);
        first = lowest_failure(world, &worst);
    }
    /* Nobody is left to say why a peer failed: better this one's word than none. */
    *speaks = first == world->rank || (first < 0 && failed && !world->all_left);
    if (first < 0) return worst;
    mpi_world_has_left(world->mpi, first, &status);
    return status;
}

void world_close(World *world, Status status)
{
    if (world->mpi && !world->all_left) mpi_world_abort(status_exit_code(status));
    mpi_world_free(&world->mpi, status_exit_code(status));
}
