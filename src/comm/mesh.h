#pragma once
/**
 * The ranks of a run laid out along axes, with a comm for each: pipeline (pp), data (dp), expert (ep),
 * sequence (sp), tensor (tp). A comm along an axis of size 1 does nothing.
 *
 * World rank = ((pp * dp_size + dp) * sp_size + sp) * tp_size + tp: ranks that talk most are
 * neighbours. Experts share the ranks of dp and sp and will get a comm cut from those; ep_size other
 * than 1 is refused until then.
 */
#include "comm/comm.h"

typedef enum MeshAxis { AXIS_PP, AXIS_DP, AXIS_EP, AXIS_SP, AXIS_TP, AXIS_COUNT } MeshAxis;

typedef struct Mesh {
    Comm *world; /* lent */
    int size[AXIS_COUNT];
    int coord[AXIS_COUNT];  /* this rank's place: rank of axis[i] */
    Comm *axis[AXIS_COUNT]; /* never NULL */
    Comm self;              /* what axes of size 1 point to */
} Mesh;

/** "pp", "dp", … as in the keys pp_size, dp_size. */
const char *mesh_axis_name(MeshAxis axis);

/**
 * Collective: over world, all ranks with the same sizes. Owner: the mesh lives in arena; mesh_free
 * before the arena goes.
 * Errors: ERR_USAGE if a size is below 1 or the product is not the world's size; ERR_UNSUPPORTED ep_size > 1.
 */
Status mesh_create(Mesh **out, Comm *world, const int size[AXIS_COUNT], Arena *arena) MUST_USE;
void mesh_free(Mesh **mesh);
