#pragma once
/**
 * The points of equality.h on a deep model: every schedule, cut, batch, recomputation, dtype, transport, with tied
 * embeddings or not, in both forms of the balancing loss. Include after cmocka.h.
 */
#include "cases/equality.h"
#include "cases/schedules.h"

static const int grid_pp[] = {1, 2, 3, 4, 8}, grid_mb[] = {1, 2, 5, 8};

enum {
    GRID_LAYERS = 24,
    GRID_VIRTUAL = 3,
    GRID_SCHEDULES = 17,
    GRID_POINTS = GRID_SCHEDULES * 5 * 4 * 3 * 2 * 2 * 2 * 2
};

/* Schedule i of the grid, in each number of virtual stages up to three: its row, and that number in *v. */
static inline size_t grid_schedule(int *v, int i)
{
    size_t s = 0;
    for (*v = all_schedules[0].v_min; i > 0; i--)
        if (++*v > all_schedules[s].v_max || *v > GRID_VIRTUAL) *v = all_schedules[++s].v_min;
    return s;
}

/** Point i, and whether there is one: false where the schedule refuses so few microbatches. */
static inline bool grid_point(Point *p, int i)
{
    static const double recompute[] = {0, 0.5, 1};
    int all = i;
#define DIGIT(n) (i /= before, before = (n), i % (n))
    int before = 1;
    int v;
    size_t s = grid_schedule(&v, DIGIT(GRID_SCHEDULES));
    int pp = DIGIT((int)COUNT(grid_pp)), mb = DIGIT((int)COUNT(grid_mb));
    *p = (Point){.layout = {.schedule = all_schedules[s].name,
                            .n_virtual = v,
                            .pp = grid_pp[pp],
                            .threads = all / 7 % 2 + 1},
                 .n_mb = grid_mb[mb]};
    p->layout.recompute = recompute[DIGIT(3)];
    p->dtype = DIGIT(2) ? "bf16" : "f32";
    p->model = DIGIT(2) ? "tied" : "untied";
    p->form = DIGIT(2) ? "hf" : "per_layer";
    p->processes = DIGIT(2);
#undef DIGIT
    return p->n_mb >= all_schedules[s].mb_per_rank * p->layout.pp;
}

/** Models of so many layers, and rows; to be removed by the caller. */
static inline char *grid_folder(int n_layers)
{
    char *folder = folder_make(), text[1024];
    for (int tied = 0; tied < 2; tied++)
        fixture_write_model(
            path_in(folder, tied ? "tied" : "untied"),
            &(Fixture){.kind = FIXTURE_DEEP, .n_layers = n_layers, .tied = tied != 0});
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_SHORT, 2, 1);
    char *rows = read_text(path_in(folder, "rows.jsonl"), NULL), *end = rows;
    for (int n = 1; n <= 16; n++) {
        end = strchr(end, '\n') + 1;
        char after = *end;
        *end = '\0';
        write_text(path_in(folder, "batch-%d.jsonl", n), rows);
        *end = after;
    }
    free(rows);
    snprintf(text, sizeof text, "data: {train: [%s/rows.jsonl], format: ids}\ntrain: {steps: %d}\n",
             folder, EQUALITY_STEPS);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}
