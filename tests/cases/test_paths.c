// Kernel paths: what is promised holds on each that this machine has, and the files of a run name it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/run_folder.h"
#include "cli/command.h"
#include "kernels/path.h"

static char *make_folder(void)
{
    return run_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 1,
                      "train: {global_batch_size: 3}\n"
                      "lr_schedule: {type: constant, warmup: 0}\n");
}

static bool run_on(const char *folder, const char *output, const char *path, int steps,
                   const char *dtype, const Layout *layout, bool resume)
{
    Arguments args = {0};
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/%s", folder, output);
    add_set(&args, "train.steps=%d", steps);
    add_set(&args, "model.dtype=%s", dtype);
    if (layout) add_layout(&args, layout);
    if (resume) arguments_add(&args, "--resume");
    add_set(&args, "train.isa=%s", path);
    Status status = command_inside(&command_train, &args, &(World){.size = 1, .n_cpus = 2});
    if (status != OK) fprintf(stderr, "  %s on %s: %s\n", output, path, status_message());
    arguments_free(&args);
    return status == OK;
}

static bool says(const char *folder, const char *file, const char *words)
{
    char *text = read_text(path_in(folder, "%s", file), NULL);
    bool found = strstr(text, words) != NULL;
    if (!found) fprintf(stderr, "  %s does not say \"%s\"\n", file, words);
    free(text);
    return found;
}

static void paths__a_run_is_the_same_on_every_layout(void **state)
{
    (void)state;
    static const Layout layouts[] = {{1, "1f1b", 0, 1, NULL, 0}, {3, "gpipe", 0.5, 2, NULL, 0}};
    static const char *const dtypes[] = {"f32", "bf16"};
    char *folder = make_folder(), name[64], first[64];
    int failed = 0;
    for (int p = 0; p <= (int)kernel_path_best(); p++)
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (size_t i = 0; i < COUNT(layouts); i++) {
                const char *path = kernel_path_name((KernelPath)p);
                snprintf(first, sizeof first, "%s-%s-0", path, dtypes[d]);
                snprintf(name, sizeof name, "%s-%s-%zu", path, dtypes[d], i);
                bool ok = run_on(folder, name, path, 3, dtypes[d], &layouts[i], false) &&
                          (i == 0 ||
                           same_run(path_in(folder, "%s", name), path_in(folder, "%s", first), 3));
                if (!ok) fprintf(stderr, "  %s\n", name);
                failed += !ok;
            }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void paths__are_named_in_the_files_of_a_run(void **state)
{
    (void)state;
    const char *best = kernel_path_name(kernel_path_best());
    char *folder = make_folder(), words[64];
    assert_true(run_on(folder, "run", "auto", 1, "f32", NULL, false));
    snprintf(words, sizeof words, "isa: %s", best);
    assert_true(says(folder, "run/config.yaml", words));
    snprintf(words, sizeof words, "kernels %s", best);
    assert_true(says(folder, "run/log.txt", words));
    snprintf(words, sizeof words, "\"kernel_path\": \"%s\"", best);
    assert_true(says(folder, "run/checkpoints/step-000001/state.json", words));
    folder_remove(folder);
}

static void paths__a_resume_on_another_says_so(void **state)
{
    (void)state;
    const char *best = kernel_path_name(kernel_path_best());
    char *folder = make_folder(), words[64];
    assert_true(run_on(folder, "run", best, 1, "f32", NULL, false));
    assert_true(run_on(folder, "run", best, 2, "f32", NULL, true));
    snprintf(words, sizeof words, "made on kernel path %s", best);
    char *text = read_text(path_in(folder, "run/log.txt"), NULL);
    assert_null(strstr(text, words));
    free(text);
    assert_true(run_on(folder, "run", "generic", 3, "f32", NULL, true));
    if (kernel_path_best() != KERNEL_GENERIC) assert_true(says(folder, "run/log.txt", words));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths__a_run_is_the_same_on_every_layout),
        cmocka_unit_test(paths__are_named_in_the_files_of_a_run),
        cmocka_unit_test(paths__a_resume_on_another_says_so),
    };
    return cmocka_run_group_tests_name("cases/paths", tests, NULL, NULL);
}
