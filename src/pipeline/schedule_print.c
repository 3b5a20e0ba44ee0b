#include "pipeline/schedule_text.h"

#include "pipeline/schedule_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *action_text(char *text, ActionKind kind, int stage, int mb)
{
    snprintf(text, ACTION_TEXT_MAX, "%d%s%d", stage, action_names[kind], mb);
    return text;
}

static void print_csv(TextBuffer *out, const Schedule *s, bool with_comm)
{
    char text[ACTION_TEXT_MAX];
    for (int r = 0; r < s->n_ranks; r++) {
        const char *comma = "";
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            if (!with_comm && !action_is_compute(a->kind)) continue;
            text_append_format(out, "%s%s", comma, action_text(text, a->kind, a->stage, a->mb));
            comma = ",";
        }
        text_append(out, "\n", 1);
    }
}

void schedule_print_comm_csv(TextBuffer *out, const Schedule *s)
{
    print_csv(out, s, true);
}

/* Columns of one unit of time; a unit is the shortest action. */
typedef struct Grid {
    double unit, first;
    int n_columns, width; /* characters per column, the blank between two included */
    bool with_stage;
} Grid;

static Grid grid_of(const Schedule *s, const ScheduleReport *report)
{
    Grid grid = {.unit = INFINITY, .first = INFINITY, .with_stage = s->n_stages > s->n_ranks};
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            if (!action_is_compute(s->list[r].at[k].kind)) continue;
            double time = report->rank[r].end[k] - report->rank[r].start[k];
            if (time > 0) grid.unit = fmin(grid.unit, time);
            grid.first = fmin(grid.first, report->rank[r].start[k]);
        }
    double columns = isinf(grid.unit) ? 0 : ceil(report->makespan / grid.unit - 1e-6);
    grid.n_columns = columns > 20000 ? 20000 : (int)columns;
    if (grid.n_columns > 0) grid.unit = fmax(grid.unit, report->makespan / grid.n_columns);
    char text[ACTION_TEXT_MAX];
    grid.width = (int)strlen(action_text(text, ACT_F, s->n_stages - 1, s->n_mb - 1)) + 1;
    if (!grid.with_stage) grid.width -= snprintf(NULL, 0, "%d", s->n_stages - 1);
    return grid;
}

/* Dots are idle, dashes the rest of an action longer than a unit. */
static void draw_row(char *row, const Grid *grid, const ActionList *list, const RankReport *rank)
{
    int length = grid->n_columns * grid->width;
    memset(row, ' ', (size_t)length);
    for (int c = 0; c < grid->n_columns; c++) row[c * grid->width] = '.';
    for (int k = 0; k < list->n; k++) {
        const Action *a = &list->at[k];
        if (!action_is_compute(a->kind)) continue;
        int from = (int)lround((rank->start[k] - grid->first) / grid->unit);
        int to = (int)lround((rank->end[k] - grid->first) / grid->unit);
        if (from >= grid->n_columns) from = grid->n_columns - 1;
        if (to <= from) to = from + 1;
        if (to > grid->n_columns) to = grid->n_columns;
        char text[ACTION_TEXT_MAX], *cell = row + from * grid->width;
        if (grid->with_stage)
            action_text(text, a->kind, a->stage, a->mb);
        else
            snprintf(text, sizeof text, "%s%d", action_names[a->kind], a->mb);
        int space = (to - from) * grid->width - 1, n = (int)strlen(text);
        for (int i = 0; i < space; i++)
            cell[i] = i < n ? text[i] : space >= grid->width ? '-' : ' ';
        cell[space] = ' ';
    }
}

/* A part of a row that ends in no blanks. */
static void print_row(TextBuffer *out, const char *row, int length)
{
    while (length > 0 && row[length - 1] == ' ') length--;
    text_append(out, row, (size_t)length);
    text_append(out, "\n", 1);
}

/* Every fifth column has its time. */
static void draw_times(char *row, const Grid *grid)
{
    int length = grid->n_columns * grid->width;
    memset(row, ' ', (size_t)length);
    for (int c = 0; c < grid->n_columns; c += 5) {
        char text[32];
        int n = snprintf(text, sizeof text, "%.4g", c * grid->unit),
            space = length - c * grid->width;
        memcpy(row + c * grid->width, text, (size_t)(n < space ? n : space));
    }
}

