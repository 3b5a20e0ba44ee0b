/*
 * Named schedules. Each function appends the compute actions of one rank, in order; everything else
 * (communication, slots, proof that it runs) is done by the passes for all of them.
 */
#include "pipeline/schedule.h"

#include <string.h>

/* All forwards, then all backwards. Ascending in both, so that gradients add up in the same order as everywhere. */
static void gpipe(const Layout *layout, int rank, ActionList *out)
{
    for (int mb = 0; mb < layout->n_mb; mb++) schedule_emit(out, ACT_F, rank, mb);
    for (int mb = 0; mb < layout->n_mb; mb++) schedule_emit(out, ACT_B, rank, mb);
}

/* Just enough forwards to keep the ranks behind busy until the first gradient comes back, then one of each. */
static void one_f_one_b(const Layout *layout, int rank, ActionList *out)
{
    int m = layout->n_mb, ahead = layout->n_ranks - 1 - rank;
    if (ahead > m) ahead = m;
    for (int mb = 0; mb < ahead; mb++) schedule_emit(out, ACT_F, rank, mb);
    for (int mb = 0; mb < m; mb++) {
        if (mb + ahead < m) schedule_emit(out, ACT_F, rank, mb + ahead);
        schedule_emit(out, ACT_B, rank, mb);
    }
}

// clang-format off
const ScheduleKind schedule_kinds[] = {
    /* name          function     placement   virtual stages: default, min, max; help                                          */
    {"gpipe",        gpipe,       PLACE_LOOP, 1, 1, 1,  "all forwards, then all backwards; keeps every microbatch"},
    {"1f1b",         one_f_one_b, PLACE_LOOP, 1, 1, 1,  "one forward, one backward; keeps at most pp_size microbatches"},
    {"interleaved",  NULL,        PLACE_LOOP, 2, 1, 64, "1f1b over several virtual stages per rank; a bubble v times smaller"},
    {"looped_bfs",   NULL,        PLACE_LOOP, 2, 1, 64, "all microbatches through one virtual stage after the other"},
    {"zb_h1",        NULL,        PLACE_LOOP, 1, 1, 1,  "1f1b with weight gradients moved into the bubble; same memory"},
    {"zb_h2",        NULL,        PLACE_LOOP, 1, 1, 1,  "no bubble on any rank, twice the microbatches in flight"},
    {"zb1p",         NULL,        PLACE_LOOP, 2, 1, 64, "interleaved with weight gradients moved into the bubble"},
    {"zbv",          NULL,        PLACE_V,    2, 2, 2,  "zero bubble on V-placed stages, memory of 1f1b"},
    {"vhalf",        NULL,        PLACE_V,    2, 2, 2,  "V-placed stages, half the memory of 1f1b"},
    {"vmin",         NULL,        PLACE_V,    2, 2, 2,  "V-placed stages, a third of the memory of 1f1b"},
    {"dualpipev",    NULL,        PLACE_V,    2, 2, 2,  "forward of one microbatch paired with backward of another"},
    {"auto",         NULL,        PLACE_LOOP, 1, 1, 64, "the fastest that stays within activation_limit"},
    {NULL,           NULL,        PLACE_LOOP, 0, 0, 0,  NULL},
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
