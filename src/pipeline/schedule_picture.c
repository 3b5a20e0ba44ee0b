#include "pipeline/schedule_picture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH_MIN = 640, WIDTH_MAX = 1600 }; /* of the lanes */

/* Four hues that all eyes tell apart, and four greys; dark edges tell I, W and B apart in any shade. */
static const struct {
    unsigned rgb;
    bool edge_above, edge_below;
    const char *label;
} look[ACT_B + 1] = {
    [ACT_F] = {0x1f5f9e, false, false, "F forward"},
    [ACT_I] = {0xf2ae30, true, false, "I input gradient"},
    [ACT_W] = {0x2ba084, false, true, "W weight gradient"},
    [ACT_B] = {0xc9501c, true, true, "B = I then W"},
};

/* The larger first. */
enum { N_SIZES = 2 };
static const NumberSize number_sizes[N_SIZES] = {{"", 6.6, 4}, {" s", 4.6, 2.8}};

/* ---- layout ------------------------------------------------------------------------------------------ */

double picture_px(double value)
{
    return round(100 * value) / 100;
}

double picture_x(const Picture *p, double time)
{
    return picture_px((time - p->first) * p->scale);
}

int picture_y(const Picture *p, int rank)
{
    return p->top + rank * LANE_PITCH;
}

static void find_chunks(Picture *p)
{
    const Schedule *s = p->s;
    int *chunk = ARENA_NEW(p->out->arena, int, s->n_stages),
        *n = ARENA_NEW(p->out->arena, int, s->n_ranks);
    for (int stage = 0; stage < s->n_stages; stage++) {
        chunk[stage] = n[s->rank_of_stage[stage]]++;
        if (chunk[stage] >= p->n_chunks) p->n_chunks = chunk[stage] + 1;
    }
    p->chunk = chunk;
}

/* Sets first, n, typical and peak; returns the mean time of all actions, 1 when they take none. */
static double find_times(Picture *p)
{
    double all = 0;
    int n = 0;
    for (int r = 0; r < p->s->n_ranks; r++) {
        const RankReport *times = &p->report->rank[r];
        p->peak = fmax(p->peak, times->peak_activation);
        for (int k = 0; k < p->s->list[r].n; k++) {
            ActionKind kind = p->s->list[r].at[k].kind;
            if (!action_is_compute(kind)) continue;
            p->first = fmin(p->first, times->start[k]);
            p->typical[kind] += times->end[k] - times->start[k];
            p->n[kind]++;
        }
    }
    for (int kind = 0; kind <= ACT_B; kind++) {
        all += p->typical[kind];
        n += p->n[kind];
        if (p->n[kind] > 0) p->typical[kind] /= p->n[kind];
    }
    return all > 0 ? all / n : 1;
}

static int n_digits(const Picture *p)
{
    return snprintf(NULL, 0, "%d", p->s->n_mb - 1);
}

void picture_set_width(Picture *p, double width, double longest)
{
    p->width = ceil(width);
    p->scale = longest > 0 ? p->width / longest : 1;
    for (int kind = 0; kind <= ACT_B; kind++) {
        p->number[kind] = NULL;
        for (int size = N_SIZES - 1; size >= 0; size--)
            if (p->typical[kind] * p->scale >= n_digits(p) * number_sizes[size].digit + 1.5)
                p->number[kind] = &number_sizes[size];
    }
}

Picture picture_measure(TextBuffer *out, const Schedule *s, const ScheduleReport *report)
{
    Picture p = {.out = out,
                 .s = s,
                 .report = report,
                 .first = INFINITY,
                 .top = PICTURE_HEAD + PICTURE_AXIS,
                 .axis = "time"};
    find_chunks(&p);
    double mean = find_times(&p), box = n_digits(&p) * number_sizes[0].digit + 8;
    picture_set_width(&p, fmin(fmax(report->makespan / mean * box, WIDTH_MIN), WIDTH_MAX),
                      report->makespan);
    return p;
}

/* ---- colours ----------------------------------------------------------------------------------------- */

