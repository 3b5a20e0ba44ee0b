#include "train/evaluate.h"

/* Rows that are in the pipeline in one pass: enough to make its bubble small, few enough to hold. */
enum { CHUNK = 32 };

void evaluate_passes(int n_forward[2], int64_t n_rows)
{
    n_forward[0] = n_rows >= CHUNK ? CHUNK : 0;
    n_forward[1] = (int)(n_rows % CHUNK);
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
    for (int64_t first = 0; first < n;) {
        int pass = n - first >= CHUNK ? PASS_FORWARD_0 : PASS_FORWARD_1;
        int m = engine->schedule[pass]->n_mb;
        ArenaMark mark = arena_mark(step);
        MicroBatch *mb = ARENA_NEW(step, MicroBatch, m);
        for (int i = 0; i < m; i++)
            batch_build(&mb[i], i, &rows[first + i], &config, &totals, step);
        engine_forward(engine, pass, mb, FORWARD_LOSS);
        EngineSums sums;
        engine_sums(&sums, engine, pass, 0);
        out->loss += sums.ce;
        arena_rewind(step, mark);
        first += m;
    }
    arena_rewind(step, all);
}
