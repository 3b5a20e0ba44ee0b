/* Where the ranks of a mesh stand; their comms are tried in test_comm_collective.c. */
#include "comm/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

static void mesh__prints_the_groups_of_each_axis(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    TextBuffer text;
    text_buffer_init(&text, &arena);
    mesh_print(&text, (int[AXIS_GIVEN]){[AXIS_PP] = 2, [AXIS_DP] = 4, [AXIS_EP] = 2, 1, 1});
    assert_string_equal(text.text, "  pp   2 ranks each: 0,4 | 1,5 | 2,6 | 3,7\n"
                                   "  dp   4 ranks each: 0,1,2,3 | 4,5,6,7\n"
                                   "  ep   2 ranks each: 0,1 | 2,3 | 4,5 | 6,7\n"
                                   "  data 4 ranks each: 0,1,2,3 | 4,5,6,7\n"
                                   "  edp  2 ranks each: 0,2 | 1,3 | 4,6 | 5,7\n");
    text_buffer_init(&text, &arena);
    mesh_print(&text, (int[AXIS_GIVEN]){1, [AXIS_DP] = 32, [AXIS_EP] = 32, 1, [AXIS_TP] = 2});
    assert_non_null(strstr(text.text, "  dp   32 ranks each: 0,2,…,62 | 1,3,…,63\n"));
    assert_non_null(strstr(text.text, "  tp   2 ranks each: 0,1 | 2,3 | 4,5 | 6,7 | 8,9 | 10,11 | "
                                      "12,13 | 14,15 | …\n"));
    assert_null(strstr(text.text, "edp"));
    arena_free(&arena);
}

static void mesh__refuses_what_does_not_fit(void **state)
{
    (void)state;
    assert_int_equal(mesh_check((int[AXIS_GIVEN]){2, 3, 1, 1, 1}, 6), OK);
    assert_int_equal(mesh_check((int[AXIS_GIVEN]){2, 3, 2, 1, 1}, 6), ERR_USAGE);
    assert_string_equal(status_message(), "parallel.ep_size: found 2, expected a divisor of "
                                          "dp_size 3 x sp_size 1");
    assert_int_equal(mesh_check((int[AXIS_GIVEN]){2, 3, 3, 1, 1}, 5), ERR_USAGE);
    assert_non_null(strstr(status_message(), "= 6 ranks, but the world has 5"));
    assert_int_equal(mesh_check((int[AXIS_GIVEN]){2, 0, 1, 1, 1}, 2), ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mesh__prints_the_groups_of_each_axis),
        cmocka_unit_test(mesh__refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
