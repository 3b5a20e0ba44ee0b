#pragma once
/** One packed row of T tokens, ready to run. Made by data, read by all later rooms, owned by the step's arena. */
#include "core/tensor.h"

enum { LABEL_NONE = -100 };

typedef struct MicroBatch {
    int index;        /* place in the step, 0 … M-1 */
    int64_t n_tokens; /* T >= 1 */
    int n_segments;
    const int32_t *cu_seqlens; /* [n_segments + 1]: 0 … T, strictly increasing */
    const int32_t *id_t;       /* [T] */
    const int32_t *position_t; /* [T] restarts at 0 in each segment */
    const int32_t *
        target_t; /* [T] label of token t+1 of the same segment, LABEL_NONE: nothing to learn here */
    double *
        weight_t; /* [T] w / D of the target (numerics.md 2): the loss is sum weight * CE; 0 where none */
    int64_t n_trained;      /* targets other than LABEL_NONE */
    double balancing_scale; /* alpha / rows of the global batch (numerics.md 3); 0: off */
    int64_t
        scope_tokens; /* that the balancing loss counts together: T, or also those of the rows with the same index on
                               other data-parallel ranks; then balancing_scale is alpha / M */
    double z_scale; /* alpha_z / tokens of the global batch (numerics.md 4); 0: off */
} MicroBatch;
