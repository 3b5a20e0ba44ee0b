// After the first steps a step asks the system for no memory: a longer run allocates as often as a
// shorter one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/runs.h"

#include <errno.h>
#include <stdatomic.h>

#if defined(__GLIBC__) && !SANITIZED
#define OWN_MALLOC true
#else
#define OWN_MALLOC false
#endif

static atomic_long n_allocations;

#if OWN_MALLOC
/* In place of the C library's, for this program and all libraries it uses; glibc offers its own under
 * other names. memalign is left out: nobody calls it but libgomp, which makes and frees a team for
 * each parallel region that runs on one thread. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *at, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
    n_allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    n_allocations++;
    return __libc_calloc(n, bytes);
}

void *realloc(void *at, size_t bytes)
{
    n_allocations++;
    return __libc_realloc(at, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    n_allocations++;
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes)
{
    n_allocations++;
    *out = __libc_memalign(align, bytes);
    return *out ? 0 : ENOMEM;
}
#endif

/* Allocations of a whole run of that many steps: start, steps, checkpoint and export. */
static long count_allocations(const char *folder, int steps, const Layout *layout)
{
    Arguments args = {0};
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/run", folder);
    add_set(&args, "train.steps=%d", steps);
    add_layout(&args, layout);
    long before = n_allocations;
    assert_true(command_runs(&command_train, &args));
    long n = n_allocations - before;

    /* The arenas' marks stand still from the second step on, but for the text of the metrics, whose
     * numbers are now longer, now shorter. */
    json_t *metrics = read_metrics(path_in(folder, "run/metrics.jsonl"));
    const json_t *second = json_object_get(json_array_get(metrics, 1), "memory/peak_bytes");
    const json_t *last =
        json_object_get(json_array_get(metrics, json_array_size(metrics) - 1), "memory/peak_bytes");
    for (size_t r = 0; r < (size_t)layout->pp; r++) {
        json_int_t then = json_integer_value(json_array_get(second, r));
        json_int_t now = json_integer_value(json_array_get(last, r));
        assert_true(then > 100000 && now >= then && now < then + 4096);
    }
    json_decref(metrics);
    folder_remove(strdup(path_in(folder, "run")));
    return n;
}

static void allocation__a_step_takes_no_memory_from_the_system(void **state)
{
    (void)state;
    if (!OWN_MALLOC) {
        printf("  skipped: not glibc's allocator\n");
        skip();
    }
    static const Layout layouts[] = {
        {1, "1f1b", 0, 1, NULL, 0}, {1, "1f1b", 0.5, 2, NULL, 0}, {2, "gpipe", 0, 1, NULL, 0},
        {3, "1f1b", 1, 2, NULL, 0}, {4, "1f1b", 0, 1, NULL, 0},
    };
    static const struct {
        FixtureKind kind;
        const char *dtype;
    } models[] = {{FIXTURE_MOE, "f32"}, {FIXTURE_MOE, "bf16"}, {FIXTURE_TIED, "f32"}};
    int failed = 0;
    for (size_t k = 0; k < COUNT(models); k++) {
        char *folder = folder_make(), text[1024];
        fixture_write_model(path_in(folder, "model"), &(Fixture){.kind = models[k].kind});
        fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_EQ, 1, 1);
        snprintf(text, sizeof text,
                 "model: {path: %s/model, dtype: %s}\n"
                 "data: {train: [%s/rows.jsonl], format: ids}\n"
                 "train: {global_batch_size: 4}\n",
                 folder, models[k].dtype, folder);
        write_text(path_in(folder, "config.yaml"), text);
        for (size_t i = 0; i < COUNT(layouts); i++) {
            enum { FEW = 3, MANY = 23 };
            count_allocations(folder, FEW, &layouts[i]); /* what libraries take once */
            long few = count_allocations(folder, FEW, &layouts[i]);
            long many = count_allocations(folder, MANY, &layouts[i]);
            printf("  pp %d: %ld allocations with %d steps, %ld with %d\n", layouts[i].pp, few, FEW,
                   many, MANY);
            assert_true(few > 100); /* else they are not counted at all */
            /* Pools of messages may grow once more when ranks meet in another order. */
            if (many < few + MANY - FEW) continue;
            print_layout("layout", &layouts[i]);
            failed++;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocation__a_step_takes_no_memory_from_the_system),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
