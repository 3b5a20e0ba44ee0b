// The whole grid, in parts: each run goes on where the one before stopped.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/grid.h"

#include <time.h>

/*
 * How many are done stands in the file SW_GRID_STATE (grid.state in the build folder unless set); a run takes points for
 * SW_GRID_MINUTES (10). The order is a fixed permutation, so that any part has some of everything.
 */
enum { PART = 60, STRIDE = 7919 };

static int grid_done(const char *path)
{
    int n = 0;
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%d", &n) != 1) n = 0;
    if (file) fclose(file);
    return n;
}

static void grid__holds_everywhere(void **state)
{
    (void)state;
    if (SANITIZED) skip();
    const char *path = getenv("SW_GRID_STATE"), *minutes = getenv("SW_GRID_MINUTES");
    if (!path) path = SW_BINARY_DIR "/grid.state";
    double limit = 60 * (minutes ? atof(minutes) : 10);
    int done = grid_done(path), failed = 0;
    time_t begin = time(NULL);
    char *folder = grid_folder(GRID_LAYERS);
    while (done < GRID_POINTS && !failed && difftime(time(NULL), begin) < limit) {
        Point points[PART];
        int n = 0, end = done;
        for (; end < GRID_POINTS && n < PART; end++)
            n += grid_point(&points[n], (int)((int64_t)end * STRIDE % GRID_POINTS));
        failed = points_check(folder, points, n);
        if (failed) break;
        done = end;
        char text[64];
        snprintf(text, sizeof text, "%d of %d\n", done, GRID_POINTS);
        write_text(path, text);
        printf("  %s", text);
        fflush(stdout);
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(grid__holds_everywhere)};
    return cmocka_run_group_tests_name("cases/full_grid", tests, NULL, NULL);
}
