// Two hundred kills, at other moments, and sixty of processes alone.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/kills.h"

static void kills__of_all_moments_leave_what_can_be_resumed(void **state)
{
    (void)state;
    kills_check(kill_plans, COUNT(kill_plans), 200, 2);
}

/* What is left when one process dies and the launcher ends the others, at any moment that is. */
static void kills__of_a_process_leave_what_can_be_resumed(void **state)
{
    (void)state;
    static const KillPlan plans[] = {
        {{"parallel.pp_size=2", "parallel.schedule=zbv"}, KILL_PROCESSES},
        {{"parallel.pp_size=2", "checkpoint.async=false"}, KILL_PROCESSES},
    };
    if (!KILL_PROCESSES) skip();
    kills_check(plans, COUNT(plans), 60, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kills__of_a_process_leave_what_can_be_resumed),
        cmocka_unit_test(kills__of_all_moments_leave_what_can_be_resumed),
    };
    return cmocka_run_group_tests_name("cases/full_kills", tests, NULL, NULL);
}
