/* The passes, the simulator, and building; the named schedules themselves: test_generators.c. */
#include "schedule_test.h"

static void schedule_simulate__knows_unequal_costs_and_messages(void **state)
{
    (void)state;
    /* One microbatch through p ranks: 2 (p-1) messages, none inside a rank. */
    ScheduleReport report = simulate(build("gpipe", 4, 1), 1, 1, 1, 0.25);
    assert_true(report.makespan == 4 * 3 + 6 * 0.25);
    report = simulate(build("zbv", 2, 1), 1, 1, 1, 0.25);
    /* F0 F1 F2 F3 I3 I2 W2 I1 I0 W0, with messages between stages 0 1, 2 3 and back */
    assert_true(report.makespan == 10 + 4 * 0.25);
    /* A slow stage sets the pace: its own work, and the way to it and back. */
    Schedule *s = build("1f1b", 3, 10);
    double f[] = {1, 5, 1}, i[] = {1, 5, 1}, w[] = {1, 5, 1};
    ok(schedule_simulate(&report, s, &(Costs){f, i, w, 0}, 1, &arena));
    assert_true(report.work == 150);
    /* 1 to fill; before its first backward it waits for the last rank's F and B, after its second forward */
    assert_true(report.makespan == 1 + 150 + 2);
}

static void schedule_simulate__weighs_what_waits_for_its_weight_gradient(void **state)
{
    (void)state;
    Schedule *s = build("zb_h1", 4, 8);
    ScheduleReport report;
    Costs costs = costs_uniform(4, 1, 1, 1, 0, &arena);
    ok(schedule_simulate(&report, s, &costs, 0.25, &arena));
    /* rank r: p - r whole microbatches and r in stock */
    for (int r = 0; r < 4; r++) {
        assert_int_equal(report.rank[r].peak_in_flight, 4);
        assert_true(report.rank[r].peak_activation == 4 - r + 0.25 * r);
    }
}

