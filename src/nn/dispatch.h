#pragma once
/**
 * The order in which experts see tokens: (token, slot) pairs sorted by expert, within an expert by
 * token (a stable counting sort). Integers only; rows are then gathered and combined by these lists.
 * Tokens are the N that have come to this rank; pairs of other ranks' experts have no row here.
 */
#include "nn/run.h"

/** R rows, N*K if all experts are here. Memory from the caller. */
typedef struct Dispatch {
    int64_t n_rows;    /* R */
    int32_t *offset_e; /* [E+1] rows offset_e[e] … offset_e[e+1]-1 are this rank's expert e's */
    int32_t *token_r;  /* [R] token of a row */
    int32_t *pair_r;   /* [R] n*K + k of a row */
    int32_t *row_nk;   /* [N*K] row of a pair, the inverse of pair_r; -1: none */
} Dispatch;

/** Sets n_rows and fills the lists of d from id_nk [N, K] (I32); this rank's experts are first … first+n_experts-1. */
void dispatch_sort(Dispatch *d, Run *run, Tensor id_nk, int64_t first, int64_t n_experts);
