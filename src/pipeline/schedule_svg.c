#include "pipeline/schedule_svg.h"

#include "pipeline/schedule_picture.h"

#include <math.h>
#include <stdio.h>

enum { MESSAGE_MIN = 20 }; /* pixels of a lane per message; with less they are left out */

/* A step of 1, 2 or 5 times a power of ten, about 80 pixels apart. */
static void print_axis(const Picture *p)
{
    double rough = 80 / p->scale, power = pow(10, floor(log10(rough)));
    double step = power * (rough < 2 * power ? 2 : rough < 5 * power ? 5 : 10);
    int bottom = picture_y(p, p->s->n_ranks) - (LANE_PITCH - LANE - MEMORY);
    text_append_format(p->out, "<text class=\"g e\" x=\"%d\" y=\"%d\">%s</text>\n",
                       PICTURE_LEFT - 12, p->top - 10, p->axis);
    for (int k = 0; k * step <= p->report->makespan * (1 + 1e-9); k++) {
        double x = picture_px(PICTURE_LEFT + k * step * p->scale);
        text_append_format(p->out,
                           "<path d=\"M%.7g %dV%d\" stroke=\"#ddd\"/><text class=\"g\" x=\"%.7g\" "
                           "y=\"%d\" text-anchor=\"middle\">%g</text>\n",
                           x, p->top - 6, bottom, x, p->top - 10, k * step);
    }
}

static void print_box(const Picture *p, const Action *a, double start, double end)
{
    double x = picture_x(p, start);
    text_append_format(p->out,
                       "<rect class=\"%s%d\" x=\"%.7g\" width=\"%.7g\" height=\"%d\">"
                       "<title>%d%s%d: %.6g to %.6g</title></rect>\n",
                       action_names[a->kind], p->chunk[a->stage], x,
                       picture_px(picture_x(p, end) - x), LANE, a->stage, action_names[a->kind],
                       a->mb, start - p->first, end - p->first);
}

static void print_number(const Picture *p, const Action *a, double start, double end)
{
    const NumberSize *size = p->number[a->kind];
    if (!size || (end - start) * p->scale < size->digit * snprintf(NULL, 0, "%d", a->mb)) return;
    text_append_format(p->out, "<text class=\"%s%s\" x=\"%.7g\" y=\"%.7g\">%d</text>\n",
                       picture_is_dark(p, a) ? "l" : "d", size->class,
                       picture_px((picture_x(p, start) + picture_x(p, end)) / 2),
                       LANE / 2 + size->rise, a->mb);
}

static void print_each(const Picture *p, int rank, const char *class,
                       void print(const Picture *, const Action *, double start, double end))
{
    const ActionList *list = &p->s->list[rank];
    const RankReport *times = &p->report->rank[rank];
    text_append_format(p->out, "<g class=\"%s\">\n", class);
    for (int k = 0; k < list->n; k++)
        if (action_is_compute(list->at[k].kind))
            print(p, &list->at[k], times->start[k], times->end[k]);
    text_append_format(p->out, "</g>\n");
}

/* What is held after an action, as schedule_simulate weighs it. */
static double held_after(double held, ActionKind kind, double w_share)
{
    switch (kind) {
    case ACT_F: return held + 1;
    case ACT_I: return held + w_share - 1;
    case ACT_W: return held - w_share;
    case ACT_B: return held - 1;
    default: return held;
    }
}

static void print_memory(const Picture *p, int rank)
{
    const ActionList *list = &p->s->list[rank];
    const RankReport *times = &p->report->rank[rank];
    if (!(p->peak > 0)) return;
    int base = LANE + MEMORY;
    double held = 0, most = 0, peak_x = 0, unit = (MEMORY - 5) / p->peak;
    text_append_format(p->out, "<path class=\"m\" d=\"M0 %d", base);
    for (int k = 0; k < list->n; k++) {
        if (!action_is_compute(list->at[k].kind)) continue;
        held = held_after(held, list->at[k].kind, p->report->w_share);
        double x = picture_x(p, times->end[k]);
        if (held > most + 1e-9) {
            most = held;
            peak_x = x;
        }
        text_append_format(p->out, "H%.7gV%.7g", x, picture_px(base - fabs(held) * unit));
    }
    double y = picture_px(base - most * unit);
    text_append_format(
        p->out,
        "H%.7gV%dZ\"/>\n<path class=\"k\" d=\"M%.7g %.7gH%.7g\"/><circle cx=\"%.7g\" "
        "cy=\"%.7g\" r=\"2\"/>\n",
        p->width, base, peak_x, y, p->width + 4, peak_x, y);
    text_append_format(p->out, "<text class=\"g\" x=\"%.7g\" y=\"%d\">peak %.4g", p->width + 8,
                       base - 6, times->peak_activation);
    if (times->peak_in_flight > times->peak_activation)
        text_append_format(p->out, " (%d)", times->peak_in_flight);
    text_append_format(p->out, "</text>\n");
}