static void schedule_1f1b__starts_backward_as_early_as_it_can(void **state)
{
    (void)state;
    assert_non_null(strstr(print(SCHEDULE_CSV, build("1f1b", 4, 6)),
                           "\n1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1B4,1B5\n"));
    assert_string_equal(print(SCHEDULE_CSV, build("1f1b", 2, 4)),
                        "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n"
                        "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
}

static void schedule_1f1b__takes_fewer_microbatches_than_ranks(void **state)
{
    (void)state;
    Schedule *s = build("1f1b", 4, 2);
    ScheduleReport report = simulate(s, 1, 1, 1, 0);
    int in_flight[] = {2, 2, 2, 1};
    for (int r = 0; r < 4; r++) assert_int_equal(report.rank[r].peak_in_flight, in_flight[r]);
}

static void schedule_build__is_right_for_all_sizes(void **state)
{
    for (int p = 1; p <= 8; p++)
        for (int m = 1; m <= 33; m++) {
            for (int k = 0; k < 2; k++) {
                Schedule *s = build(k ? "1f1b" : "gpipe", p, m); /* checked inside */
                assert_true(s->ascending && s->has_comm && s->has_slots);
                ScheduleReport report = simulate(s, 1, 1, 1, 0);
                assert_true(report.makespan == 3 * (m + p - 1) && report.work == 3 * m);
                for (int r = 0; r < p; r++) {
                    int kept = k ? (p - r < m ? p - r : m) : m;
                    assert_int_equal(report.rank[r].peak_in_flight, kept);
                    /* Receives posted early cost no slot. */
                    assert_int_equal(s->n_slots[r].f_to_i, kept);
                    assert_int_equal(s->n_slots[r].f_to_w, kept);
                    assert_int_equal(s->n_slots[r].i_to_w, 1);
                    assert_true(s->n_slots[r].send <= 3);
                    assert_int_equal(s->n_slots[r].send == 0, p == 1);
                }
            }
            reset(state);
        }
    ok(schedule_check(build("1f1b", 64, 256), NULL, &arena));
}

static int count_of(const ActionList *list, ActionKind kind)
{
    int n = 0;
    for (int k = 0; k < list->n; k++) n += list->at[k].kind == kind;
    return n;
}

static void schedule_add_comm__sends_only_between_ranks(void **state)
{
    (void)state;
    Schedule *s = build("zbv", 4, 8);
    /* rank 3 holds the turn of the V: stages 3 and 4 hand over on the spot */
    assert_int_equal(count_of(&s->list[3], ACT_SEND_F), 8);
    assert_int_equal(count_of(&s->list[3], ACT_RECV_F), 8);
    assert_int_equal(count_of(&s->list[1], ACT_SEND_F), 16);
    assert_int_equal(count_of(&s->list[1], ACT_RECV_B), 16);
    for (int k = 0; k < s->list[3].n; k++) {
        const Action *a = &s->list[3].at[k];
        if (a->kind == ACT_F) assert_int_equal(a->to.f_to_i >= 0, a->stage == 3);
        if (a->kind == ACT_I) assert_int_equal(a->to.i_to_w >= 0, a->stage == 4);
    }
}

static void schedule_hoist_receives__posts_before_the_previous_action(void **state)
{
    (void)state;
    TextBuffer text;
    text_buffer_init(&text, &arena);
    schedule_print_comm_csv(&text, build("gpipe", 2, 3));
    assert_string_equal(text.text,
                        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0F2,0SEND_F2,0B0,0RECV_B1,0B1,0RECV_B2,"
                        "0B2\n"
                        "1RECV_F0,1RECV_F1,1F0,1RECV_F2,1F1,1F2,1B0,1SEND_B0,1B1,1SEND_B1,1B2,"
                        "1SEND_B2\n");
}

static void schedule_build_forward__fits_any_placement(void **state)
{
    (void)state;
    Schedule *like[] = {build("1f1b", 4, 8), build("gpipe", 1, 2), build("zbv", 4, 8),
                        build("interleaved", 2, 4)};
    for (size_t k = 0; k < sizeof like / sizeof like[0]; k++)
        for (int m = 1; m <= 11; m += 5) {
            Schedule *s = NULL;
            ok(schedule_build_forward(&s, like[k], m, &arena));
            assert_true(s->forward_only && s->n_mb == m && s->n_stages == like[k]->n_stages);
            ScheduleReport report = simulate(s, 1, 1, 1, 0);
            assert_true(report.work == m * (s->n_stages / s->n_ranks));
            for (int r = 0; r < s->n_ranks; r++) {
                assert_int_equal(s->n_slots[r].f_to_w, 1);
                assert_int_equal(s->n_slots[r].i_to_w, 0);
                /* One stage per rank: the one that runs and the one that comes in meanwhile at most. */
                if (s->n_stages == s->n_ranks) assert_true(s->n_slots[r].f_to_i <= 2);
            }
        }
}

static void refused(const char *name, int p, int m, int v, Status code, const char *part)
{
    Schedule *s = NULL;
    Status status = schedule_build(&s, &(ScheduleRequest){name, p, m, v}, &arena);
    assert_null(s);
    assert_refused(status, code, part);
}

static void schedule_build__refuses_what_does_not_fit(void **state)
{
    (void)state;
    refused("1fb1", 2, 2, 0, ERR_USAGE, "1f1b");
    refused("nonsense", 2, 2, 0, ERR_USAGE, "nonsense");
    refused("1f1b", 4, 8, 2, ERR_USAGE, "num_virtual_stages");
    refused("gpipe", 4, 8, -1, ERR_USAGE, "num_virtual_stages");
    refused("1f1b", 0, 8, 0, ERR_USAGE, "pp_size");
    refused("1f1b", 2, -1, 0, ERR_USAGE, "microbatches");
    refused("1f1b", 4000, 1 << 30, 0, ERR_USAGE, "microbatches 1073741824");
    refused("/nowhere/x.csv", 0, 0, 0, ERR_IO, "/nowhere/x.csv");
    refused("auto", 4, 8, 0, ERR_UNSUPPORTED, "not available yet");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(schedule_simulate__knows_unequal_costs_and_messages),
        ARENA_TEST(schedule_simulate__weighs_what_waits_for_its_weight_gradient),
        ARENA_TEST(schedule_1f1b__starts_backward_as_early_as_it_can),
        ARENA_TEST(schedule_1f1b__takes_fewer_microbatches_than_ranks),
        ARENA_TEST(schedule_build__is_right_for_all_sizes),
        ARENA_TEST(schedule_add_comm__sends_only_between_ranks),
        ARENA_TEST(schedule_hoist_receives__posts_before_the_previous_action),
        ARENA_TEST(schedule_build_forward__fits_any_placement),
        ARENA_TEST(schedule_build__refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
