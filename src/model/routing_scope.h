#pragma once
/**
 * Routing statistics of a microbatch summed over the ranks whose rows have its index: for a balancing loss that counts them
 * together (loss.balancing_scope global, numerics.md 3). They leave after the forward and are waited for before the backward;
 * all of these ranks run the same actions in the same order.
 */
#include "comm/comm.h"

typedef struct RoutingScope {
    double *own_n; /* this rank's numbers, then the sums; the caller's until routing_scope_sum */
    double *others_rn; /* [size - 1, n] by rank */
    int64_t n;
    CommRequest *send_r, *receive_r; /* [size] */
} RoutingScope;

/** Sends own [n] f64 to all others; never waits. Memory from the arena, until routing_scope_sum. Tag: unique among those on their way. */
void routing_scope_start(RoutingScope *out, Comm *group, Tensor own, uint64_t tag, Arena *arena);
/** Waits; own_n then holds the sum in rank order, the same bits on all. Dies when a peer is lost. */
void routing_scope_sum(RoutingScope *scope, Comm *group);