/* share of the way from a colour to another */
static unsigned mixed(unsigned from, unsigned to, double share)
{
    unsigned rgb = 0;
    for (int shift = 0; shift < 24; shift += 8) {
        double a = (from >> shift) & 255, b = (to >> shift) & 255;
        rgb |= (unsigned)lround(a + share * (b - a)) << shift;
    }
    return rgb;
}

/* Later stages of a rank are paler. */
static unsigned colour_of(const Picture *p, ActionKind kind, int chunk)
{
    return mixed(look[kind].rgb, 0xffffff, p->n_chunks > 1 ? 0.6 * chunk / (p->n_chunks - 1) : 0);
}

bool picture_is_dark(const Picture *p, const Action *a)
{
    unsigned rgb = colour_of(p, a->kind, p->chunk[a->stage]);
    return 0.299 * (rgb >> 16) + 0.587 * ((rgb >> 8) & 255) + 0.114 * (rgb & 255) < 145;
}

static void print_stops(TextBuffer *out, const char *offset, unsigned above, unsigned below)
{
    text_append_format(out,
                       "<stop offset=\"%s\" stop-color=\"#%06x\"/><stop offset=\"%s\" "
                       "stop-color=\"#%06x\"/>",
                       offset, above, offset, below);
}

/* The fill of class F0, F1, … by kind and place among the rank's stages. */
static void print_fill(const Picture *p, ActionKind kind, int chunk)
{
    unsigned colour = colour_of(p, kind, chunk), edge = mixed(colour, 0x000000, 0.35);
    text_append_format(p->out, "<linearGradient id=\"%s%d\" x2=\"0\" y2=\"1\">", action_names[kind],
                       chunk);
    print_stops(p->out, ".11", look[kind].edge_above ? edge : colour, colour);
    print_stops(p->out, ".89", colour, look[kind].edge_below ? edge : colour);
    text_append_format(p->out, "</linearGradient><style>.%s%d{fill:url(#%s%d)}</style>\n",
                       action_names[kind], chunk, action_names[kind], chunk);
}

/* ---- head -------------------------------------------------------------------------------------------- */

static void print_escaped(TextBuffer *out, const char *text)
{
    for (; *text; text++) switch (*text) {
        case '<': text_append(out, "&lt;", 4); break;
        case '>': text_append(out, "&gt;", 4); break;
        case '&': text_append(out, "&amp;", 5); break;
        case '"': text_append(out, "&quot;", 6); break;
        default: text_append(out, text, 1);
        }
}

void picture_print_result(const Picture *p)
{
    text_append_format(p->out, "makespan %.6g, work %.6g, bubble %.1f %%", p->report->makespan,
                       p->report->work, 100 * p->report->bubble);
}

/* One cost, or the least and the greatest of the stages. */
static void print_cost(const Picture *p, const char *label, const double *cost_s)
{
    double least = cost_s[0], most = cost_s[0];
    for (int stage = 1; stage < p->s->n_stages; stage++) {
        least = fmin(least, cost_s[stage]);
        most = fmax(most, cost_s[stage]);
    }
    text_append_format(p->out, "%s %.4g", label, least);
    if (most > least) text_append_format(p->out, " to %.4g", most);
}

static void print_costs(const Picture *p)
{
    const Costs *costs = &p->report->costs;
    if (!costs->f_s) return;
    print_cost(p, "costs F", costs->f_s);
    print_cost(p, ", I", costs->i_s);
    print_cost(p, ", W", costs->w_s);
    if (costs->comm > 0) text_append_format(p->out, ", message %.4g", costs->comm);
}

static const char style[] =
    ".n{text-anchor:middle;font-size:11px;pointer-events:none} .d{fill:#1a1a1a} .l{fill:#fff} "
    ".s{font-size:7.5px} .g{fill:#666;font-size:11px} .e{text-anchor:end} .a{stroke:#fff} "
    ".m{fill:#cfd6de;stroke:#6f7d8c;stroke-width:.8} "
    ".k{stroke:#444;stroke-width:.8;stroke-dasharray:2 2} "
    ".q{fill:none;stroke:#555;stroke-width:.6;marker-end:url(#tip)}";