/* All ranks for as long as a line of a terminal lasts, then on from there. */
static void print_lanes(TextBuffer *out, const Grid *grid, const Schedule *s,
                        const ScheduleReport *report)
{
    enum { LINE = 110 };
    int length = grid->n_columns * grid->width, block = LINE / (5 * grid->width) * 5 * grid->width;
    if (block == 0) block = 5 * grid->width;
    char *times = arena_take(out->arena, (size_t)length + 1),
         *rows = arena_take(out->arena, (size_t)s->n_ranks * (size_t)length + 1);
    draw_times(times, grid);
    for (int r = 0; r < s->n_ranks; r++)
        draw_row(rows + (size_t)r * (size_t)length, grid, &s->list[r], &report->rank[r]);
    for (int from = 0; from < length; from += block) {
        int n = length - from < block ? length - from : block;
        text_append_format(out, "\ntime     ");
        print_row(out, times + from, n);
        for (int r = 0; r < s->n_ranks; r++) {
            text_append_format(out, "rank %-3d ", r);
            print_row(out, rows + (size_t)r * (size_t)length + from, n);
        }
    }
}

static void print_grid(TextBuffer *out, const Schedule *s, const ScheduleReport *report)
{
    text_append_format(out, "schedule %s   ranks %d   stages %d   microbatches %d\n", s->name,
                       s->n_ranks, s->n_stages, s->n_mb);
    text_append_format(out, "makespan %g   work %g   bubble %.2f %%\n", report->makespan,
                       report->work, 100 * report->bubble);
    text_append_format(
        out, "F forward   I input gradient   W weight gradient   B = I then W   . idle\n");
    Grid grid = grid_of(s, report);
    print_lanes(out, &grid, s, report);
    text_append_format(out,
                       "\nrank  stages       busy   in flight   activation   slots i w iw send\n");
    for (int r = 0; r < s->n_ranks; r++) {
        char stages[64] = "";
        size_t n = 0;
        for (int stage = 0; stage < s->n_stages && n < sizeof stages - 12; stage++)
            if (s->rank_of_stage[stage] == r)
                n += (size_t)snprintf(stages + n, sizeof stages - n, "%s%d", n ? "," : "", stage);
        text_append_format(out, "%4d  %-8s %8g   %9d   %10g", r, stages, report->rank[r].busy,
                           report->rank[r].peak_in_flight, report->rank[r].peak_activation);
        if (s->has_slots)
            text_append_format(out, "         %d %d %d %d", s->n_slots[r].f_to_i,
                               s->n_slots[r].f_to_w, s->n_slots[r].i_to_w, s->n_slots[r].send);
        text_append(out, "\n", 1);
    }
}

static void print_json(TextBuffer *out, const Schedule *s, const ScheduleReport *report)
{
    char text[ACTION_TEXT_MAX];
    text_append_format(out,
                       "{\"makespan\": %.17g, \"work\": %.17g, \"bubble\": %.17g, \"ranks\": [",
                       report->makespan, report->work, report->bubble);
    for (int r = 0; r < s->n_ranks; r++) {
        const char *comma = "";
        text_append_format(out, "%s\n  {\"stages\": [", r ? "," : "");
        for (int stage = 0; stage < s->n_stages; stage++) {
            if (s->rank_of_stage[stage] != r) continue;
            text_append_format(out, "%s%d", comma, stage);
            comma = ", ";
        }
        text_append_format(out, "], \"actions\": [");
        comma = "";
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            if (!action_is_compute(a->kind)) continue;
            text_append_format(out, "%s\"%s\"", comma, action_text(text, a->kind, a->stage, a->mb));
            comma = ", ";
        }
        text_append_format(
            out, "], \"busy\": %.17g, \"peak_in_flight\": %d, \"peak_activation\": %.17g}",
            report->rank[r].busy, report->rank[r].peak_in_flight, report->rank[r].peak_activation);
    }
    text_append_format(out, "],\n \"valid\": true, \"errors\": []}\n");
}

