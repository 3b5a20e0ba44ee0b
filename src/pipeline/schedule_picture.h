#pragma once
/**
 * What the parts of a picture of a schedule share: where things lie and how they look (schedule_picture.c), lanes
 * (schedule_svg.c). Lengths are pixels. Internal to pipeline.
 */
#include "pipeline/schedule_text.h"

enum {
    PICTURE_LEFT = 104,  /* names of the ranks */
    PICTURE_RIGHT = 104, /* their numbers */
    PICTURE_HEAD = 84,   /* name, numbers, legend */
    PICTURE_AXIS = 26,   /* of time, above the first lane */
    PICTURE_BOTTOM = 8,
    LANE = 28,   /* height of the actions */
    MEMORY = 22, /* height of the curve below them, with its air */
    LANE_PITCH = LANE + MEMORY + 12
};

/** How large numbers stand in boxes. */
typedef struct NumberSize {
    const char *class;  /* after that of the colour */
    double digit, rise; /* width of a digit; of the base line above the middle */
} NumberSize;

typedef struct Picture {
    TextBuffer *out;
    const Schedule *s;
    const ScheduleReport *report;
    const int *chunk;                    /* [n_stages] its place among the stages of its rank */
    int n_chunks;                        /* most stages of a rank */
    int top;                             /* of the first lane */
    double first, scale, width;          /* time at the left edge; pixels per unit; of the lanes */
    int n[ACT_B + 1];                    /* actions of each kind */
    double typical[ACT_B + 1];           /* their mean time */
    const NumberSize *number[ACT_B + 1]; /* of each kind; NULL: too narrow for any */
    double peak;                         /* of peak_activation over the ranks */
    const char *axis;                    /* name of the time axis */
} Picture;

/** Everything of a picture that stands alone: wide enough for the numbers, within limits. out->arena holds its parts. */
Picture picture_measure(TextBuffer *out, const Schedule *schedule, const ScheduleReport *report);
/** Lanes `width` wide for `longest` units of time. */
void picture_set_width(Picture *picture, double width, double longest);

double picture_px(double value); /* to hundredths, so that %.7g prints few digits */
double picture_x(const Picture *picture, double time);
int picture_y(const Picture *picture, int rank);
/** Whether white reads better than black on an action's colour. */
bool picture_is_dark(const Picture *picture, const Action *action);

/** From the opening tag to the legend. `lowest` is the picture that ends the page; alone, it is `picture` itself. */
void picture_print_head(const Picture *picture, const Picture *lowest);
/** "makespan 33, work 24, bubble 27.3 %" */
void picture_print_result(const Picture *picture);
