#pragma once
/**
 * Gradients of ranks that hold the same parameters and saw different rows: summed in rank order, in the shadow of the
 * pipeline. Which ranks: `data` of the mesh, for experts `edp`. Formulas and bytes: docs/parallel.md.
 *
 * Each parameter is cut in parts, one for each rank (Param.own). A rank sends the other parts of its gradient to their
 * ranks, adds what comes for its own, (x_0 + x_1) + x_2 …, and then, unless each rank updates its part alone (ZeRO-1),
 * sends the sum to all. Many parameters travel together and large ones in pieces: in buckets of 1 MiB, four of them on
 * their way at a time, in the order in which stages are complete, which is the same on all ranks of a group.
 */
#include "comm/mesh.h"
#include "core/param.h"
#include "kernels/backend.h"

typedef struct GradSync GradSync;

typedef struct GradSyncSetup {
    const ParamSet *set; /* laid out, Param.own set */
    const int *
        first_s; /* [n_stages + 1] of this rank's parameters, by global stage: set->at[first_s[s]] … [first_s[s+1] - 1] */
    int n_stages;
    const Mesh *mesh;
    const Backend *be;
    bool own_only; /* ZeRO-1: gradients are summed in `own` alone */
} GradSyncSetup;

/** All is lent, and lives as long as the arena. No call communicates before grad_sync_start. Errors: ERR_MEMORY. */
Status grad_sync_create(GradSync **out, const GradSyncSetup *setup, Arena *arena) MUST_USE;

/** The gradients of a stage are complete: their sum begins. Collective over data, in the same order of stages. */
void grad_sync_start(GradSync *sync, int stage);
/** Does what can be done without waiting. */
void grad_sync_advance(GradSync *sync);
/** Waits for the sums of all stages that were started. Dies when a peer is lost. */
void grad_sync_finish(GradSync *sync);

/** After an update of `own` alone: the values of all parameters to all ranks that hold them. Collective over data; waits. */
void grad_sync_spread_values(GradSync *sync);
