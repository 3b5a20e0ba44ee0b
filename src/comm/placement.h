#pragma once
/**
 * Which processors the ranks of one machine run on. Where ranks times threads come to just the cores that the
 * processes may use, each rank gets cores of its own, side by side in the machine's topology (hwloc), and its OpenMP
 * threads stay on them, moved among them by the kernel; memory comes from their NUMA node while there is some.
 *
 * Otherwise nothing is pinned: with more ranks than cores somebody would wait while a core is free, and with fewer
 * another program, or another run, might be pinned to the very same ones. Nor where somebody else has done so:
 * OMP_PROC_BIND, OMP_PLACES, or a launcher that gave each rank processors of its own.
 *
 * Results do not depend on it.
 */
#include <stdbool.h>
#include <stddef.h>

typedef struct Placement {
    char text[96]; /* what was done, a line for the log; empty: one rank, nothing to divide */
    struct hwloc_topology *topology; /* of the processors that may be used; NULL: not pinned */
    int unit;                        /* hwloc's type of what is counted: processors or cores */
    int n_threads;                   /* of a rank */
    bool memory; /* there is more than one node, and no policy but the kernel's */
} Placement;

/**
 * For n_ranks ranks on this machine of n_threads threads each, on n_cpus processors; bound: a launcher has placed them. The
 * calling thread may still use all those processors. The topology is read (milliseconds) only if they are enough.
 */
void placement_find(Placement *out, int n_ranks, int n_threads, int n_cpus, bool bound);
void placement_free(Placement *placement);

/** The calling thread and its OpenMP team become rank `here` of this machine's, 0 ≤ here < n_ranks. */
void placement_enter(const Placement *placement, int here);
/** They may use all processors again. */
void placement_leave(const Placement *placement);

/** The processors of rank `here` as numbers of the system, "0-3,8"; empty: not pinned. */
void placement_cpus(const Placement *placement, int here, char *out, size_t size);
