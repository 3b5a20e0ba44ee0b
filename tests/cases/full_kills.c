// Two hundred kills, at other moments.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/kills.h"

static void kills__of_all_moments_leave_what_can_be_resumed(void **state)
{
    (void)state;
    kills_check(200, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kills__of_all_moments_leave_what_can_be_resumed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
