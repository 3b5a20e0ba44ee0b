#include "model/partition.h"

#include <math.h>
#include <string.h>

static Status check_split(const int64_t *split, int n_stages, const ModelConfig *c)
{
    int64_t sum = 0;
    for (int s = 0; s < n_stages; s++) {
        if (split[s] < 1)
            return FAIL(ERR_USAGE, "parallel.layer_split: entry %d is %lld (expected at least 1)",
                        s + 1, (long long)split[s]);
        sum += split[s];
    }
    if (sum != c->n_layers)
        return FAIL(ERR_USAGE,
                    "parallel.layer_split: layers sum to %lld (expected num_hidden_layers %lld)",
                    (long long)sum, (long long)c->n_layers);
    return OK;
}

/* What balancing looks at: sums of costs up to a layer, and the ends. */
typedef struct Balance {
    const PartitionRequest *request;
    double *before; /* [n_layers + 1] cost of layers 0 … i-1 */
    double embedding, head;
} Balance;

static double cost_between(const Balance *b, int stage, int64_t from, int64_t to)
{
    return b->before[to] - b->before[from] + (stage == 0 ? b->embedding : 0) +
           (stage == b->request->n_stages - 1 ? b->head : 0);
}

/* Smallest possible maximum over stages, by dynamic programming over (stages, layers); ties give earlier stages more. */
static void balance_stages(int64_t *split, const Balance *b, Arena *arena)
{
    int n_stages = b->request->n_stages;
    int64_t n = b->request->cost.config->n_layers, width = n + 1;
    double *best = ARENA_NEW(arena, double, (int64_t)(n_stages + 1) * width);
    int64_t *cut = ARENA_NEW(arena, int64_t, (int64_t)(n_stages + 1) * width);
    for (int64_t i = 0; i < (n_stages + 1) * width; i++) best[i] = INFINITY;
    best[0] = 0;
    for (int s = 1; s <= n_stages; s++)
        for (int64_t i = s; i <= n; i++)
            for (int64_t from = s - 1; from < i; from++) {
                double worst = fmax(best[(s - 1) * width + from], cost_between(b, s - 1, from, i));
                if (worst <= best[s * width + i]) {
                    best[s * width + i] = worst;
                    cut[s * width + i] = from;
                }
            }
    int64_t end = n;
    for (int s = n_stages; s >= 1; s--) {
        int64_t from = cut[s * width + end];
        split[s - 1] = end - from;
        end = from;
    }
}

/* How good a split is, less is better: first the busiest rank, then how even the ranks are, then the costliest stage. */
typedef struct Score {
    double rank, squares, stage;
} Score;

static Score score_of(const int64_t *split, const Balance *b, double *rank_sum)
{
    const PartitionRequest *r = b->request;
    Score score = {0};
    int64_t from = 0;
    for (int s = 0; s < r->n_stages; s++) rank_sum[s] = 0;
    for (int s = 0; s < r->n_stages; from += split[s++]) {
        double cost = cost_between(b, s, from, from + split[s]);
        rank_sum[r->rank_of_stage[s]] += cost;
        score.stage = fmax(score.stage, cost);
    }
    for (int s = 0; s < r->n_stages; s++) {
        score.rank = fmax(score.rank, rank_sum[s]);
        score.squares += rank_sum[s] * rank_sum[s];
    }
    return score;
}

/* Sums of the same layers differ in their last bits. */
static bool is_better(Score a, Score b)
{
    const double less = 1 - 1e-9;
    if (a.rank < b.rank * less || b.rank < a.rank * less) return a.rank < b.rank;
    if (a.squares < b.squares * less || b.squares < a.squares * less) return a.squares < b.squares;
    return a.stage < b.stage * less;
}

/* A search around a split. */
typedef struct Search {
    const Balance *balance;
    int64_t *split, *best; /* [n_stages] now tried, and the best so far */
    Score score;           /* of the best */
    double *rank_sum;      /* room for score_of */
    bool found;
} Search;

/* All ways to move one layer from a stage to another, n_moves times. */
static void try_moves(Search *t, int n_moves)
{
    int n = t->balance->request->n_stages;
    for (int from = 0; from < n; from++)
        for (int to = 0; to < n; to++) {
            if (from == to || t->split[from] == 1) continue;
            t->split[from]--, t->split[to]++;
            Score score = score_of(t->split, t->balance, t->rank_sum);
            if (is_better(score, t->score)) {
                t->score = score;
                t->found = true;
                memcpy(t->best, t->split, (size_t)n * sizeof *t->best);
            }
            if (n_moves > 1) try_moves(t, n_moves - 1);
            t->split[from]++, t->split[to]--;
        }
}

static void balance_ranks(int64_t *split, const Balance *b, Arena *arena)
{
    enum { FEW_STAGES = 16 }; /* two moves at once are n⁵ steps */
    int n = b->request->n_stages;
    Search t = {.balance = b,
                .split = split,
                .best = ARENA_NEW(arena, int64_t, n),
                .rank_sum = ARENA_NEW(arena, double, n)};
    t.score = score_of(split, b, t.rank_sum);
    do {
        t.found = false;
        for (int n_moves = 1; n_moves <= (n <= FEW_STAGES ? 2 : 1) && !t.found; n_moves++)
            try_moves(&t, n_moves);
        if (t.found) memcpy(split, t.best, (size_t)n * sizeof *split);
    } while (t.found);
}

static void balance(int64_t *split, const PartitionRequest *r, Arena *arena)
{
    const CostModel *m = &r->cost;
    int64_t n = m->config->n_layers;
    Balance b = {.request = r,
                 .before = ARENA_NEW(arena, double, n + 1),
                 .embedding = stage_cost_sum(range_cost(m, (LayerRange){.has_embedding = true})),
                 .head = stage_cost_sum(range_cost(m, (LayerRange){.has_head = true}))};
    for (int64_t l = 0; l < n; l++)
        b.before[l + 1] =
            b.before[l] + stage_cost_sum(range_cost(m, (LayerRange){.first = l, .n = 1}));
    balance_stages(split, &b, arena);
    if (r->rank_of_stage) balance_ranks(split, &b, arena);
}

Status partition_layers(LayerRange *out, const PartitionRequest *request, Arena *arena)
{
    int n_stages = request->n_stages;
    const ModelConfig *config = request->cost.config;
    if (n_stages > config->n_layers)
        return FAIL(
            ERR_USAGE,
            "parallel.pp_size: %d stages for %lld layers (expected at most one stage per layer)",
            n_stages, (long long)config->n_layers);
    ArenaMark mark = arena_mark(arena);
    int64_t *counts = ARENA_NEW(arena, int64_t, n_stages);
    if (request->split) {
        TRY(check_split(request->split, n_stages, config));
        for (int s = 0; s < n_stages; s++) counts[s] = request->split[s];
    } else {
        balance(counts, request, arena);
    }
    int64_t first = 0;
    for (int s = 0; s < n_stages; s++) {
        out[s] = (LayerRange){first, counts[s], s == 0, s == n_stages - 1};
        first += counts[s];
    }
    arena_rewind(arena, mark);
    return OK;
}
