#include "nn/exchange.h"

#include <string.h>

typedef struct Count {
    int64_t tokens, rows;
} Count;

/* The places of tokens among those sent, by rank, then by token; how much each rank gets. */
static void plan_sends(Exchange *x, Count *count_p, Tensor id_tk, int64_t n_experts)
{
    const int32_t *id = id_tk.data;
    const int64_t n_tokens = id_tk.dim[0], top_k = id_tk.dim[1], n_ranks = x->n_ranks;
    memset(x->place_tp, 0xff, (size_t)(n_tokens * n_ranks) * sizeof *x->place_tp);
    for (int64_t pair = 0; pair < n_tokens * top_k; pair++) {
        int64_t p = id[pair] / n_experts;
        x->place_tp[pair / top_k * n_ranks + p] = 0;
        count_p[p].rows++;
    }
    for (int64_t p = 0; p < n_ranks; p++)
        for (int64_t t = 0; t < n_tokens; t++) {
            if (x->place_tp[t * n_ranks + p] < 0) continue;
            x->token_s[x->n_sent] = (int32_t)t;
            x->place_tp[t * n_ranks + p] = (int32_t)x->n_sent++;
            count_p[p].tokens++;
        }
}

static void wait_all(Run *run, CommRequest *request)
{
    const char *op = breadcrumb()->op;
    breadcrumb()->op = "exchange";
    comm_must(comm_wait_all(run->ep, request, 2 * run->ep->size));
    breadcrumb()->op = op;
}

void exchange_plan(Exchange *x, Run *run, Tensor id_tk, int64_t n_experts)
{
    x->n_sent = x->n_received = x->n_rows = 0;
    if (x->n_ranks == 1) {
        x->n_sent = x->n_received = id_tk.dim[0];
        x->n_rows = tensor_size(id_tk);
        return;
    }
    ArenaMark mark = arena_mark(run->scratch);
    Count *sent_p = ARENA_NEW(run->scratch, Count, x->n_ranks);
    Count *received_p = ARENA_NEW(run->scratch, Count, x->n_ranks);
    size_t *bytes_p = ARENA_NEW(run->scratch, size_t, x->n_ranks);
    CommRequest *request = ARENA_NEW(run->scratch, CommRequest, 2 * x->n_ranks);
    plan_sends(x, sent_p, id_tk, n_experts);
    for (int p = 0; p < x->n_ranks; p++) bytes_p[p] = sizeof(Count);
    comm_all_to_all_v(run->ep, request, received_p, bytes_p, sent_p, bytes_p);
    wait_all(run, request);
    for (int p = 0; p < x->n_ranks; p++) {
        x->sent_p[p] = sent_p[p].tokens;
        x->received_p[p] = received_p[p].tokens;
        x->n_received += received_p[p].tokens;
        x->n_rows += received_p[p].rows;
    }
    arena_rewind(run->scratch, mark);
}

Tensor exchange_place(const Exchange *x, Arena *arena, Tensor own_t)
{
    return x->n_ranks == 1 ? own_t : arena_tensor2(arena, own_t.dtype, x->n_received, own_t.dim[1]);
}

static size_t row_bytes(Tensor t)
{
    return (size_t)t.dim[1] * dtype_bytes(t.dtype);
}

/* Rows in_p [P] into `in` from rows out_p [P] of `out`. */
static CommRequest *travel(const Exchange *x, Run *run, Tensor in, const int64_t *in_p, Tensor out,
                           const int64_t *out_p)
{
    CommRequest *request = ARENA_NEW(run->scratch, CommRequest, 2 * x->n_ranks);
    size_t *in_bytes_p = ARENA_NEW(run->scratch, size_t, x->n_ranks);
    size_t *out_bytes_p = ARENA_NEW(run->scratch, size_t, x->n_ranks);
    for (int p = 0; p < x->n_ranks; p++) {
        in_bytes_p[p] = (size_t)in_p[p] * row_bytes(in);
        out_bytes_p[p] = (size_t)out_p[p] * row_bytes(out);
    }
    comm_all_to_all_v(run->ep, request, in.data, in_bytes_p, out.data, out_bytes_p);
    return request;
}

Transfer exchange_start(const Exchange *x, Run *run, Tensor to_n, Tensor own_t)
{
    if (x->n_ranks == 1) return NULL;
    size_t bytes = row_bytes(own_t);
    Tensor packed = arena_tensor2(run->scratch, own_t.dtype, x->n_sent, own_t.dim[1]);
    for (int64_t s = 0; s < x->n_sent; s++)
        memcpy((char *)packed.data + (size_t)s * bytes,
               (const char *)own_t.data + (size_t)x->token_s[s] * bytes, bytes);
    return travel(x, run, to_n, x->received_p, packed, x->sent_p);
}

void exchange_finish(const Exchange *x, Run *run, Transfer transfer)
{
    if (x->n_ranks > 1) wait_all(run, transfer);
}

Tensor exchange_part(const Exchange *x, Run *run, Tensor y_t)
{
    return x->n_ranks == 1 ? y_t
                           : arena_tensor2(run->scratch, run->dtype_acc, x->n_received, y_t.dim[1]);
}

void exchange_return(const Exchange *x, Run *run, Tensor y_t, Tensor part_n, double beta)
{
    if (x->n_ranks == 1) return;
    ArenaMark mark = arena_mark(run->scratch);
    Tensor part_s = arena_tensor2(run->scratch, part_n.dtype, x->n_sent, part_n.dim[1]);
    wait_all(run, travel(x, run, part_s, x->sent_p, part_n, x->received_p));
    run->be->combine_rows(run->be, &(CombineRowsArgs){.y_td = y_t,
                                                      .x_rd = part_s,
                                                      .row_tk = x->place_tp,
                                                      .n_slots = x->n_ranks,
                                                      .beta = beta});
    arena_rewind(run->scratch, mark);
}
