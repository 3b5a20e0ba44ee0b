#pragma once
/**
 * The ranks of a run: threads of this process, or processes that a launcher started. Everything above
 * gets a Comm and need not know which.
 *
 * A start is launched if OMPI_COMM_WORLD_SIZE, PMI_SIZE or PMIX_RANK is set (mpiexec of Open MPI and
 * MPICH, srun --mpi=…; what Slurm sets for every job, SLURM_*, does not count). Otherwise it is alone,
 * and MPI is never touched.
 *
 *   World world;
 *   Status st = world_open(&world);
 *   if (st == OK) st = …;                            any process may return here at any time
 *   st = world_settle(&world, st, &speaks);          the same on all processes
 *   if (speaks) print status_message();
 *   world_close(&world, st);
 */
#include "comm/comm.h"

typedef struct World {
    bool launched;
    const char *mark; /* the environment variable that says so; NULL: alone */
    int rank, size;   /* of the processes: 0 of 1 when alone */
    int n_cpus;       /* this process' share of its machine's processors, at least 1 */
    int here, n_here; /* this process among those on its machine; 0 of 0 when alone */
    bool bound;       /* those may use other processors each: the launcher has placed them */
    Comm *comm;       /* of the processes, lent; NULL when alone */
    struct MpiWorld *mpi;
    bool all_left;
} World;

/**
 * Collective: over all processes that were started together.
 * n_cpus: the processors that this process may use, but not more than an even share, among the processes
 * on its machine, of those that any of them may use (so 1 each when a launcher binds ranks to cores).
 * Errors: ERR_UNSUPPORTED if launched but built without MPI; ERR_USAGE if the launcher speaks of another
 * number of processes than MPI does. world_settle and world_close follow then too.
 */
Status world_open(World *out) MUST_USE;

/**
 * Run body(comm, arg) once on each of n_ranks ranks. Alone: world_run_threads. Launched: the processes
 * are the ranks, this process runs its own, and the status is its own. Meanwhile each rank is placed on
 * processors of its own where n_threads threads of each (< 1: n_cpus) come to all (comm/placement.h).
 *
 * Collective: over the processes. Errors: ERR_USAGE if launched and n_ranks is not their number.
 */
Status world_run(const World *world, int n_ranks, int n_threads,
                 Status (*body)(Comm *comm, void *arg), void *arg) MUST_USE;

/**
 * After local work: OK on a process once it is OK on all. A process with an error does not wait for the
 * others' work (as it would in comm_agree): it must return to world_settle, and the others get ERR_PEER.
 */
Status world_all_ok(const World *world, Status own) MUST_USE;
/** ERR_USAGE that names `what` unless all processes come with the same number; alone OK. Collective. */
Status world_same(const World *world, const char *what, uint64_t number) MUST_USE;
/** data [bytes] of process 0 to all. */
Status world_share(const World *world, void *data, size_t bytes) MUST_USE;

/**
 * This process is done. Waits until all are, and makes one status of theirs: that of the lowest process
 * with an error of its own, which is also the one that *speaks, or else the worst of them.
 *
 * A process that failed waits 2 seconds for the others, which may be busy with work of their own, and
 * speaks then; world_close ends them. One whose world_open made no comm speaks too, a second after process 0 would.
 */
Status world_settle(World *world, Status own, bool *speaks);
/** Leaves MPI; ends all processes with status's exit code if some have not come to world_settle. */
void world_close(World *world, Status status);

/**
 * Run body(world, arg) once on each of n_ranks threads, rank 0 on the calling one, and wait for all.
 *
 * They are not placed. Each rank has its breadcrumb()->rank set and a stack of 16 MiB. A rank whose body returns answers no
 * more, so a failing one cannot leave the others waiting (see comm.h, Failure).
 *
 * Errors: OK if all are OK; else status and message of the lowest rank with an error of its own
 *         (not ERR_PEER), recorded on the calling thread. ERR_USAGE if n_ranks < 1, ERR_MEMORY if a
 *         thread cannot be started.
 */
Status world_run_threads(int n_ranks, Status (*body)(Comm *world, void *arg), void *arg) MUST_USE;
