#pragma once
/** Starts the ranks of a run as threads of this process. */
#include "comm/comm.h"

/**
 * Run body(world, arg) once on each of n_ranks threads, rank 0 on the calling one, and wait for all.
 *
 * Each rank has its breadcrumb()->rank set and a stack of 16 MiB. A rank whose body returns answers no
 * more, so a failing one cannot leave the others waiting (see comm.h, Failure).
 *
 * Errors: OK if all are OK; else status and message of the lowest rank with an error of its own
 *         (not ERR_PEER), recorded on the calling thread. ERR_USAGE if n_ranks < 1, ERR_MEMORY if a
 *         thread cannot be started.
 */
Status world_run_threads(int n_ranks, Status (*body)(Comm *world, void *arg), void *arg) MUST_USE;
