#include "pipeline/schedule_svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LEFT = 84,   /* names of the ranks */
    RIGHT = 150, /* their numbers */
    TOP = 84,    /* title, legend, time axis */
    LANE = 30,   /* height of the actions */
    MEMORY = 20, /* height of the memory curve */
    GAP = 14,    /* between lanes */
    TITLE = 44,  /* of one of two pictures, its time axis included */
    BOTTOM = 18,
    TEXT_WIDTH = 7,  /* of a digit */
    WIDTH_MIN = 720, /* of the lanes */
    WIDTH_MAX = 24000
};

static const struct {
    const char *fill, *label;
} look[ACT_B + 1] = {
    [ACT_F] = {"#4e79a7", "forward"},
    [ACT_I] = {"#e0823d", "input gradient"},
    [ACT_W] = {"#59a14f", "weight gradient"},
    [ACT_B] = {"#c8553d", "backward"},
};

typedef struct Picture {
    TextBuffer *out;
    const Schedule *s;
    const ScheduleReport *report;
    double first, scale; /* time at the left edge, pixels per unit */
    double width;        /* of the lanes */
    double peak;         /* of peak_activation over the ranks */
    int top;             /* of the first lane */
} Picture;

static double x_of(const Picture *p, double time)
{
    return LEFT + (time - p->first) * p->scale;
}

static int y_of(const Picture *p, int rank)
{
    return p->top + rank * (LANE + MEMORY + GAP);
}

/* Wide enough for the label of a typical action. */
static Picture measure(TextBuffer *out, const Schedule *s, const ScheduleReport *report)
{
    Picture p = {.out = out, .s = s, .report = report, .first = INFINITY, .top = TOP};
    double time = 0;
    int n = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        p.peak = fmax(p.peak, report->rank[r].peak_activation);
        for (int k = 0; k < s->list[r].n; k++) {
            if (!action_is_compute(s->list[r].at[k].kind)) continue;
            p.first = fmin(p.first, report->rank[r].start[k]);
            time += report->rank[r].end[k] - report->rank[r].start[k];
            n++;
        }
    }
    double mean = n > 0 && time > 0 ? time / n : 1;
    double label = TEXT_WIDTH * snprintf(NULL, 0, "%d", s->n_mb - 1) + 8;
    p.width = fmin(fmax(report->makespan / mean * label, WIDTH_MIN), WIDTH_MAX);
    p.scale = report->makespan > 0 ? p.width / report->makespan : 1;
    return p;
}

static void escaped(TextBuffer *out, const char *text)
{
    for (; *text; text++) switch (*text) {
        case '<': text_append(out, "&lt;", 4); break;
        case '>': text_append(out, "&gt;", 4); break;
        case '&': text_append(out, "&amp;", 5); break;
        case '"': text_append(out, "&quot;", 6); break;
        default: text_append(out, text, 1);
        }
}

static void print_numbers(const Picture *p)
{
    text_append_format(p->out, "makespan %.6g, work %.6g, bubble %.1f %%", p->report->makespan,
                       p->report->work, 100 * p->report->bubble);
}

/* `lowest` is the picture that ends the page. */
static void print_head(const Picture *p, const Picture *lowest)
{
    const Schedule *s = p->s;
    int height = y_of(lowest, s->n_ranks) - GAP + BOTTOM;
    double width = LEFT + p->width + RIGHT;
    text_append_format(p->out,
                       "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%d\" "
                       "viewBox=\"0 0 %.0f %d\" font-family=\"Helvetica, Arial, sans-serif\" "
                       "font-size=\"12\" fill=\"#333\">\n",
                       width, height, width, height);
    text_append_format(
        p->out,
        "<style>.t{fill:#fff;text-anchor:middle;font-size:11px} .m{fill:#b9c4d0;fill-opacity:.55;"
        "stroke:#7d8ea0} .n{fill:#777;font-size:11px} rect.a{stroke:#fff;stroke-width:.8}</style>\n"
        "<defs><pattern id=\"idle\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#f3f3f3\"/>"
        "<line x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" stroke=\"#dcdcdc\" stroke-width=\"2\"/>"
        "</pattern></defs>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    text_append_format(p->out, "<text x=\"%d\" y=\"24\" font-size=\"16\" font-weight=\"bold\">",
                       LEFT);
    escaped(p->out, s->name);
    text_append_format(p->out,
                       "<tspan font-weight=\"normal\" font-size=\"13\" dx=\"12\">%d ranks, %d "
                       "stages, %d microbatches%s",
                       s->n_ranks, s->n_stages, s->n_mb, p == lowest ? "; " : "");
    if (p == lowest) print_numbers(p);
    text_append_format(p->out, "</tspan></text>\n");
}

static void print_legend(const Picture *p)
{
    bool used[ACT_B + 1] = {false};
    for (int r = 0; r < p->s->n_ranks; r++)
        for (int k = 0; k < p->s->list[r].n; k++)
            if (action_is_compute(p->s->list[r].at[k].kind)) used[p->s->list[r].at[k].kind] = true;
    int x = LEFT;
    for (int kind = 0; kind <= ACT_B; kind++) {
        if (!used[kind]) continue;
        text_append_format(p->out,
                           "<rect x=\"%d\" y=\"37\" width=\"14\" height=\"14\" fill=\"%s\"/>"
                           "<text x=\"%d\" y=\"48\">%s</text>\n",
                           x, look[kind].fill, x + 20, look[kind].label);
        x += 40 + TEXT_WIDTH * (int)strlen(look[kind].label);
    }
    text_append_format(p->out,
                       "<rect x=\"%d\" y=\"37\" width=\"14\" height=\"14\" fill=\"url(#idle)\"/>"
                       "<text x=\"%d\" y=\"48\">idle</text>\n"
                       "<rect class=\"m\" x=\"%d\" y=\"37\" width=\"14\" height=\"14\"/>"
                       "<text x=\"%d\" y=\"48\">microbatches in memory</text>\n",
                       x, x + 20, x + 68, x + 88);
}