static void print_rank_name(const Picture *p, int rank)
{
    const Schedule *s = p->s;
    text_append_format(p->out,
                       "<text class=\"e\" x=\"-12\" y=\"%d\">rank %d</text><text class=\"g e\" "
                       "x=\"-12\" y=\"%d\">stage ",
                       LANE / 2 + 4, rank, LANE + MEMORY - 6);
    int first = -1, last = -1;
    for (int stage = s->n_stages - 1; stage >= 0; stage--) {
        if (s->rank_of_stage[stage] != rank) continue;
        first = stage;
        if (last < 0) last = stage;
    }
    text_append_format(p->out, "%d", first);
    if (last > first)
        text_append_format(p->out, "%s%d", p->chunk[last] > 1 ? " \xe2\x80\xa6 " : ", ", last);
    text_append_format(p->out, "</text>\n");
}

static void print_lane(const Picture *p, int rank)
{
    text_append_format(p->out, "<g transform=\"translate(%d %d)\">\n", PICTURE_LEFT,
                       picture_y(p, rank));
    print_rank_name(p, rank);
    text_append_format(p->out, "<rect width=\"%.7g\" height=\"%d\" fill=\"url(#idle)\"/>\n",
                       p->width, LANE);
    print_each(p, rank, "a", print_box);
    print_each(p, rank, "n", print_number);
    print_memory(p, rank);
    double makespan = p->report->makespan;
    text_append_format(p->out, "<text class=\"g\" x=\"%.7g\" y=\"%d\">busy %.1f %%</text>\n</g>\n",
                       p->width + 8, LANE / 2 + 4,
                       makespan > 0 ? 100 * p->report->rank[rank].busy / makespan : 0.0);
}

/* An arrow from each action's end to the arrival on the next rank. Further ones would cross the lanes between. */
static void print_messages(const Picture *p, int rank)
{
    const Schedule *s = p->s;
    double comm = p->report->costs.comm;
    if (!(comm > 0) || p->width < 2.0 * s->n_mb * p->n_chunks * MESSAGE_MIN) return;
    for (int k = 0; k < s->list[rank].n; k++) {
        const Action *a = &s->list[rank].at[k];
        if (!action_is_compute(a->kind) || a->kind == ACT_W) continue;
        int stage = a->kind == ACT_F ? a->stage + 1 : a->stage - 1;
        if (stage < 0 || stage >= s->n_stages) continue;
        int down = s->rank_of_stage[stage] - rank;
        if (down != 1 && down != -1) continue;
        text_append_format(p->out, "<path class=\"q\" d=\"M%.7g %dl%.7g %d\"/>\n",
                           PICTURE_LEFT + picture_x(p, p->report->rank[rank].end[k]),
                           picture_y(p, rank) + (down > 0 ? LANE : 0), picture_px(comm * p->scale),
                           down * (LANE_PITCH - LANE));
    }
}

static void print_lanes(const Picture *p)
{
    print_axis(p);
    for (int r = 0; r < p->s->n_ranks; r++) print_lane(p, r);
    for (int r = 0; r < p->s->n_ranks; r++) print_messages(p, r);
}

void schedule_print_svg(TextBuffer *out, const Schedule *s, const ScheduleReport *report)
{
    Picture p = picture_measure(out, s, report);
    picture_print_head(&p, &p);
    print_lanes(&p);
    text_append_format(out, "</svg>\n");
}

enum { SUBTITLE = 30 };

static void print_titled(const Picture *p, const char *title)
{
    text_append_format(p->out,
                       "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s<tspan "
                       "font-weight=\"normal\" dx=\"12\">",
                       PICTURE_LEFT, p->top - PICTURE_AXIS - 8, title);
    picture_print_result(p);
    text_append_format(p->out, "</tspan></text>\n");
    print_lanes(p);
}

void schedule_print_svg_both(TextBuffer *out, const Schedule *s, const ScheduleReport *measured,
                             const ScheduleReport *simulated)
{
    Picture above = picture_measure(out, s, measured), below = picture_measure(out, s, simulated);
    double width = fmax(above.width, below.width),
           longest = fmax(measured->makespan, simulated->makespan);
    picture_set_width(&above, width, longest);
    picture_set_width(&below, width, longest);
    above.axis = below.axis = "time, ms";
    above.top = PICTURE_HEAD + SUBTITLE + PICTURE_AXIS;
    below.top = picture_y(&above, s->n_ranks) + SUBTITLE + PICTURE_AXIS;
    picture_print_head(&above, &below);
    print_titled(&above, "measured");
    print_titled(&below, "simulated");
    text_append_format(out, "</svg>\n");
}