static const char definitions[] =
    "<pattern id=\"idle\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"#f7f7f7\"/>"
    "<path d=\"M0 0V5\" stroke=\"#cfcfcf\" stroke-width=\"1.6\"/></pattern>\n"
    "<marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"8\" "
    "markerHeight=\"8\" orient=\"auto\"><path d=\"M0 .5L6 3L0 5.5z\" fill=\"#555\"/></marker>\n";

static void print_style(const Picture *p)
{
    double narrow = INFINITY; /* white borders must not cover it */
    text_append_format(p->out, "<style>%s</style>\n<defs>%s", style, definitions);
    for (ActionKind kind = 0; kind <= ACT_B; kind++) {
        for (int c = 0; c < p->n_chunks && p->n[kind] > 0; c++) print_fill(p, kind, c);
        if (p->typical[kind] > 0) narrow = fmin(narrow, p->typical[kind] * p->scale);
    }
    text_append_format(p->out, "<style>.a{stroke-width:%.2g}</style></defs>\n",
                       fmin(0.8, 0.12 * narrow));
}

static void print_title(const Picture *p, const Picture *lowest)
{
    const Schedule *s = p->s;
    const char *slash = strrchr(s->name, '/');
    text_append_format(p->out, "<text x=\"%d\" y=\"26\" font-size=\"17\" font-weight=\"bold\">",
                       PICTURE_LEFT);
    print_escaped(p->out, slash ? slash + 1 : s->name);
    text_append_format(p->out,
                       "<tspan font-size=\"12\" font-weight=\"normal\" dx=\"12\">p = %d ranks, "
                       "m = %d microbatches, ",
                       s->n_ranks, s->n_mb);
    if (s->n_stages % s->n_ranks)
        text_append_format(p->out, "%d stages", s->n_stages);
    else
        text_append_format(p->out, "v = %d", s->n_stages / s->n_ranks);
    if (p->n_chunks > 1) text_append_format(p->out, " stages on each, the later the paler");
    text_append_format(p->out, "</tspan></text>\n<text x=\"%d\" y=\"46\">", PICTURE_LEFT);
    if (p == lowest) {
        picture_print_result(p);
        text_append(p->out, "; ", 2);
    }
    print_costs(lowest);
    text_append_format(p->out, "</text>\n");
}

enum { SWATCH = 14, LEGEND_Y = 57, CHARACTER = 7 };

/* A text behind what the caller draws `width` wide at x; returns where the next entry begins. */
static int print_entry(const Picture *p, int x, int width, const char *label)
{
    text_append_format(p->out, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + width + 5, LEGEND_Y + 11,
                       label);
    return x + width + 21 + CHARACTER * (int)strlen(label);
}

static void print_swatch(const Picture *p, int x, const char *attributes)
{
    text_append_format(p->out, "<rect %s x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>",
                       attributes, x, LEGEND_Y, SWATCH, SWATCH);
}

static void print_legend(const Picture *p)
{
    char attributes[40];
    int x = PICTURE_LEFT;
    for (ActionKind kind = 0; kind <= ACT_B; kind++) {
        if (p->n[kind] == 0) continue;
        snprintf(attributes, sizeof attributes, "class=\"%s0\"", action_names[kind]);
        print_swatch(p, x, attributes);
        x = print_entry(p, x, SWATCH, look[kind].label);
    }
    print_swatch(p, x, "fill=\"url(#idle)\"");
    x = print_entry(p, x, SWATCH, "idle");
    print_swatch(p, x, "class=\"m\"");
    print_entry(p, x, SWATCH, "in memory");
}

void picture_print_head(const Picture *p, const Picture *lowest)
{
    int width = PICTURE_LEFT + (int)p->width + PICTURE_RIGHT,
        height = picture_y(lowest, p->s->n_ranks) + PICTURE_BOTTOM;
    text_append_format(
        p->out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
        "%d\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n",
        width, height, width, height);
    print_style(p);
    text_append_format(p->out, "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n");
    print_title(p, lowest);
    print_legend(p);
}
