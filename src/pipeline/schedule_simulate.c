#include "pipeline/schedule_index.h"
#include "pipeline/schedule_text.h"

#include <math.h>

Costs costs_uniform(int n_stages, double f, double i, double w, double comm, Arena *arena)
{
    double *f_s = ARENA_NEW(arena, double, n_stages), *i_s = ARENA_NEW(arena, double, n_stages),
           *w_s = ARENA_NEW(arena, double, n_stages);
    for (int s = 0; s < n_stages; s++) {
        f_s[s] = f;
        i_s[s] = i;
        w_s[s] = w;
    }
    return (Costs){f_s, i_s, w_s, comm};
}

typedef struct Simulation {
    const Schedule *s;
    const Costs *costs;
    double *end_f, *end_i; /* by pair; NAN: not run yet */
    int *next;             /* [n_ranks] place in the list */
    double *now;           /* [n_ranks] */
} Simulation;

/* When the input from another stage is there; NAN: not known yet. */
static double arrival(const Simulation *sim, const double *end, int from, const Action *a)
{
    const int *rank_of = sim->s->rank_of_stage;
    double t = end[pair_of(sim->s, from, a->mb)];
    return rank_of[from] == rank_of[a->stage] ? t : t + sim->costs->comm;
}

/* Earliest start of an action; NAN: an input is missing. fmax would swallow the NAN, hence the comparisons. */
static double earliest(const Simulation *sim, const Action *a, double now)
{
    size_t pair = pair_of(sim->s, a->stage, a->mb);
    double first = now, second = now;
    switch (a->kind) {
    case ACT_F:
        if (a->stage > 0) first = arrival(sim, sim->end_f, a->stage - 1, a);
        break;
    case ACT_I:
    case ACT_B:
        first = sim->end_f[pair];
        if (a->stage + 1 < sim->s->n_stages) second = arrival(sim, sim->end_i, a->stage + 1, a);
        break;
    case ACT_W: first = sim->end_i[pair]; break;
    default: break;
    }
    if (isnan(first) || isnan(second)) return NAN;
    return fmax(now, fmax(first, second));
}

static double duration(const Costs *costs, const Action *a)
{
    switch (a->kind) {
    case ACT_F: return costs->f_s[a->stage];
    case ACT_I: return costs->i_s[a->stage];
    case ACT_W: return costs->w_s[a->stage];
    case ACT_B: return costs->i_s[a->stage] + costs->w_s[a->stage];
    default: return 0;
    }
}

/* Runs a rank as far as its inputs allow; true if it moved. */
static bool advance(Simulation *sim, int rank, RankReport *report)
{
    const ActionList *list = &sim->s->list[rank];
    int before = sim->next[rank];
    for (; sim->next[rank] < list->n; sim->next[rank]++) {
        int k = sim->next[rank];
        const Action *a = &list->at[k];
        double start = earliest(sim, a, sim->now[rank]);
        if (isnan(start)) break;
        size_t pair = pair_of(sim->s, a->stage, a->mb);
        double time = duration(sim->costs, a), end = start + time;
        report->start[k] = start;
        report->end[k] = end;
        report->busy += time;
        sim->now[rank] = end;
        if (a->kind == ACT_F) sim->end_f[pair] = end;
        if (a->kind == ACT_I || a->kind == ACT_B) sim->end_i[pair] = end;
    }
    return sim->next[rank] > before;
}

/* In the order of the list, which is the order in time on one rank. */
static void count_kept(const ActionList *list, double w_share, RankReport *report)
{
    int forwards = 0, waiting = 0; /* pairs with F done and not I; with I done and not W */
    for (int k = 0; k < list->n; k++) {
        ActionKind kind = list->at[k].kind;
        forwards += (kind == ACT_F) - (kind == ACT_I || kind == ACT_B);
        waiting += (kind == ACT_I) - (kind == ACT_W);
        if (forwards + waiting > report->peak_in_flight)
            report->peak_in_flight = forwards + waiting;
        report->peak_activation = fmax(report->peak_activation, forwards + w_share * waiting);
    }
}

Status schedule_report_new(ScheduleReport *out, const Schedule *s, double w_share, Arena *arena)
{
    ScheduleReport report = {.w_share = w_share};
    TRY(arena_alloc(arena, &report.rank, (size_t)s->n_ranks, sizeof *report.rank));
    for (int r = 0; r < s->n_ranks; r++) {
        TRY(arena_alloc(arena, &report.rank[r].start, (size_t)s->list[r].n, sizeof(double)));
        TRY(arena_alloc(arena, &report.rank[r].end, (size_t)s->list[r].n, sizeof(double)));
    }
    *out = report;
    return OK;
}

void schedule_report_complete(ScheduleReport *report, const Schedule *s)
{
    double first = INFINITY, last = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        RankReport *rank = &report->rank[r];
        if (!s->forward_only) count_kept(&s->list[r], report->w_share, rank);
        for (int k = 0; k < s->list[r].n; k++)
            if (action_is_compute(s->list[r].at[k].kind)) {
                first = fmin(first, rank->start[k]);
                last = fmax(last, rank->end[k]);
            }
        report->work = fmax(report->work, rank->busy);
    }
    report->makespan = isinf(first) ? 0 : last - first;
    report->bubble =
        report->makespan > 0 ? (report->makespan - report->work) / report->makespan : 0;
}

Status schedule_simulate(ScheduleReport *out, const Schedule *s, const Costs *costs, double w_share,
                         Arena *arena)
{
    ScheduleReport report;
    TRY(schedule_report_new(&report, s, w_share, arena));
    report.costs = *costs;
    ArenaMark mark = arena_mark(arena);
    Simulation sim = {.s = s, .costs = costs};
    TRY(arena_alloc(arena, &sim.end_f, n_pairs(s), sizeof(double)));
    TRY(arena_alloc(arena, &sim.end_i, n_pairs(s), sizeof(double)));
    TRY(arena_alloc(arena, &sim.next, (size_t)s->n_ranks, sizeof(int)));
    TRY(arena_alloc(arena, &sim.now, (size_t)s->n_ranks, sizeof(double)));
    for (size_t i = 0; i < n_pairs(s); i++) sim.end_f[i] = sim.end_i[i] = NAN;

    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->n_ranks; r++) moved |= advance(&sim, r, &report.rank[r]);
    }
    for (int r = 0; r < s->n_ranks; r++) {
        if (sim.next[r] == s->list[r].n) continue;
        const Action *a = &s->list[r].at[sim.next[r]];
        char text[ACTION_TEXT_MAX];
        return FAIL(ERR_FORMAT,
                    "schedule %s: rank %d position %d (%s): never gets what it waits for", s->name,
                    r, sim.next[r] + 1, action_text(text, a->kind, a->stage, a->mb));
    }
    schedule_report_complete(&report, s);
    arena_rewind(arena, mark);
    *out = report;
    return OK;
}
