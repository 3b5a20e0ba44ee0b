/*
 * Named schedules. Each function appends the compute actions of one rank, in order; everything else
 * (communication, slots, proof that it runs) is done by the passes for all of them.
 */
#include "pipeline/generators.h"

#include <string.h>

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

/* All microbatches through one virtual stage after the other, then back. Ascending in both, so that gradients add up
 * in the same order as everywhere. gpipe is one virtual stage. */
static void looped_bfs(const Layout *layout, int rank, ActionList *out)
{
    int p = layout->n_ranks, m = layout->n_mb, v = layout->n_virtual;
    for (int c = 0; c < v; c++)
        for (int mb = 0; mb < m; mb++) schedule_emit(out, ACT_F, c * p + rank, mb);
    for (int c = v - 1; c >= 0; c--)
        for (int mb = 0; mb < m; mb++) schedule_emit(out, ACT_B, c * p + rank, mb);
}

/* ---- one forward, one backward ------------------------------------------------------------------------ */

/*
 * Microbatches that pass a virtual stage before the next virtual stage takes them (Megatron's microbatch
 * group): the fewest, from p on, whose last group is not so short that ranks wait for it.
 */
static int group_size(const Layout *layout)
{
    int p = layout->n_ranks, m = layout->n_mb, n = p;
    while (n < m && m % n != 0 && m % n < p) n++;
    return smaller(n, m);
}

/* Step k of the m v forwards or backwards of a rank: group after group, in it virtual stage after virtual stage. */
static void emit_step(const Layout *layout, int rank, ActionKind kind, int k, ActionList *out)
{
    int v = layout->n_virtual, size = group_size(layout), first = k / (size * v) * size;
    int n = smaller(size, layout->n_mb - first), c = (k - first * v) / n;
    if (kind != ACT_F) c = v - 1 - c;
    schedule_emit(out, kind, c * layout->n_ranks + rank, first + (k - first * v) % n);
}

/* `ahead` forwards, then a forward and a backward in turn, then the rest of the backwards. */
static void one_f_one_b(const Layout *layout, int rank, int ahead, ActionList *out)
{
    int n = layout->n_mb * layout->n_virtual;
    ahead = smaller(ahead, n);
    for (int k = 0; k < ahead + n; k++) {
        if (k < n) emit_step(layout, rank, ACT_F, k, out);
        if (k >= ahead) emit_step(layout, rank, ACT_B, k - ahead, out);
    }
}

/* The same with I in place of B; a W, the oldest, follows each I once `stock` of them are waiting. */
static void one_f_one_i(const Layout *layout, int rank, int ahead, int stock, ActionList *out)
{
    int n = layout->n_mb * layout->n_virtual, n_w = 0;
    ahead = smaller(ahead, n);
    for (int k = 0; k < ahead + n; k++) {
        if (k < n) emit_step(layout, rank, ACT_F, k, out);
        if (k < ahead) continue;
        emit_step(layout, rank, ACT_I, k - ahead, out);
        if (k - ahead >= stock) emit_step(layout, rank, ACT_W, n_w++, out);
    }
    while (n_w < n) emit_step(layout, rank, ACT_W, n_w++, out);
}

/* Just enough forwards to keep the ranks behind busy until the first gradient comes back: one for each rank behind,
 * two (there and back) where each rank has several stages. 1f1b is one virtual stage. */
static void interleaved(const Layout *layout, int rank, ActionList *out)
{
    int behind = layout->n_ranks - 1 - rank, more = layout->n_virtual - 1;
    one_f_one_b(layout, rank, (more ? 2 : 1) * behind + more * group_size(layout), out);
}

/* Gradients come back sooner when no rank on the way stops for a W. zb_h1 is one virtual stage. */
static void zb1p(const Layout *layout, int rank, ActionList *out)
{
    int behind = layout->n_ranks - 1 - rank, more = layout->n_virtual - 1;
    one_f_one_i(layout, rank, behind + more * group_size(layout), rank, out);
}

/* Twice as far ahead and twice the stock: a rank does not wait between its first and its last action. */
static void zb_h2(const Layout *layout, int rank, ActionList *out)
{
    one_f_one_i(layout, rank, 2 * (layout->n_ranks - 1 - rank), 2 * rank, out);
}

// clang-format off
const ScheduleKind schedule_kinds[] = {
    /* name          function     placement   virtual stages: default, min, max; microbatches per rank: min; help */
    {"gpipe",        looped_bfs,  PLACE_LOOP, 1, 1, 1,  0, "all forwards, then all backwards; keeps every microbatch"},
    {"1f1b",         interleaved, PLACE_LOOP, 1, 1, 1,  0, "one forward, one backward; keeps at most pp_size microbatches"},
    {"interleaved",  interleaved, PLACE_LOOP, 2, 1, 64, 0, "1f1b over several virtual stages per rank; a bubble v times smaller"},
    {"looped_bfs",   looped_bfs,  PLACE_LOOP, 1, 1, 64, 0, "all microbatches through one virtual stage after the other"},
    {"zb_h1",        zb1p,        PLACE_LOOP, 1, 1, 1,  0, "1f1b with weight gradients moved into the bubble; same memory"},
    {"zb_h2",        zb_h2,       PLACE_LOOP, 1, 1, 1,  0, "no bubble on any rank, twice the microbatches in flight"},
    {"zb1p",         zb1p,        PLACE_LOOP, 2, 1, 64, 0, "interleaved with weight gradients moved into the bubble"},
    {"zbv",          zbv,         PLACE_V,    2, 2, 2,  0, "zero bubble on V-placed stages, memory of 1f1b"},
    {"vhalf",        vhalf,       PLACE_V,    2, 2, 2,  0, "V-placed stages, half the memory of 1f1b"},
    {"vmin",         vmin,        PLACE_V,    2, 2, 2,  0, "V-placed stages, a third of the memory of 1f1b"},
    {"dualpipev",    dualpipev,   PLACE_V,    2, 2, 2,  2, "forward of one microbatch in turn with backward of another"},
    {"auto",         NULL,        PLACE_LOOP, 1, 1, 64, 0, "the fastest that stays within activation_limit"},
    {NULL,           NULL,        PLACE_LOOP, 0, 0, 0,  0, NULL},
};
// clang-format on

Status schedule_find(const ScheduleKind **out, const char *name)
{
    enum { N = sizeof schedule_kinds / sizeof schedule_kinds[0] };
    const char *names[N];
    for (int k = 0; k < N; k++) {
        names[k] = schedule_kinds[k].name;
        if (names[k] && strcmp(names[k], name) == 0) {
            *out = &schedule_kinds[k];
            return OK;
        }
    }
    const char *nearest = text_nearest(name, names);
    return FAIL(ERR_USAGE, "schedule: unknown name %s%s%s%s", name, nearest ? " (nearest: " : "",
                nearest ? nearest : "", nearest ? ")" : "");
}
