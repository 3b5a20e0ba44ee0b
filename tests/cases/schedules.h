#pragma once
/** The schedules that have a name, for tests that try them all. */

static const struct {
    const char *name;
    int v_min, v_max; /* virtual stages */
    int mb_per_rank;  /* fewer microbatches than this times pp_size are refused */
} all_schedules[] = {
    {"gpipe", 1, 1, 0}, {"1f1b", 1, 1, 0},  {"interleaved", 1, 8, 0}, {"looped_bfs", 1, 8, 0},
    {"zb_h1", 1, 1, 0}, {"zb_h2", 1, 1, 0}, {"zb1p", 1, 8, 0},        {"zbv", 2, 2, 0},
    {"vhalf", 2, 2, 0}, {"vmin", 2, 2, 0},  {"dualpipev", 2, 2, 2},
};
