#include "train/evaluate.h"

/* Rows that are in all pipelines in one pass: enough to make the bubble small, few enough to hold. */
enum { CHUNK = 32 };

void evaluate_passes(int n_forward[2], int64_t n_rows, int dp_size)
{
    int m = dp_size < CHUNK ? CHUNK / dp_size : 1;
    int64_t chunk = (int64_t)m * dp_size;
    n_forward[0] = n_rows >= chunk ? m : 0;
    n_forward[1] = (int)((n_rows % chunk + dp_size - 1) / dp_size);
}

/* Where the last rows do not reach for all ranks: one token, and nothing to learn from it. */
static Row filler(const Row *like, Arena *arena)
{
    int32_t *cu = ARENA_NEW(arena, int32_t, 2);
    cu[1] = 1;
    Row row = *like;
    row.n_tokens = row.n_segments = 1;
    row.cu_seqlens = cu;
    return row;
}

/* One pass over the rows from `first` on; returns how many they were. */
static int64_t run_pass(double *loss, Engine *e, int pass, const Row *rows, int64_t first,
                        const BatchConfig *config, const BatchTotals *totals)
{
    Arena *step = &e->step;
    ArenaMark mark = arena_mark(step);
    int m = e->schedule[pass]->n_mb, n_ranks = e->mesh->size[AXIS_DP];
    Row rest = filler(rows, step);
    MicroBatch *mb = ARENA_NEW(step, MicroBatch, m);
    for (int i = 0; i < m; i++) {
        int64_t row = first + (int64_t)i * n_ranks + e->mesh->coord[AXIS_DP];
        batch_build(&mb[i], i, row < totals->n_rows ? &rows[row] : &rest, config, totals, step);
    }
    engine_forward(e, pass, mb, FORWARD_LOSS);
    EngineSums sums;
    engine_sums(&sums, e, pass, 0);
    *loss += sums.ce;
    arena_rewind(step, mark);
    return (int64_t)m * n_ranks;
}

void evaluate(EvalResult *out, Engine *engine, const Dataset *data)
{
    int64_t n = dataset_n_rows(data);
    BatchConfig config = {.reduction = engine->config->loss.reduction};
    Arena *step = &engine->step;
    ArenaMark all = arena_mark(step);
    Row *rows = ARENA_NEW(step, Row, n);
    dataset_rows(data, 0, n, rows);
    BatchTotals totals;
    batch_totals(&totals, rows, n, config.reduction);
    *out = (EvalResult){.n_rows = n, .n_tokens = totals.n_tokens, .n_trained = totals.n_trained};
    int n_forward[2];
    evaluate_passes(n_forward, n, engine->mesh->size[AXIS_DP]);
    int64_t chunk = (int64_t)n_forward[0] * engine->mesh->size[AXIS_DP];
    for (int64_t first = 0; first < n;) {
        int pass = chunk && n - first >= chunk ? PASS_FORWARD_0 : PASS_FORWARD_1;
        first += run_pass(&out->loss, engine, pass, rows, first, &config, &totals);
    }
    arena_rewind(step, all);
}
