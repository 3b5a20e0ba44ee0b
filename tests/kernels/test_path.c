#include "kernels/kernel_check.h"

static void path__the_best_one_and_all_before_it_work(void **state)
{
    (void)state;
    const KernelPath best = kernel_path_best();
    for (int path = 0; path < KERNEL_PATH_COUNT; path++)
        assert_int_equal(kernel_path_works((KernelPath)path), path <= (int)best);
}

static void path__is_found_by_its_name(void **state)
{
    (void)state;
    for (int path = 0; path <= (int)kernel_path_best(); path++) {
        KernelPath found;
        assert_int_equal(kernel_path_find(&found, kernel_path_name((KernelPath)path), "x"), OK);
        assert_int_equal(found, path);
        Backend be;
        backend_cpu_init(&be, found, 1);
        assert_string_equal(be.name, kernel_path_name(found));
    }
    KernelPath found;
    assert_int_equal(kernel_path_find(&found, "auto", "x"), OK);
    assert_int_equal(found, kernel_path_best());
}

/* No path of ours has that name, as little as this machine might have one of ours. */
static void path__what_a_machine_cannot_do_is_refused(void **state)
{
    (void)state;
    KernelPath found = KERNEL_PATH_COUNT;
    assert_int_equal(kernel_path_find(&found, "avx9", "run.yaml"), ERR_USAGE);
    assert_int_equal(found, KERNEL_PATH_COUNT);
    const char *message = status_message();
    assert_non_null(strstr(message, "run.yaml: train.isa: this machine cannot (found avx9"));
    assert_non_null(strstr(message, kernel_path_name(kernel_path_best())));
    assert_non_null(strstr(message, ", generic)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(path__the_best_one_and_all_before_it_work),
        cmocka_unit_test(path__is_found_by_its_name),
        cmocka_unit_test(path__what_a_machine_cannot_do_is_refused),
    };
    return cmocka_run_group_tests_name("kernels/path", tests, NULL, NULL);
}
