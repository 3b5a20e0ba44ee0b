/*
 * Schedules of V placement: rank r owns the stages r, on the way down, and 2p - 1 - r, on the way up.
 * zbv and dualpipev are the orders of torch.distributed.pipelining, vmin and vhalf follow "Pipeline Parallelism
 * with Controllable Memory" (Qi et al., 2024).
 */
#include "pipeline/generators.h"

enum { DOWN, UP };

/* The order of one rank as it grows. */
typedef struct Order {
    ActionList *out;
    int stage[2], n_mb;
    int f[2], i[2], w[2]; /* the next microbatch of F, of I or B, of W */
    int n_seen;           /* actions of `out` whose I, if they are one, has its W */
} Order;

static Order order_of(const Layout *layout, int rank, ActionList *out)
{
    return (Order){
        .out = out, .stage = {rank, 2 * layout->n_ranks - 1 - rank}, .n_mb = layout->n_mb};
}

/* The next microbatch of its kind; nothing once all had their turn. */
static void next(Order *o, ActionKind kind, int side)
{
    int mb = (kind == ACT_F ? o->f : kind == ACT_W ? o->w : o->i)[side]++;
    if (mb < o->n_mb) schedule_emit(o->out, kind, o->stage[side], mb);
}

/* The W of the oldest I of both stages that has none; false: there is no such I. */
static bool oldest_w(Order *o)
{
    while (o->n_seen < o->out->n) {
        const Action *a = &o->out->at[o->n_seen++];
        if (a->kind != ACT_I) continue;
        schedule_emit(o->out, ACT_W, a->stage, a->mb);
        return true;
    }
    return false;
}

static void i_and_w(Order *o, int side)
{
    next(o, ACT_I, side);
    next(o, ACT_W, side);
}

/* Short of microbatches, it is the order of 2p - 1 of them without those that are not there. */
void zbv(const Layout *layout, int rank, ActionList *out)
{
    int p = layout->n_ranks, m = layout->n_mb, n = m > 2 * p - 1 ? m : 2 * p - 1;
    Order o = order_of(layout, rank, out);
    for (int k = 0; k < 2 * (p - rank) - 1; k++) next(&o, ACT_F, DOWN);
    for (int k = 0; k < rank; k++) {
        next(&o, ACT_F, UP);
        next(&o, ACT_F, DOWN);
    }
    for (int k = 0; k < p - rank; k++) {
        next(&o, ACT_F, UP);
        i_and_w(&o, UP);
    }
    while (o.f[UP] < o.f[DOWN] || o.f[DOWN] < n) {
        if (o.f[DOWN] < n) next(&o, ACT_F, DOWN);
        i_and_w(&o, DOWN);
        next(&o, ACT_F, UP);
        i_and_w(&o, UP);
    }
    for (int k = 0; k < rank; k++) {
        next(&o, ACT_I, DOWN);
        next(&o, ACT_I, UP);
    }
    for (int k = 0; k < p - rank; k++) i_and_w(&o, DOWN);
    while (o.w[UP] < m) next(&o, ACT_W, UP);
    while (o.w[DOWN] < m) next(&o, ACT_W, DOWN);
}

/*
 * Microbatch i runs its F down, F up, I up and I down in the slots of time `first` + 6 i; in a slot that is
 * free the oldest W runs. The slots give the order only: a rank waits for nothing but its inputs.
 */
static void by_slots(const Layout *layout, int rank, const int first[4], ActionList *out)
{
    static const struct {
        ActionKind kind;
        int side;
    } part[4] = {{ACT_F, DOWN}, {ACT_F, UP}, {ACT_I, UP}, {ACT_I, DOWN}};
    Order o = order_of(layout, rank, out);
    int m = layout->n_mb;
    for (int slot = 0; o.out->n < 6 * m; slot++) {
        bool is_free = true;
        for (int k = 0; k < 4; k++) {
            int since = slot - first[k];
            if (since < 0 || since % 6 != 0 || since / 6 >= m) continue;
            next(&o, part[k].kind, part[k].side);
            is_free = false;
        }
        if (is_free) oldest_w(&o);
    }
}

void vmin(const Layout *layout, int r, ActionList *out)
{
    int p = layout->n_ranks, q = p % 3 == 0 ? 2 : 0;
    by_slots(layout, r, (int[]){r, 2 * p - 1 - r, 2 * p + q + r, 4 * p + q - 1 - r}, out);
}

void vhalf(const Layout *layout, int r, ActionList *out)
{
    int p = layout->n_ranks, q = p % 2 == 0 ? 3 : 0;
    by_slots(layout, r, (int[]){2 * r, 3 * p - r - 2, 3 * p + q + 2 * r - 1, 6 * p + q - r - 2},
             out);
}

/*
 * The forward of one stage and the backward of the other in turn, one after the other: run as one action they
 * would have to wait for both inputs, which doubles the bubble.
 */
void dualpipev(const Layout *layout, int rank, ActionList *out)
{
    int behind = layout->n_ranks - 1 - rank;
    Order o = order_of(layout, rank, out);
    for (int k = 0; k < 2 * behind; k++) next(&o, ACT_F, DOWN);
    for (int k = 0; k < rank + 1; k++) {
        next(&o, ACT_F, DOWN);
        next(&o, ACT_F, UP);
    }
    for (int k = 0; k < behind; k++) {
        next(&o, ACT_I, UP);
        oldest_w(&o);
        next(&o, ACT_F, UP);
    }
    for (int k = 0; k < layout->n_mb - 2 * layout->n_ranks + rank + 1; k++) {
        next(&o, ACT_F, DOWN);
        next(&o, ACT_B, UP);
        next(&o, ACT_F, UP);
        next(&o, ACT_B, DOWN);
    }
    for (int k = 0; k < behind; k++) {
        next(&o, ACT_B, UP);
        next(&o, ACT_F, UP);
        next(&o, ACT_B, DOWN);
    }
    /* From the middle of these backwards on, the W are put off into the bubble at the end. */
    for (int k = 0; k < 2 * (rank + 1); k++)
        next(&o, k <= rank ? ACT_B : ACT_I, k % 2 == 0 ? UP : DOWN);
    for (int k = 0; k < behind; k++) {
        oldest_w(&o);
        next(&o, ACT_I, DOWN);
    }
    while (oldest_w(&o)) continue;
}
