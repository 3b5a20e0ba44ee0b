// All layouts of the grid against the plain run, bit for bit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/equality.h"

static void equality__holds_over_the_grid(void **state)
{
    (void)state;
    if (SANITIZED) {
        printf("  skipped: with a sanitizer this takes half an hour, and test_equality.c has a "
               "spread\n");
        skip();
    }
    Layout layouts[EQUALITY_GRID + COUNT(equality_splits)];
    for (int i = 0; i < EQUALITY_GRID; i++) layouts[i] = equality_layout(i);
    memcpy(layouts + EQUALITY_GRID, equality_splits, sizeof equality_splits);
    int failed = 0;
    for (size_t m = 0; m < COUNT(equality_models); m++) {
        char *folder = equality_folder(&equality_models[m].fixture);
        for (size_t k = 0; k < COUNT(equality_microbatches); k++)
            failed += equality_check(folder, equality_models[m].name, equality_microbatches[k],
                                     layouts, COUNT(layouts));
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equality__holds_over_the_grid)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
