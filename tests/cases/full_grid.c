// The whole grid, in parts: each run goes on where the one before stopped.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/grid.h"
#include "io/hash.h"

#include <time.h>

/*
 * How many are done, and by what program, stands in the file SW_GRID_STATE (grid.state in the build folder unless set); a
 * run takes points for SW_GRID_MINUTES (10). Another program begins anew, and so does one that was through. The order is
 * a fixed permutation, so that any part has some of everything.
 */
enum { PART = 60, STRIDE = 7919 };

static int grid_done(const char *path, const char *program)
{
    int n = 0;
    char by[HASH_HEX_BYTES] = "";
    FILE *file = fopen(path, "r");
    bool ours = file && fscanf(file, "%d of %*d by %32s", &n, by) == 2 && !strcmp(by, program);
    if (file) fclose(file);
    return ours && n < GRID_POINTS ? n : 0;
}

static void grid__holds_everywhere(void **state)
{
    (void)state;
    if (SANITIZED) skip();
    const char *path = getenv("SW_GRID_STATE"), *minutes = getenv("SW_GRID_MINUTES");
    if (!path) path = SW_BINARY_DIR "/grid.state";
    double limit = 60 * (minutes ? atof(minutes) : 10);
    char program[HASH_HEX_BYTES];
    assert_int_equal(hash_file(program, "/proc/self/exe"), OK);
    int done = grid_done(path, program), failed = 0;
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
        char text[96];
        snprintf(text, sizeof text, "%d of %d by %s\n", done, GRID_POINTS, program);
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
