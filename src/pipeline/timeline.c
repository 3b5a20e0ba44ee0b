#include "pipeline/timeline.h"

#include <math.h>
#include <stdlib.h>

/* The times of one rank; `first` is where all began. */
static Status fill_rank(RankReport *rank, const ActionTime *time, const ActionList *list,
                        double first, Arena *arena)
{
    TRY(arena_alloc(arena, &rank->wait, (size_t)list->n, sizeof *rank->wait));
    for (int k = 0; k < list->n; k++) {
        rank->wait[k] = 1e3 * (time[k].wait - first);
        rank->start[k] = 1e3 * (time[k].begin - first);
        rank->end[k] = 1e3 * (time[k].end - first);
        if (action_is_compute(list->at[k].kind)) rank->busy += rank->end[k] - rank->start[k];
    }
    return OK;
}

static Status fill(ScheduleReport *out, const ActionTime *const *time_r, const Schedule *s,
                   Arena *arena)
{
    ScheduleReport report;
    TRY(schedule_report_new(&report, s, 1, arena));
    double first = INFINITY;
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++)
            if (action_is_compute(s->list[r].at[k].kind)) first = fmin(first, time_r[r][k].begin);
    for (int r = 0; r < s->n_ranks; r++)
        TRY(fill_rank(&report.rank[r], time_r[r], &s->list[r], first, arena));
    schedule_report_complete(&report, s);
    *out = report;
    return OK;
}

Status timeline_gather(ScheduleReport *out, const Pipeline *p, Arena *arena)
{
    const Schedule *s = p->schedule;
    size_t *bytes_r, n_all = 0;
    ActionTime *own, *all, **time_r;
    Status status = arena_alloc(arena, &bytes_r, (size_t)s->n_ranks, sizeof *bytes_r);
    for (int r = 0; r < s->n_ranks && status == OK; r++) {
        bytes_r[r] = (size_t)s->list[r].n * sizeof *own;
        n_all += (size_t)s->list[r].n;
    }
    if (status == OK) status = arena_alloc(arena, &own, (size_t)p->list.n, sizeof *own);
    if (status == OK) status = arena_alloc(arena, &all, p->rank == 0 ? n_all : 0, sizeof *all);
    if (status == OK) status = arena_alloc(arena, &time_r, (size_t)s->n_ranks, sizeof *time_r);
    TRY(comm_agree(p->pp, status));
    for (int k = 0; k < p->list.n; k++)
        own[k] = (ActionTime){p->time[k].wait + p->clock_offset, p->time[k].begin + p->clock_offset,
                              p->time[k].end + p->clock_offset};
    TRY(comm_gather_v(p->pp, all, own, bytes_r, 0));
    if (p->rank > 0) return OK;
    for (int r = 0; r < s->n_ranks; all += s->list[r++].n) time_r[r] = all;
    return fill(out, (const ActionTime *const *)time_r, s, arena);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the actions of one kind on one stage; NAN: there are none. time has room for n_mb. */
static double median(const ScheduleReport *report, const Schedule *s, int stage, ActionKind kind,
                     double *time)
{
    int rank = s->rank_of_stage[stage], n = 0;
    for (int k = 0; k < s->list[rank].n; k++) {
        const Action *a = &s->list[rank].at[k];
        if (a->stage == stage && a->kind == kind)
            time[n++] = report->rank[rank].end[k] - report->rank[rank].start[k];
    }
    if (n == 0) return NAN;
    qsort(time, (size_t)n, sizeof *time, compare);
    return (time[(n - 1) / 2] + time[n / 2]) / 2;
}

Costs timeline_costs(const ScheduleReport *report, const Schedule *s, Arena *arena)
{
    double *f = ARENA_NEW(arena, double, s->n_stages), *i = ARENA_NEW(arena, double, s->n_stages),
           *w = ARENA_NEW(arena, double, s->n_stages), *time = ARENA_NEW(arena, double, s->n_mb);
    for (int stage = 0; stage < s->n_stages; stage++) {
        double half = median(report, s, stage, ACT_B, time) / 2;
        f[stage] = median(report, s, stage, ACT_F, time);
        i[stage] = median(report, s, stage, ACT_I, time);
        w[stage] = median(report, s, stage, ACT_W, time);
        if (isnan(i[stage])) i[stage] = w[stage] = half; /* B alone */
    }
    return (Costs){.f_s = f, .i_s = i, .w_s = w};
}
