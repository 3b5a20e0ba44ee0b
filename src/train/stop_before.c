#include "train/stop_before.h"
#include "base/clock.h"
#include "io/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Moment {
    bool dated, timed; /* neither: a duration */
    struct tm parts;
    double seconds;
} Moment;

static bool in_range(const struct tm *t)
{
    return t->tm_hour <= 23 && t->tm_min <= 59 && t->tm_sec <= 59;
}

/* "18:30" or "18:30:15", all of it. */
static bool read_clock(struct tm *out, const char *text)
{
    int hour, minute, second = 0, end = 0;
    if (text[0] < '0' || text[0] > '9') return false;
    if (sscanf(text, "%2d:%2d%n", &hour, &minute, &end) < 2 || !end) return false;
    text += end;
    if (*text && (sscanf(text, ":%2d%n", &second, &end) < 1 || text[end])) return false;
    out->tm_hour = hour;
    out->tm_min = minute;
    out->tm_sec = second;
    return in_range(out) && minute >= 0 && second >= 0;
}

/* "2026-12-01T…", as long as there is such a day. */
static bool read_date(struct tm *out, const char *text)
{
    int year, month, day, end = 0;
    if (sscanf(text, "%4d-%2d-%2dT%n", &year, &month, &day, &end) < 3 || !end) return false;
    if (!read_clock(out, text + end)) return false;
    out->tm_year = year - 1900;
    out->tm_mon = month - 1;
    out->tm_mday = day;
    struct tm noon = {
        .tm_year = out->tm_year, .tm_mon = out->tm_mon, .tm_mday = day, .tm_hour = 12};
    return mktime(&noon) != -1 && noon.tm_mon == month - 1 && noon.tm_mday == day;
}

static Status read_moment(Moment *out, const char *text, const char *place)
{
    *out = (Moment){0};
    out->dated = strchr(text, 'T') && read_date(&out->parts, text);
    out->timed = out->dated || read_clock(&out->parts, text);
    if (out->timed || (option_duration(text, &out->seconds) && out->seconds > 0)) return OK;
    return FAIL(ERR_USAGE,
                "%s: train.stop_before: found %s, expected a time (18:30, 2026-12-01T18:30) or a "
                "duration (2h30m, or seconds)",
                place, text);
}

Status stop_before_check_form(const char *text, const char *place)
{
    Moment moment;
    return text ? read_moment(&moment, text, place) : OK;
}

Status stop_before_seconds(double *out, const char *text, const char *place, time_t now)
{
    Moment moment;
    *out = INFINITY;
    if (!text) return OK;
    TRY(read_moment(&moment, text, place));
    if (!moment.timed) {
        *out = moment.seconds;
        return OK;
    }
    struct tm then = moment.parts;
    if (!moment.dated) {
        localtime_r(&now, &then);
        then.tm_hour = moment.parts.tm_hour;
        then.tm_min = moment.parts.tm_min;
        then.tm_sec = moment.parts.tm_sec;
    }
    then.tm_isdst = -1;
    struct tm tomorrow = then;
    double left = difftime(mktime(&then), now);
    if (left <= 0 && !moment.dated) {
        tomorrow.tm_mday++;
        left = difftime(mktime(&tomorrow), now);
    }
    if (left <= 0)
        return FAIL(ERR_USAGE, "%s: train.stop_before: found %s, expected a time to come", place,
                    text);
    *out = left;
    return OK;
}

void deadline_step_ends(Deadline *d)
{
    d->longest_step = fmax(d->longest_step, clock_seconds() - d->step_began);
}

void deadline_save_took(Deadline *d, double seconds)
{
    d->longest_save = fmax(d->longest_save, seconds);
}

bool deadline_is_near(const Deadline *d, int n_saves)
{
    double now = clock_seconds(), step = fmax(d->longest_step, now - d->step_began);
    return d->at > 0 && now + 1.1 * (step + n_saves * d->longest_save) > d->at;
}
