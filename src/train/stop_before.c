#include "train/stop_before.h"
#include "base/clock.h"
#include "io/options.h"

#include <math.h>
#include <string.h>

enum { LONGEST_DAYS = 10000 }; /* more is a slip */

typedef struct Moment {
    bool dated, timed; /* neither: a duration */
    struct tm parts;
    double seconds;
} Moment;

/* Exactly n digits at *text; moves it on. */
static bool read_digits(const char **text, size_t n, int *out)
{
    if (strspn(*text, "0123456789") < n) return false;
    for (*out = 0; n > 0; n--) *out = *out * 10 + (*(*text)++ - '0');
    return true;
}

/* That sign, and two digits after it. */
static bool read_two_after(const char **text, char sign, int *out)
{
    return *(*text)++ == sign && read_digits(text, 2, out);
}

/* "18:30", "7:05" or "18:30:15", all of it. */
static bool read_clock(struct tm *out, const char *text)
{
    out->tm_sec = 0;
    if (!read_digits(&text, text[0] && text[1] == ':' ? 1 : 2, &out->tm_hour)) return false;
    if (!read_two_after(&text, ':', &out->tm_min)) return false;
    if (*text && !read_two_after(&text, ':', &out->tm_sec)) return false;
    return !*text && out->tm_hour <= 23 && out->tm_min <= 59 && out->tm_sec <= 59;
}

/* "2026-12-01T…", as long as there is such a day. */
static bool read_date(struct tm *out, const char *text)
{
    int year, month, day;
    if (!read_digits(&text, 4, &year) || !read_two_after(&text, '-', &month) ||
        !read_two_after(&text, '-', &day) || *text++ != 'T' || !read_clock(out, text))
        return false;
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
    if (out->timed || (option_duration(text, &out->seconds) && out->seconds > 0 &&
                       out->seconds <= LONGEST_DAYS * 86400.))
        return OK;
    return FAIL(ERR_USAGE,
                "%s: train.stop_before: found %s, expected a time (18:30, 2026-12-01T18:30) or a "
                "duration (2h30m, or seconds; at most %dd)",
                place, *text ? text : "nothing", LONGEST_DAYS);
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

Deadline deadline_begin(double at, int64_t checkpoint_bytes)
{
    double guess = (double)checkpoint_bytes / 1e8;
    return (Deadline){.at = at, .longest_save = guess, .longest_export = guess};
}

void deadline_step_ends(Deadline *d)
{
    d->longest_step = fmax(d->longest_step, clock_seconds() - d->step_began);
}

void deadline_save_took(Deadline *d, double seconds)
{
    d->longest_save = fmax(d->longest_save, seconds);
}

void deadline_export_took(Deadline *d, double seconds)
{
    d->longest_export = fmax(d->longest_export, seconds);
}

Waits deadline_waits(const CheckpointSection *c, int64_t step, int64_t n_steps, bool busy)
{
    Waits w = {.saves = 1 + busy + step_is_due(step, c->interval),
               .exports = step_is_due(step, c->hf_interval)};
    if (step + 1 == n_steps) w.exports += 1 + step_is_due(n_steps, c->hf_interval);
    return w;
}

bool deadline_is_near(const Deadline *d, Waits waits)
{
    double now = clock_seconds(), step = fmax(d->longest_step, now - d->step_began);
    double wait = waits.saves * d->longest_save + waits.exports * d->longest_export;
    return d->at > 0 && now + 1.1 * (step + wait) > d->at;
}
