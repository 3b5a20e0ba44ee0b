#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "train/stop_before.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 2026-11-30, a Monday, 18:00:00 in the machine's zone. */
static time_t six_o_clock(void)
{
    struct tm now = {.tm_year = 126, .tm_mon = 10, .tm_mday = 30, .tm_hour = 18, .tm_isdst = -1};
    return mktime(&now);
}

static void stop_before__times_and_durations(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double seconds;
    } rows[] = {
        {"18:30", 1800},
        {"18:00:01", 1},
        {"17:59", 86400 - 60}, /* tomorrow */
        {"18:00", 86400},
        {"7:05", 13 * 3600 + 300},
        {"2026-11-30T18:30", 1800},
        {"2026-12-01T18:00:30", 86430},
        {"2h30m", 9000},
        {"90m", 5400},
        {"600", 600},
        {"1.5h", 5400},
        {NULL, INFINITY},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double seconds = -1;
        if (stop_before_seconds(&seconds, rows[i].text, "a.yaml", six_o_clock()) != OK)
            fail_msg("%s: %s", rows[i].text, status_message());
        if (seconds != rows[i].seconds)
            fail_msg("%s: %g, expected %g", rows[i].text, seconds, rows[i].seconds);
    }
}

static void stop_before__what_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const forms[] = {"",
                                        "soon",
                                        "24:00",
                                        "18:60",
                                        "18:3x",
                                        "18:30:",
                                        "18:30:99",
                                        "2026-13-01T10:00",
                                        "2026-02-30T10:00",
                                        "2026-12-01",
                                        "2026-12-01T",
                                        "-1h",
                                        "0",
                                        "2w",
                                        "18:30 PM",
                                        "18:3",
                                        "18: 30",
                                        "18:30:5",
                                        "2026-12-1T18:30",
                                        "2h30",
                                        "0h3",
                                        "99999999999h"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (stop_before_check_form(forms[i], "a.yaml") != ERR_USAGE) fail_msg("%s", forms[i]);
        assert_non_null(strstr(status_message(), "a.yaml: train.stop_before: found "));
    }
    double seconds = 7;
    assert_int_equal(stop_before_check_form("2026-11-30T17:59", "a.yaml"), OK);
    assert_int_equal(stop_before_seconds(&seconds, "2026-11-30T17:59", "a.yaml", six_o_clock()),
                     ERR_USAGE);
    assert_non_null(strstr(status_message(), "expected a time to come"));
    assert_true(seconds == INFINITY || seconds == 7);
}

static void deadline__leaves_time_for_a_step_and_the_saves(void **state)
{
    (void)state;
    double now = clock_seconds();
    Deadline d = {.at = now + 100, .step_began = now, .longest_step = 30, .longest_save = 40};
    assert_false(deadline_is_near(&d, (Waits){1, 0})); /* 77 of 100 seconds */
    assert_true(deadline_is_near(&d, (Waits){2, 0}));
    d.longest_step = 55;
    assert_true(deadline_is_near(&d, (Waits){1, 0}));
    d.longest_step = 1;
    d.step_began = now - 60; /* this one is longer than any before */
    assert_true(deadline_is_near(&d, (Waits){1, 0}));
    deadline_step_ends(&d);
    assert_true(d.longest_step >= 60);
    deadline_save_took(&d, 3);
    assert_true(d.longest_save == 40);
    d = (Deadline){.at = now + 100, .step_began = now, .longest_step = 30, .longest_save = 10};
    assert_false(deadline_is_near(&d, (Waits){1, 2}));
    deadline_export_took(&d, 30);
    deadline_export_took(&d, 1);
    assert_false(deadline_is_near(&d, (Waits){1, 1})); /* 77 seconds */
    assert_true(deadline_is_near(&d, (Waits){1, 2}));
    d.at = 0;
    assert_false(deadline_is_near(&d, (Waits){2, 0}));
}

/* Of a run of 10 steps that saves after each 2 and exports after each 5. */
static void deadline__waits_for_all_that_is_due(void **state)
{
    (void)state;
    static const struct {
        int64_t step;
        bool busy;
        Waits want;
    } rows[] = {
        {1, false, {1, 0}}, {2, false, {2, 0}}, {1, true, {2, 0}}, {2, true, {3, 0}},
        {5, false, {1, 1}}, {9, false, {1, 2}}, /* hf/step-000010 and hf/final */
    };
    const CheckpointSection with = {.interval = 2, .hf_interval = 5},
                            without = {.interval = -1, .hf_interval = -1};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Waits got = deadline_waits(&with, rows[i].step, 10, rows[i].busy);
        assert_int_equal(got.saves, rows[i].want.saves);
        assert_int_equal(got.exports, rows[i].want.exports);
    }
    assert_int_equal(deadline_waits(&without, 5, 10, false).saves, 1);
    assert_int_equal(deadline_waits(&without, 5, 10, false).exports, 0);
    assert_int_equal(deadline_waits(&without, 9, 10, false).exports, 1);
}

int main(void)
{
    setenv("TZ", "UTC", 1); /* no night of 23 hours */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_before__times_and_durations),
        cmocka_unit_test(stop_before__what_is_none_is_refused),
        cmocka_unit_test(deadline__waits_for_all_that_is_due),
        cmocka_unit_test(deadline__leaves_time_for_a_step_and_the_saves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
