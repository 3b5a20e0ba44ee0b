/* Files as torch.distributed.pipelining writes them (scripts/golden/torch_schedules.py), by name KIND-pP-mM-vV. */
#include "schedule_test.h"

#include <dirent.h>

#define FOLDER SW_SOURCE_DIR "/tests/pipeline/torch/"

static void torch__files_are_read_and_run(void **state)
{
    DIR *folder = opendir(FOLDER);
    assert_non_null(folder);
    int n = 0;
    for (const struct dirent *file; (file = readdir(folder)); reset(state)) {
        int p, m, v;
        const char *numbers = strstr(file->d_name, "-p");
        if (!numbers || sscanf(numbers, "-p%d-m%d-v%d", &p, &m, &v) != 3) continue;
        if (strncmp(file->d_name, "1f1b", 4) == 0) continue; /* the one that cannot run */
        char path[1024];
        snprintf(path, sizeof path, FOLDER "%s", file->d_name);
        Schedule *s = build(path, 0, 0);
        assert_int_equal(s->n_ranks, p);
        assert_int_equal(s->n_mb, m);
        assert_int_equal(s->n_stages, p * v);
        assert_int_equal(s->ascending, strncmp(file->d_name, "looped", 6) != 0);
        ScheduleReport report = simulate(s, 1, 1, 1, 0);
        for (int r = 0; r < p; r++) assert_true(report.rank[r].busy == 3 * m * v);
        char *comms = strstr(path, "-comms");
        if (comms) {
            strcpy(comms, ".csv");
            assert_string_equal(print(SCHEDULE_CSV, s), print(SCHEDULE_CSV, build(path, 0, 0)));
        }
        n++;
    }
    closedir(folder);
    assert_int_equal(n, 18);
}

/* Orders that both have: the same cells, overlapped pairs one after the other. */
static void torch__orders_are_those_of_the_same_name(void **state)
{
    (void)state;
    static const struct {
        const char *file, *name;
        int p, m, v;
    } rows[] = {
        {"gpipe-p2-m3-v1", "gpipe", 2, 3, 1},
        {"interleaved-p2-m4-v2", "interleaved", 2, 4, 2},
        {"interleaved-p3-m5-v2", "interleaved", 3, 5, 2},
        {"zero-bubble-p3-m6-v1", "zb_h1", 3, 6, 1},
        {"zero-bubble-p2-m4-v2", "zb1p", 2, 4, 2},
        {"zbv-p2-m4-v2", "zbv", 2, 4, 2},
        {"zbv-p4-m3-v2", "zbv", 4, 3, 2},
        {"dualpipev-p3-m7-v2", "dualpipev", 3, 7, 2},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        char path[1024];
        snprintf(path, sizeof path, FOLDER "%s.csv", rows[k].file);
        Schedule *own = build_virtual(rows[k].name, rows[k].p, rows[k].m, rows[k].v);
        assert_string_equal(print(SCHEDULE_CSV, own), print(SCHEDULE_CSV, build(path, 0, 0)));
    }
}

/* torch 2.9.1 tells for 1f1b an order in which the last rank's forwards come one too late; it does not run that itself. */
static void torch__an_order_that_cannot_run_is_refused(void **state)
{
    (void)state;
    Schedule *s = NULL;
    ScheduleRequest request = {.name = FOLDER "1f1b-p4-m6-v1.csv"};
    assert_refused(schedule_build(&s, &request, &arena), ERR_FORMAT, "0F6 is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(torch__files_are_read_and_run),
        ARENA_TEST(torch__orders_are_those_of_the_same_name),
        ARENA_TEST(torch__an_order_that_cannot_run_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
