#include "model/routing_scope.h"

#include <assert.h>

void routing_scope_start(RoutingScope *out, Comm *group, Tensor own, uint64_t tag, Arena *arena)
{
    assert(own.dtype == DTYPE_F64);
    int64_t n = tensor_size(own);
    *out = (RoutingScope){.own_n = own.data,
                          .others_rn = ARENA_NEW(arena, double, n *(group->size - 1)),
                          .n = n,
                          .send_r = ARENA_NEW(arena, CommRequest, group->size),
                          .receive_r = ARENA_NEW(arena, CommRequest, group->size)};
    double *in = out->others_rn;
    for (int r = 0; r < group->size; r++) {
        if (r == group->rank) continue;
        out->receive_r[r] = group->irecv(group, in, (size_t)n * sizeof *in, r, tag);
        out->send_r[r] = group->isend(group, own.data, (size_t)n * sizeof *in, r, tag);
        in += n;
    }
}

void routing_scope_sum(RoutingScope *scope, Comm *group)
{
    breadcrumb()->op = "routing of other rows";
    for (int r = 0; r < group->size; r++) {
        comm_must(comm_wait(group, &scope->receive_r[r]));
        comm_must(comm_wait(group, &scope->send_r[r]));
    }
    breadcrumb()->op = NULL;
    for (int64_t i = 0; i < scope->n; i++) {
        double sum = 0; /* of counts and probabilities: adding the first to it changes nothing */
        for (int r = 0; r < group->size; r++)
            sum += r == group->rank ? scope->own_n[i]
                                    : scope->others_rn[(r - (r > group->rank)) * scope->n + i];
        scope->own_n[i] = sum;
    }
}
