// A dozen kills, by threads and processes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/kills.h"

static void kills__leave_what_can_be_resumed(void **state)
{
    (void)state;
    kills_check(kill_plans, COUNT(kill_plans), 12, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kills__leave_what_can_be_resumed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
