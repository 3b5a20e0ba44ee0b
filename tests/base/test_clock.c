#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void clock__never_goes_back(void **state)
{
    (void)state;
    double last = clock_seconds();
    for (int i = 0; i < 10000; i++) {
        double now = clock_seconds();
        assert_true(now >= last);
        last = now;
    }
}

static void clock__sleeps_at_least_as_long_as_asked(void **state)
{
    (void)state;
    double begin = clock_seconds();
    clock_sleep_us(20000);
    double slept = clock_seconds() - begin;
    if (slept < 0.02 || slept > 5) fail_msg("slept %g s, asked for 0.02", slept);
    begin = clock_seconds();
    clock_sleep_us(0);
    clock_sleep_us(-1);
    assert_true(clock_seconds() - begin < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clock__never_goes_back),
        cmocka_unit_test(clock__sleeps_at_least_as_long_as_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
