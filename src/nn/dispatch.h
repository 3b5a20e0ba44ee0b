#pragma once
/**
 * The order in which experts see tokens: (token, slot) pairs sorted by expert, within an expert by
 * token (a stable counting sort). Integers only; rows are then gathered and combined by these lists.
 */
#include "nn/run.h"

/** R = T*K rows. Memory from the caller. */
typedef struct Dispatch {
    int64_t n_rows;    /* R */
    int32_t *offset_e; /* [E+1] rows offset_e[e] … offset_e[e+1]-1 are expert e's */
    int32_t *token_r;  /* [R] token of a row */
    int32_t *pair_r;   /* [R] t*K + k of a row */
    int32_t *row_tk;   /* [T*K] row of a pair: the inverse of pair_r */
} Dispatch;

/** Sets n_rows and fills the lists of d from id_tk [T, K] (I32, 0 … n_experts-1). */
void dispatch_sort(Dispatch *d, Run *run, Tensor id_tk, int64_t n_experts);
