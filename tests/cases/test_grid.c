// A seeded draw of points of the grid against the plain run, bit for bit; full_grid.c takes all, part by part.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/grid.h"

/* With sanitizers a point takes ten times as long. */
enum { DRAWN = SANITIZED ? 16 : 200 };

static void grid__holds_on_drawn_points(void **state)
{
    (void)state;
    Point points[DRAWN];
    unsigned draw = 20261130;
    for (int n = 0; n < DRAWN;) {
        draw = draw * 1664525u + 1013904223u;
        n += grid_point(&points[n], (int)((uint64_t)draw * GRID_POINTS >> 32));
    }
    char *folder = grid_folder(GRID_LAYERS);
    int failed = points_check(folder, points, DRAWN);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void grid__every_value_of_every_axis_is_a_point(void **state)
{
    (void)state;
    int n = 0, n_bf16 = 0, n_tied = 0, n_hf = 0, n_processes = 0, n_recompute = 0, n_eight = 0;
    for (int i = 0; i < GRID_POINTS; i++) {
        Point p;
        if (!grid_point(&p, i)) continue;
        n++;
        n_bf16 += !strcmp(p.dtype, "bf16");
        n_tied += !strcmp(p.model, "tied");
        n_hf += !strcmp(p.form, "hf");
        n_processes += p.processes;
        n_recompute += p.layout.recompute == 0.5;
        n_eight += p.layout.pp == 8;
    }
    printf("  %d points\n", n);
    assert_int_equal(2 * n_bf16, n);
    assert_int_equal(2 * n_tied, n);
    assert_int_equal(2 * n_hf, n);
    assert_int_equal(2 * n_processes, n);
    assert_int_equal(3 * n_recompute, n);
    assert_int_equal(n_eight, 16 * 4 * 48); /* dualpipev never */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grid__every_value_of_every_axis_is_a_point),
        cmocka_unit_test(grid__holds_on_drawn_points),
    };
    return cmocka_run_group_tests_name("cases/grid", tests, NULL, NULL);
}