void schedule_print_invalid_json(TextBuffer *out, const char *error)
{
    text_append_format(out,
                       "{\"makespan\": null, \"work\": null, \"bubble\": null, \"ranks\": [],\n "
                       "\"valid\": false, \"errors\": [\"");
    for (const char *c = error; *c; c++) {
        if (*c == '"' || *c == '\\') text_append(out, "\\", 1);
        if ((unsigned char)*c < 0x20)
            text_append_format(out, "\\u%04x", (unsigned)*c);
        else
            text_append(out, c, 1);
    }
    text_append_format(out, "\"]}\n");
}

// clang-format off
/* Names of colours of Chrome's trace viewer; Perfetto takes its own. */
static const char *const trace_colour[ACT_COUNT] = {"rail_response", "yellow", "good", "rail_animation", "grey", "grey", "grey", "grey", "grey"};
// clang-format on

/* An event on the rank's track, without its closing brace. */
static void print_event(TextBuffer *out, const char *name, const char *category, int rank,
                        double start, double end)
{
    text_append_format(out,
                       ",\n{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 0, "
                       "\"tid\": %d, \"ts\": %.3f, \"dur\": %.3f",
                       name, category, rank, 1e3 * start, 1e3 * (end - start));
}

static void print_compute(TextBuffer *out, const Action *a, const RankReport *times, int rank,
                          int k)
{
    char text[ACTION_TEXT_MAX], wait[ACTION_TEXT_MAX + 8];
    action_text(text, a->kind, a->stage, a->mb);
    snprintf(wait, sizeof wait, "wait %s", text);
    if (times->wait && times->start[k] - times->wait[k] > 1e-3) { /* a microsecond */
        print_event(out, wait, "wait", rank, times->wait[k], times->start[k]);
        text_append_format(out, ", \"cname\": \"grey\"}");
    }
    print_event(out, text, action_names[a->kind], rank, times->start[k], times->end[k]);
    text_append_format(out, ", \"cname\": \"%s\", \"args\": {\"stage\": %d, \"microbatch\": %d}}",
                       trace_colour[a->kind], a->stage, a->mb);
}

/* From posted to done: beside the rank's track, since it goes on meanwhile. One row for each direction and peer. */
static void print_message(TextBuffer *out, const Action *a, const RankReport *times, int rank,
                          int k)
{
    bool sends = a->kind == ACT_SEND_F || a->kind == ACT_SEND_B;
    for (int end = 0; end < 2; end++)
        text_append_format(
            out,
            ",\n{\"name\": \"rank %d %s %d\", \"cat\": \"%s\", \"ph\": \"%s\", \"id\": \"%d.%d\", "
            "\"pid\": 0, \"tid\": %d, \"ts\": %.3f, \"args\": {\"stage\": %d, \"microbatch\": "
            "%d}}",
            rank, sends ? "sends to" : "receives from", a->peer, action_names[a->kind],
            end ? "e" : "b", rank, k, rank, 1e3 * (end ? times->end[k] : times->start[k]), a->stage,
            a->mb);
}

static void print_trace(TextBuffer *out, const Schedule *s, const ScheduleReport *report)
{
    text_append_format(
        out,
        "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"ranks\": %d, \"stages\": %d, "
        "\"microbatches\": %d, \"bubble\": %.17g},\n\"traceEvents\": [",
        s->n_ranks, s->n_stages, s->n_mb, report->bubble);
    for (int r = 0; r < s->n_ranks; r++) {
        const RankReport *times = &report->rank[r];
        text_append_format(
            out,
            "%s\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 0, \"tid\": %d, "
            "\"args\": {\"name\": \"rank %d\"}}",
            r ? "," : "", r, r);
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            if (action_is_compute(a->kind))
                print_compute(out, a, times, r, k);
            else if (times->wait && action_is_message(a->kind))
                print_message(out, a, times, r, k);
        }
    }
    text_append_format(out, "\n]}\n");
}

void schedule_print(TextBuffer *out, ScheduleFormat format, const Schedule *s,
                    const ScheduleReport *report)
{
    switch (format) {
    case SCHEDULE_GRID: print_grid(out, s, report); break;
    case SCHEDULE_CSV: print_csv(out, s, false); break;
    case SCHEDULE_JSON: print_json(out, s, report); break;
    case SCHEDULE_SVG: schedule_print_svg(out, s, report); break;
    case SCHEDULE_TRACE: print_trace(out, s, report); break;
    case SCHEDULE_FORMAT_COUNT: break;
    }
}
