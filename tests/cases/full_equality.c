// All points of the first grid, in both dtypes on every kernel path, bit for bit; over processes a draw of them in f32.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/equality.h"
#include "kernels/path.h"

static const char *const dtypes[] = {"bf16", "f32"};

enum {
    BATCHES = COUNT(equality_microbatches),
    POINTS = COUNT(equality_models) * BATCHES * EQUALITY_LAYOUTS,
    DRAWN_PER_PP = 16 /* f32 points over processes, for each path and pp_size */
};

/* Point i of the grid; the layout changes fastest, the model slowest. */
static Point point_at(int i, const char *dtype, const char *path)
{
    Layout layout = equality_layout(i % EQUALITY_LAYOUTS);
    int batch = i / EQUALITY_LAYOUTS;
    Point point = equality_point(equality_models[batch / BATCHES].name,
                                 equality_microbatches[batch % BATCHES], &layout);
    point.dtype = dtype;
    point.path = path;
    return point;
}

/* Calls check for both dtypes on each path of this machine, or on that of SW_TEST_ISA alone. Returns the sum. */
static int on_every_path(int check(const char *dtype, const char *path))
{
    const char *only = getenv("SW_TEST_ISA");
    int failed = 0;
    for (int p = 0; p < KERNEL_PATH_COUNT; p++) {
        const char *path = kernel_path_name((KernelPath)p);
        if (!kernel_path_works((KernelPath)p) || (only && strcmp(only, path) != 0)) continue;
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            time_t begin = time(NULL);
            int differ = check(dtypes[d], path);
            printf("  %s on %s: %d differ, %.0f s\n", dtypes[d], path, differ,
                   difftime(time(NULL), begin));
            fflush(stdout);
            failed += differ;
        }
    }
    return failed;
}

static int check_all(const char *dtype, const char *path)
{
    static Point points[POINTS];
    for (int i = 0; i < POINTS; i++) points[i] = point_at(i, dtype, path);
    char *folder = equality_folder();
    int failed = points_check(folder, points, POINTS);
    folder_remove(folder);
    return failed;
}

static void equality__holds_over_the_grid(void **state)
{
    (void)state;
    if (SANITIZED) {
        printf("  skipped: with a sanitizer this takes hours, and test_equality.c has a spread\n");
        skip();
    }
    printf("  %d points each\n", (int)POINTS);
    assert_int_equal(on_every_path(check_all), 0);
}

/* In bf16 all; in f32, whose bytes travel likewise, as many of each pp_size, of any model, batch and the rest. */
static int check_launched(const char *dtype, const char *path)
{
    static Point points[POINTS];
    static unsigned draw = 20261130;
    bool all = !strcmp(dtype, "bf16");
    int n = 0, n_wanted = all ? POINTS : 4 * DRAWN_PER_PP, of_pp[5] = {0};
    while (n < n_wanted) {
        draw = draw * 1664525u + 1013904223u;
        points[n] = point_at(all ? n : (int)((uint64_t)draw * POINTS >> 32), dtype, path);
        points[n].processes = true;
        if (!all && of_pp[points[n].layout.pp] == DRAWN_PER_PP) continue;
        of_pp[points[n++].layout.pp]++;
    }
    char *folder = equality_folder();
    int failed = points_check(folder, points, n);
    folder_remove(folder);
    return failed;
}

static void equality__holds_over_processes(void **state)
{
    (void)state;
#ifndef SW_MPIEXEC
    skip();
#endif
    if (SANITIZED) skip();
    printf("  %d points each in bf16, %d in f32\n", (int)POINTS, 4 * (int)DRAWN_PER_PP);
    assert_int_equal(on_every_path(check_launched), 0);
}

/* An argument chooses tests by pattern. */
int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equality__holds_over_the_grid),
        cmocka_unit_test(equality__holds_over_processes),
    };
    return cmocka_run_group_tests_name("cases/full_equality", tests, NULL, NULL);
}
