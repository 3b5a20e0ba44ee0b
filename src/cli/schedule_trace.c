#include "cli/schedule_trace.h"

#include "io/json.h"
#include "pipeline/schedule_svg.h"

#include <math.h>
#include <string.h>

typedef struct Reader {
    const char *path;
    const Schedule *s;
    ScheduleReport *report;
    int *
        place; /* [kinds of compute][n_stages][n_mb] in the list of the stage's rank; -1: not in it */
} Reader;

static int *place_of(const Reader *r, int64_t kind, int64_t stage, int64_t mb)
{
    return &r->place[(kind * r->s->n_stages + stage) * r->s->n_mb + mb];
}

static void find_places(Reader *r, Arena *arena)
{
    int n = (ACT_B + 1) * r->s->n_stages * r->s->n_mb;
    r->place = ARENA_NEW(arena, int, n);
    for (int i = 0; i < n; i++) r->place[i] = -1;
    for (int rank = 0; rank < r->s->n_ranks; rank++)
        for (int k = 0; k < r->s->list[rank].n; k++) {
            const Action *a = &r->s->list[rank].at[k];
            if (!action_is_compute(a->kind)) continue;
            *place_of(r, a->kind, a->stage, a->mb) = k;
            r->report->rank[rank].start[k] = NAN;
        }
}

/* -1: an event of another kind. */
static int kind_of(const json_t *event)
{
    const char *category = json_string_value(json_object_get(event, "cat"));
    for (int kind = 0; kind <= ACT_B && category; kind++)
        if (!strcmp(category, action_names[kind])) return kind;
    return -1;
}

static Status read_event(Reader *r, const json_t *event, size_t number)
{
    int kind = kind_of(event);
    if (kind < 0) return OK;
    char place[512];
    snprintf(place, sizeof place, "%.400s: event %zu", r->path, number);
    json_t *args;
    int64_t stage, mb, rank;
    double start, duration;
    TRY(json_get_object(event, place, "args", &args));
    TRY(json_get_int(args, place, "stage", &stage));
    TRY(json_get_int(args, place, "microbatch", &mb));
    TRY(json_get_int(event, place, "tid", &rank));
    TRY(json_get_real(event, place, "ts", &start));
    TRY(json_get_real(event, place, "dur", &duration));
    const Schedule *s = r->s;
    bool known = stage >= 0 && stage < s->n_stages && mb >= 0 && mb < s->n_mb &&
                 rank == s->rank_of_stage[stage];
    int k = known ? *place_of(r, kind, stage, mb) : -1;
    if (k < 0)
        return FAIL(ERR_FORMAT, "%s: rank %lld ran %lld%s%lld, which schedule %s does not", place,
                    (long long)rank, (long long)stage, action_names[kind], (long long)mb, s->name);
    RankReport *own = &r->report->rank[rank];
    own->start[k] = start / 1e3;
    own->end[k] = (start + duration) / 1e3;
    return OK;
}

static Status read_events(Reader *r, const json_t *root)
{
    json_t *events;
    TRY(json_expect_object(root, r->path));
    TRY(json_get_array(root, r->path, "traceEvents", &events));
    for (size_t i = 0; i < json_array_size(events); i++)
        TRY(read_event(r, json_array_get(events, i), i + 1));
    for (int rank = 0; rank < r->s->n_ranks; rank++)
        for (int k = 0; k < r->s->list[rank].n; k++) {
            const Action *a = &r->s->list[rank].at[k];
            RankReport *own = &r->report->rank[rank];
            char text[ACTION_TEXT_MAX];
            if (!action_is_compute(a->kind)) continue;
            if (isnan(own->start[k]))
                return FAIL(ERR_FORMAT, "%s: no %s on rank %d, which schedule %s has", r->path,
                            action_text(text, a->kind, a->stage, a->mb), rank, r->s->name);
            own->busy += own->end[k] - own->start[k];
        }
    return OK;
}

Status trace_read(ScheduleReport *out, const char *path, const Schedule *s, double w_share,
                  Arena *arena)
{
    ScheduleReport report;
    TRY(schedule_report_new(&report, s, w_share, arena));
    Reader reader = {path, s, &report, NULL};
    find_places(&reader, arena);
    JsonDoc doc;
    TRY(json_doc_read(&doc, path));
    Status status = read_events(&reader, doc.root);
    json_doc_free(&doc);
    TRY(status);
    schedule_report_complete(&report, s);
    *out = report;
    return OK;
}

static void print_table(TextBuffer *out, const Schedule *s, const ScheduleReport *measured,
                        const ScheduleReport *simulated, const Costs *costs)
{
    text_append_format(out,
                       "schedule %s   ranks %d   stages %d   microbatches %d   times in ms\n\n",
                       s->name, s->n_ranks, s->n_stages, s->n_mb);
    text_append_format(out, "%-10s %12s %12s %10s\n", "", "makespan", "work", "bubble");
    text_append_format(out, "%-10s %12.3f %12.3f %8.2f %%\n", "measured", measured->makespan,
                       measured->work, 100 * measured->bubble);
    text_append_format(out, "%-10s %12.3f %12.3f %8.2f %%\n", "simulated", simulated->makespan,
                       simulated->work, 100 * simulated->bubble);
    text_append_format(out, "%-10s %12.3f %12.3f %+8.2f %%\n\n", "difference",
                       measured->makespan - simulated->makespan, measured->work - simulated->work,
                       100 * (measured->bubble - simulated->bubble));
    text_append_format(out, "median of a microbatch\n%5s %5s %10s %10s %10s\n", "stage", "rank",
                       "F", "I", "W");
    for (int stage = 0; stage < s->n_stages; stage++)
        text_append_format(out, "%5d %5d %10.3f %10.3f %10.3f\n", stage, s->rank_of_stage[stage],
                           costs->f_s[stage], costs->i_s[stage], costs->w_s[stage]);
}

static void print_list(TextBuffer *out, const char *key, const double *value, int n)
{
    text_append_format(out, "\"%s\": [", key);
    for (int i = 0; i < n; i++) text_append_format(out, "%s%.17g", i ? ", " : "", value[i]);
    text_append_format(out, "], ");
}

static void print_summary(TextBuffer *out, const char *key, const ScheduleReport *report)
{
    text_append_format(out, ",\n \"%s\": {\"makespan\": %.17g, \"work\": %.17g, \"bubble\": %.17g}",
                       key, report->makespan, report->work, report->bubble);
}

static void print_json(TextBuffer *out, const Schedule *s, const ScheduleReport *measured,
                       const ScheduleReport *simulated, const Costs *costs)
{
    text_append_format(out, "{");
    print_list(out, "f", costs->f_s, s->n_stages);
    print_list(out, "i", costs->i_s, s->n_stages);
    print_list(out, "w", costs->w_s, s->n_stages);
    text_append_format(out, "\"comm\": %.17g", costs->comm);
    print_summary(out, "measured", measured);
    print_summary(out, "simulated", simulated);
    text_append_format(out, "}\n");
}

void trace_print(TextBuffer *out, ScheduleFormat format, const Schedule *s,
                 const ScheduleReport *measured, const ScheduleReport *simulated,
                 const Costs *costs)
{
    switch (format) {
    case SCHEDULE_GRID: print_table(out, s, measured, simulated, costs); break;
    case SCHEDULE_JSON: print_json(out, s, measured, simulated, costs); break;
    case SCHEDULE_SVG: schedule_print_svg_both(out, s, measured, simulated); break;
    default: schedule_print(out, format, s, simulated); break;
    }
}
