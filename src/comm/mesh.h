#pragma once
/**
 * The ranks of a run laid out along axes, with a comm for each. Drawn and explained in docs/parallel.md.
 *
 * World rank = ((pp * dp_size + dp) * sp_size + sp) * tp_size + tp: ranks that talk most are neighbours.
 * Five axes are given, two more follow from them:
 *
 *   data = dp x sp   ranks that hold the same parameters, experts aside, and see different tokens;
 *                    coordinate q = dp * sp_size + sp
 *   ep               cut from data: ep = q % ep_size, neighbours share out the experts of a layer
 *   edp              the rest of it: edp = q / ep_size, ranks that hold the same experts
 *
 * So the members of each axis lie a fixed step apart: sp, data, ep tp_size; edp tp_size * ep_size; and so on.
 */
#include "comm/comm.h"
#include "base/text.h"

typedef enum MeshAxis {
    AXIS_PP,
    AXIS_DP,
    AXIS_EP,
    AXIS_SP,
    AXIS_TP,
    AXIS_GIVEN, /* how many have a size of their own; the others follow */
    AXIS_DATA = AXIS_GIVEN,
    AXIS_EDP,
    AXIS_COUNT
} MeshAxis;

typedef struct Mesh {
    Comm *world; /* lent */
    int size[AXIS_COUNT];
    int coord[AXIS_COUNT];  /* this rank's place: rank of axis[i] */
    Comm *axis[AXIS_COUNT]; /* never NULL; along an axis of size 1 a comm that does nothing */
    Comm self;              /* what axes of size 1 point to */
} Mesh;

/**
 * Whether the sizes make a mesh of n_ranks.
 * Errors: ERR_USAGE if a size is below 1, the product is not n_ranks, or ep_size does not divide dp_size * sp_size.
 */
Status mesh_check(const int size[AXIS_GIVEN], int n_ranks) MUST_USE;

/** A line for each axis with more than one rank: its name, its size, its groups of world ranks. */
void mesh_print(TextBuffer *out, const int size[AXIS_GIVEN]);

/**
 * Collective: over world, all ranks with the same sizes. Owner: the mesh lives in arena; mesh_free
 * before the arena goes. Errors: those of mesh_check.
 */
Status mesh_create(Mesh **out, Comm *world, const int size[AXIS_GIVEN], Arena *arena) MUST_USE;
void mesh_free(Mesh **mesh);
