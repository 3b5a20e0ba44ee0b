#pragma once
/** What the tests of pipeline share: an arena that each test begins with anew, and schedules built and simulated in it. */
#include "pipeline/schedule.h"
#include "pipeline/schedule_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Arena arena;

static inline int reset(void **state)
{
    (void)state;
    arena_free(&arena);
    arena_init(&arena, "test");
    return 0;
}

#define ARENA_TEST(function) cmocka_unit_test_setup_teardown(function, reset, reset)

static inline void ok(Status status)
{
    if (status != OK) fail_msg("status %d: %s", status, status_message());
}

/** Fails with this code, and the message holds the words. */
static inline void assert_refused(Status status, Status code, const char *words)
{
    if (status != code || !strstr(status_message(), words))
        fail_msg("status %d, message \"%s\"; expected status %d and \"%s\"", status,
                 status == OK ? "" : status_message(), code, words);
}

/** Numbers as in ScheduleRequest: 0 is the default. */
static inline Schedule *build_virtual(const char *name, int p, int m, int v)
{
    Schedule *s = NULL;
    ok(schedule_build(&s, &(ScheduleRequest){name, p, m, v}, &arena));
    return s;
}

static inline Schedule *build(const char *name, int p, int m)
{
    return build_virtual(name, p, m, 0);
}

/** What schedule_build does with compute actions, for those read from a text. */
static inline void complete(Schedule *s)
{
    ok(schedule_add_comm(s, &arena));
    ok(schedule_hoist_receives(s, &arena));
    ok(schedule_assign_slots(s, &arena));
    ok(schedule_check(s, NULL, &arena));
}

static inline ScheduleReport simulate(const Schedule *s, double f, double i, double w, double comm)
{
    ScheduleReport report;
    Costs costs = costs_uniform(s->n_stages, f, i, w, comm, &arena);
    ok(schedule_simulate(&report, s, &costs, 1, &arena));
    return report;
}

/** As text; with the times of unit costs. */
static inline const char *print(ScheduleFormat format, const Schedule *s)
{
    ScheduleReport report = simulate(s, 1, 1, 1, 0);
    TextBuffer text;
    text_buffer_init(&text, &arena);
    schedule_print(&text, format, s, &report);
    return text.text;
}

static inline Schedule *parse(const char *text)
{
    Schedule *s = NULL;
    ok(schedule_parse_csv(&s, text, strlen(text), "x.csv", &arena));
    return s;
}

/** The same actions, slots and all. */
static inline void assert_same(const Schedule *a, const Schedule *b)
{
    assert_int_equal(a->n_ranks, b->n_ranks);
    assert_int_equal(a->n_stages, b->n_stages);
    assert_int_equal(a->n_mb, b->n_mb);
    assert_memory_equal(a->rank_of_stage, b->rank_of_stage, (size_t)a->n_stages * sizeof(int));
    for (int r = 0; r < a->n_ranks; r++) {
        assert_int_equal(a->list[r].n, b->list[r].n);
        assert_memory_equal(a->list[r].at, b->list[r].at, (size_t)a->list[r].n * sizeof(Action));
    }
}
