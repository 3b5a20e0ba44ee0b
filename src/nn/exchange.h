#pragma once
/**
 * Tokens on their way to the ranks that hold their experts, and back, where the experts of a layer are shared out over the
 * ranks of run->ep. None is dropped: whatever the router chose travels.
 *
 * Each rank routes its own T tokens. A token goes once to each of the P ranks that holds some of its K experts, with all its
 * choices and weights; a rank so receives N tokens, by sender and in the sender's order, its own among them. What comes back
 * is a part per token and rank, added in rank order. With one rank nothing moves: the tokens received are the own ones.
 *
 * Collective over run->ep: all ranks call all of this in the same order, with tokens of their own number, also those that
 * neither send nor receive any. How many bytes travel: docs/parallel.md.
 */
#include "nn/run.h"

typedef struct Exchange {
    int n_ranks;        /* P */
    int64_t n_sent;     /* S: own tokens times the ranks each goes to */
    int64_t n_received; /* N */
    int64_t n_rows;     /* R: (token, expert of this rank) pairs among those received */
    /* Memory from the caller before exchange_plan, if P > 1; until I. */
    int64_t *sent_p, *received_p; /* [P] tokens for and from each rank */
    int32_t *token_s;             /* [T * min(P, K)] own token of each of the S */
    int32_t
        *place_tp; /* [T, P] place among the S of a token that goes to a rank; -1: it does not */
} Exchange;

/** Who sends what to whom, from id_tk [T, K] (I32); ranks hold n_experts each. Fills all of x. */
void exchange_plan(Exchange *x, Run *run, Tensor id_tk, int64_t n_experts);

/** Memory for rows of the N tokens received, like rows of own_t [T, …]; with one rank own_t itself. */
Tensor exchange_place(const Exchange *x, Arena *arena, Tensor own_t);

/** Rows on their way: what to wait for, in the scratch arena. */
typedef CommRequest *Transfer;
/** Start to fill to_n [N, …] (exchange_place) from all ranks' own_t [T, …]. own_t is packed, and free, on return. */
Transfer exchange_start(const Exchange *x, Run *run, Tensor to_n, Tensor own_t);
/** Until to_n is there. */
void exchange_finish(const Exchange *x, Run *run, Transfer transfer);

/** Scratch in dtype_acc for this rank's part of y_t [T, …], for the N tokens received; with one rank y_t itself. */
Tensor exchange_part(const Exchange *x, Run *run, Tensor y_t);
/** y_t = beta y + the parts of all ranks that a token went to, in rank order, in f32+, rounded once. One rank: it is y_t. */
void exchange_return(const Exchange *x, Run *run, Tensor y_t, Tensor part_n, double beta);