/* A step of 1, 2 or 5 times a power of ten, about 80 pixels apart. */
static void print_axis(const Picture *p)
{
    double rough = 80 / p->scale, power = pow(10, floor(log10(rough)));
    double step = power * (rough < 2 * power ? 2 : rough < 5 * power ? 5 : 10);
    int bottom = y_of(p, p->s->n_ranks) - GAP;
    for (int k = 0; k * step <= p->report->makespan * (1 + 1e-9); k++) {
        double x = LEFT + k * step * p->scale;
        text_append_format(
            p->out,
            "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#e4e4e4\"/>"
            "<text class=\"n\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
            x, TOP - 8, x, bottom, x, TOP - 12, k * step);
    }
}

static void print_actions(const Picture *p, int rank)
{
    const ActionList *list = &p->s->list[rank];
    const RankReport *times = &p->report->rank[rank];
    int y = y_of(p, rank), n_chunks = (p->s->n_stages + p->s->n_ranks - 1) / p->s->n_ranks;
    text_append_format(
        p->out, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"url(#idle)\"/>\n",
        LEFT, y, p->width, LANE);
    for (int k = 0; k < list->n; k++) {
        const Action *a = &list->at[k];
        if (!action_is_compute(a->kind)) continue;
        double x = x_of(p, times->start[k]), width = x_of(p, times->end[k]) - x;
        double opacity = 1 - 0.4 * (a->stage / p->s->n_ranks) / (n_chunks > 1 ? n_chunks - 1 : 1);
        text_append_format(p->out,
                           "<g><title>%d%s%d: %g to %g</title><rect class=\"a\" x=\"%.2f\" "
                           "y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                           "fill-opacity=\"%.2f\"/>",
                           a->stage, action_names[a->kind], a->mb, times->start[k] - p->first,
                           times->end[k] - p->first, x, y, width, LANE, look[a->kind].fill,
                           opacity);
        if (width >= TEXT_WIDTH * snprintf(NULL, 0, "%d", a->mb) + 2)
            text_append_format(p->out, "<text class=\"t\" x=\"%.2f\" y=\"%d\">%d</text>",
                               x + width / 2, y + LANE / 2 + 4, a->mb);
        text_append_format(p->out, "</g>\n");
    }
}

static void print_memory(const Picture *p, int rank)
{
    const ActionList *list = &p->s->list[rank];
    const RankReport *times = &p->report->rank[rank];
    int base = y_of(p, rank) + LANE + MEMORY;
    double held = 0, share = p->report->w_share;
    text_append_format(p->out, "<path class=\"m\" d=\"M%d %d", LEFT, base);
    for (int k = 0; k < list->n && p->peak > 0; k++) {
        switch (list->at[k].kind) {
        case ACT_F: held += 1; break;
        case ACT_I: held += share - 1; break;
        case ACT_W: held -= share; break;
        case ACT_B: held -= 1; break;
        default: continue;
        }
        text_append_format(p->out, "H%.2fV%.2f", x_of(p, times->end[k]),
                           base - fabs(held) / p->peak * (MEMORY - 3));
    }
    text_append_format(p->out, "H%.2fV%dZ\"/>\n", LEFT + p->width, base);
    text_append_format(p->out,
                       "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">rank %d</text>\n"
                       "<text class=\"n\" x=\"%.1f\" y=\"%d\">busy %g (%.1f %%)</text>\n"
                       "<text class=\"n\" x=\"%.1f\" y=\"%d\">in flight %d, held %g</text>\n",
                       LEFT - 10, y_of(p, rank) + LANE / 2 + 4, rank, LEFT + p->width + 10,
                       y_of(p, rank) + LANE / 2 + 4, times->busy,
                       p->report->makespan > 0 ? 100 * times->busy / p->report->makespan : 0.0,
                       LEFT + p->width + 10, base - 4, times->peak_in_flight,
                       times->peak_activation);
}

static void print_lanes(const Picture *p)
{
    print_axis(p);
    for (int r = 0; r < p->s->n_ranks; r++) {
        print_actions(p, r);
        print_memory(p, r);
    }
}

void schedule_print_svg(TextBuffer *out, const Schedule *s, const ScheduleReport *report)
{
    Picture p = measure(out, s, report);
    print_head(&p, &p);
    print_legend(&p);
    print_lanes(&p);
    text_append_format(out, "</svg>\n");
}

static void print_titled(const Picture *p, const char *title)
{
    text_append_format(p->out,
                       "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s<tspan "
                       "font-weight=\"normal\" dx=\"12\">",
                       LEFT, p->top - TITLE + 12, title);
    print_numbers(p);
    text_append_format(p->out, "</tspan></text>\n");
    print_lanes(p);
}

void schedule_print_svg_both(TextBuffer *out, const Schedule *s, const ScheduleReport *measured,
                             const ScheduleReport *simulated)
{
    Picture above = measure(out, s, measured), below = measure(out, s, simulated);
    double longest = fmax(measured->makespan, simulated->makespan);
    above.width = below.width = fmax(above.width, below.width);
    above.scale = below.scale = longest > 0 ? above.width / longest : 1;
    above.top = TOP - 26 + TITLE;
    below.top = y_of(&above, s->n_ranks) + TITLE;
    print_head(&above, &below);
    print_legend(&above);
    print_titled(&above, "measured");
    print_titled(&below, "simulated");
    text_append_format(out, "</svg>\n");
}
