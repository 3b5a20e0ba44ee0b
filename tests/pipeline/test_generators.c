/* Every named schedule against its numbers, its sequences, and a validator that shares nothing with the room. */
#include "schedule_test.h"

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* ---- numbers ------------------------------------------------------------------------------- */

typedef struct Numbers {
    int makespan, work, in_flight; /* in_flight 0: not looked at */
} Numbers;

static void expect(const char *name, int p, int m, int v, Numbers want)
{
    Schedule *s = build_virtual(name, p, m, v);
    ScheduleReport report = simulate(s, 1, 1, 1, 0);
    int most = 0;
    for (int r = 0; r < p; r++)
        if (report.rank[r].peak_in_flight > most) most = report.rank[r].peak_in_flight;
    if (report.makespan != want.makespan || report.work != want.work ||
        (want.in_flight && most != want.in_flight))
        fail_msg("%s p=%d m=%d v=%d: %g/%g, %d; expected %d/%d, %d", name, p, m, v, report.makespan,
                 report.work, most, want.makespan, want.work, want.in_flight);
}

// clang-format off
enum { N_SIZES = 5 };
static const int sizes[N_SIZES][2] = {{2, 4}, {4, 8}, {4, 16}, {8, 16}, {8, 32}};
static const struct { const char *name; int v; Numbers want[N_SIZES]; } oracle[] = {
    {"gpipe",       1, {{15, 12, 4}, { 33, 24,  8}, { 57,  48, 16}, { 69,  48, 16}, {117,  96, 32}}},
    {"1f1b",        1, {{15, 12, 2}, { 33, 24,  4}, { 57,  48,  4}, { 69,  48,  8}, {117,  96,  8}}},
    {"interleaved", 2, {{27, 24, 5}, { 57, 48, 11}, {105,  96, 11}, {117,  96, 23}, {213, 192, 23}}},
    {"interleaved", 4, {{51, 48, 9}, {105, 96, 19}, {201, 192, 19}, {213, 192, 39}, {405, 384, 39}}},
    {"zb_h1",       1, {{13, 12, 2}, { 27, 24,  4}, { 51,  48,  4}, { 55,  48,  8}, {103,  96,  8}}},
    {"zb_h2",       1, {{13, 12, 3}, { 27, 24,  7}, { 51,  48,  7}, { 55,  48, 15}, {103,  96, 15}}},
    {"zb1p",        2, {{25, 24, 4}, { 51, 48,  8}, { 99,  96,  8}, {103,  96, 16}, {199, 192, 16}}},
    {"zbv",         2, {{25, 24, 4}, { 51, 48,  8}, { 99,  96,  8}, {103,  96, 16}, {199, 192, 16}}},
    {"dualpipev",   2, {{25, 24, 5}, { 51, 48,  9}, { 99,  96,  9}, {103,  96, 17}, {199, 192, 17}}},
    {"vmin",        2, {{27, 24, 4}, { 59, 48,  4}, {107,  96,  4}, {123,  96,  8}, {219, 192,  8}}},
    {"vhalf",       2, {{29, 24, 4}, { 60, 48,  6}, {108,  96,  6}, {122,  96, 10}, {218, 192, 10}}},
};

/* Few microbatches, short last groups, and the paper's larger numbers. */
static const struct { const char *name; int p, m, v; Numbers want; } singles[] = {
    {"1f1b",        4,  2, 1, {15,  6, 2}},
    {"interleaved", 4,  2, 2, {27, 12, 0}},
    {"interleaved", 8,  3, 2, {54, 18, 0}},
    {"zb_h1",       8, 24, 1, {79, 72, 8}},
    {"zb_h1",       4,  1, 1, { 9,  3, 1}},
    {"zb_h1",       4,  2, 1, {11,  6, 2}},
    {"zb_h1",       4,  3, 1, {13,  9, 3}},
    {"zbv",         4,  1, 2, {18,  6, 2}},
    {"zbv",         4,  2, 2, {22, 12, 4}},
    {"zbv",         4,  3, 2, {26, 18, 6}},
};
// clang-format on

static void generators__meet_the_oracle_numbers(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof oracle / sizeof oracle[0]; k++)
        for (int i = 0; i < N_SIZES; i++)
            expect(oracle[k].name, sizes[i][0], sizes[i][1], oracle[k].v, oracle[k].want[i]);
    for (size_t k = 0; k < sizeof singles / sizeof singles[0]; k++)
        expect(singles[k].name, singles[k].p, singles[k].m, singles[k].v, singles[k].want);
    /* No group of microbatches is so short that it makes a bubble: 9 = (p - 1) (f + i + w). */
    for (int m = 4; m <= 40; m++) expect("interleaved", 4, m, 2, (Numbers){6 * m + 9, 6 * m, 0});
    /* zbv has the least bubble from three halves of p on, but not before. */
    for (int p = 2; p <= 8; p++)
        for (int m = p; m <= 2 * p; m++) {
            ScheduleReport report = simulate(build("zbv", p, m), 1, 1, 1, 0);
            assert_int_equal(report.makespan == 6 * m + p - 1, m >= 3 * p / 2);
        }
}

static double bubble(const char *name, int v, double f, double i, double w)
{
    ScheduleReport report = simulate(build_virtual(name, 4, 8, v), f, i, w, 0);
    return report.makespan - report.work;
}

static void generators__meet_the_oracle_numbers_of_other_costs(void **state)
{
    (void)state;
    assert_true(bubble("1f1b", 1, 1, 1, 0.5) == 7.5);
    assert_true(bubble("zb_h1", 1, 1, 1, 0.5) == 4.5);
    assert_true(bubble("zbv", 2, 1, 1, 0.5) == 3);
    assert_true(bubble("dualpipev", 2, 1, 1, 0.5) == 4.5);
    assert_true(bubble("zb_h1", 1, 1, 1, 2) == 3);
}

/* Ranks are shifted against each other, none waits between its first and last action. */
static void generators__without_bubble_on_a_rank_have_none(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p++)
        for (int k = 0; k < 2; k++) {
            Schedule *s = build(k ? "zbv" : "zb_h2", p, 2 * p + 3);
            ScheduleReport report = simulate(s, 1, 1, 1, 0);
            for (int r = 0; r < p; r++) {
                double first = report.makespan, last = 0;
                for (int i = 0; i < s->list[r].n; i++) {
                    if (!action_is_compute(s->list[r].at[i].kind)) continue;
                    if (report.rank[r].start[i] < first) first = report.rank[r].start[i];
                    if (report.rank[r].end[i] > last) last = report.rank[r].end[i];
                }
                assert_true(last - first == report.rank[r].busy);
            }
        }
}

/* ---- sequences ----------------------------------------------------------------------------- */

static void expect_rank(const char *name, int p, int m, int rank, const char *want)
{
    Schedule *s = build(name, p, m);
    char got[1024], text[ACTION_TEXT_MAX];
    size_t n = 0;
    for (int k = 0; k < s->list[rank].n; k++) {
        const Action *a = &s->list[rank].at[k];
        if (!action_is_compute(a->kind)) continue;
        n += (size_t)snprintf(got + n, sizeof got - n, "%s%s", n ? " " : "",
                              action_text(text, a->kind, a->stage, a->mb));
    }
    assert_string_equal(got, want);
}

static void generators__write_the_known_sequences(void **state)
{
    (void)state;
    expect_rank("1f1b", 4, 6, 1, "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1B4 1B5");
    expect_rank("interleaved", 2, 4, 0,
                "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
    expect_rank("zb_h1", 3, 4, 2, "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3");
    expect_rank("zbv", 2, 4, 1,
                "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 "
                "1I3 1W2 2W3 1W3");
    expect_rank("dualpipev", 2, 4, 0,
                "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3");
}

static void generators__of_one_virtual_stage_are_the_plain_ones(void **state)
{
    for (int p = 1; p <= 6; p++)
        for (int m = 1; m <= 9; m++, reset(state)) {
            assert_same(build_virtual("interleaved", p, m, 1), build("1f1b", p, m));
            assert_same(build_virtual("zb1p", p, m, 1), build("zb_h1", p, m));
            assert_same(build("looped_bfs", p, m), build("gpipe", p, m));
        }
}

/* ---- properties ---------------------------------------------------------------------------- */

/* What has happened to a pair of stage and microbatch: bits of `has`; and to its messages: bits of `done`. */
enum { HAS_F = 1, HAS_I = 2, HAS_W = 4, HAS_ALL = 7, SENT = 1, POSTED = 2, THERE = 3 };

typedef struct Run {
    const Schedule *s;
    uint8_t *has;  /* [n_stages][n_mb] */
    uint8_t *done; /* [2][n_stages][n_mb] x and dy by the stage that needs it */
    int **holds;   /* [n_ranks][send slots] message + 1 written there last */
} Run;

static bool is_forward(const Action *a)
{
    return a->kind == ACT_F || a->kind == ACT_SEND_F || a->kind == ACT_RECV_F;
}

/* The message to `stage` in the direction of this action. */
static int message_of(const Schedule *s, const Action *a, int stage)
{
    return ((is_forward(a) ? 0 : s->n_stages) + stage) * s->n_mb + a->mb;
}

static bool on_another_rank(const Schedule *s, int stage, int rank)
{
    return stage >= 0 && stage < s->n_stages && s->rank_of_stage[stage] != rank;
}

/* F, I and B: the input is there, and the buffer of what was written before is free. Marks it done. */
static bool run_compute(Run *run, int rank, const Action *a)
{
    const Schedule *s = run->s;
    bool f = is_forward(a);
    int from = a->stage - (f ? 1 : -1), to = a->stage + (f ? 1 : -1);
    uint8_t *has = &run->has[a->stage * s->n_mb + a->mb];
    if (f ? *has & HAS_F : (*has & (HAS_F | HAS_I)) != HAS_F) return false;
    if (on_another_rank(s, from, rank)) {
        if (run->done[message_of(s, a, a->stage)] != THERE) return false;
    } else if (from >= 0 && from < s->n_stages) {
        if (!(run->has[from * s->n_mb + a->mb] & (f ? HAS_F : HAS_I))) return false;
    }
    if (on_another_rank(s, to, rank)) {
        if (a->at.send < 0 || a->at.send >= s->n_slots[rank].send) return false;
        int *holds = &run->holds[rank][a->at.send];
        if (*holds && run->done[*holds - 1] != THERE) return false;
        *holds = message_of(s, a, to) + 1;
    }
    *has |= (uint8_t)(f ? HAS_F : a->kind == ACT_B ? HAS_I | HAS_W : HAS_I);
    return true;
}

static bool run_one(Run *run, int rank, const Action *a)
{
    const Schedule *s = run->s;
    uint8_t *has = &run->has[a->stage * s->n_mb + a->mb];
    if (a->kind == ACT_SEND_F || a->kind == ACT_SEND_B) {
        int message = message_of(s, a, a->stage + (is_forward(a) ? 1 : -1));
        if (run->holds[rank][a->at.send] != message + 1 || run->done[message] & SENT) return false;
        run->done[message] |= SENT;
        return true;
    }
    if (a->kind == ACT_RECV_F || a->kind == ACT_RECV_B) {
        run->done[message_of(s, a, a->stage)] |= POSTED;
        return true;
    }
    if (a->kind != ACT_W) return run_compute(run, rank, a);
    if ((*has & (HAS_I | HAS_W)) != HAS_I) return false;
    *has |= HAS_W;
    return true;
}

static void *zeros(int n, size_t size)
{
    return ARENA_NEW(&arena, char, (size_t)n *size + 1);
}

/*
 * All lists against each other by the rules alone, sharing nothing with schedule_check: an action once and after what it
 * needs, a buffer rewritten once its message was taken. Everything must have been done in the end.
 */
static bool comes_to_its_end(const Schedule *s)
{
    int n = s->n_stages * s->n_mb, p = s->n_ranks, *next = zeros(p, sizeof *next);
    Run run = {s, zeros(n, 1), zeros(2 * n, 1), zeros(p, sizeof(int *))};
    for (int r = 0; r < p; r++) run.holds[r] = zeros(s->n_slots[r].send, sizeof(int));
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++)
            for (; next[r] < s->list[r].n && run_one(&run, r, &s->list[r].at[next[r]]); next[r]++)
                moved = true;
    }
    for (int r = 0; r < p; r++)
        if (next[r] < s->list[r].n) return false;
    for (int i = 0; i < n; i++)
        if (run.has[i] != HAS_ALL) return false;
    return true;
}

/* Each of F, I, W in ascending order of microbatches on each stage; B is I and W. */
static bool ascends(const Schedule *s)
{
    int(*last)[3] = zeros(s->n_stages, sizeof *last);
    for (int r = 0; r < s->n_ranks; r++)
        for (int k = 0; k < s->list[r].n; k++) {
            const Action *a = &s->list[r].at[k];
            for (int part = 0; part < 3; part++) {
                static const ActionKind kinds[3] = {ACT_F, ACT_I, ACT_W};
                if (a->kind != kinds[part] && !(a->kind == ACT_B && part > 0)) continue;
                if (a->mb != last[a->stage][part]) return false;
                last[a->stage][part]++;
            }
        }
    return true;
}

/* The same compute actions come back from the text, and the passes make the same of them. */
static void same_through_csv(const Schedule *s)
{
    TextBuffer text;
    text_buffer_init(&text, &arena);
    schedule_print(&text, SCHEDULE_CSV, s, NULL);
    Schedule *back = parse(text.text);
    complete(back);
    assert_same(back, s);
}

/* Microbatches in a group of interleaved and zb1p, by trying all. */
static int group_of(int p, int m)
{
    for (int n = p; n < m; n++)
        if (m % n == 0 || m % n >= p) return n;
    return m;
}

/* Pairs of stage and microbatch in flight. */
typedef int InFlight(int p, int m, int v, int r);
static int all_of_them(int p, int m, int v, int r)
{
    return (void)p, (void)r, m * v;
}
static int of_interleaved(int p, int m, int v, int r)
{
    if (v == 1) return least(p - r, m);
    return least(2 * (p - 1 - r) + (v - 1) * group_of(p, m) + 1, m * v);
}
static int of_zb1p(int p, int m, int v, int r)
{
    return (void)r, least((v - 1) * group_of(p, m) + p, m * v);
}
static int of_zb_h2(int p, int m, int v, int r)
{
    return (void)v, (void)r, least(2 * p - 1, m);
}
static int of_zbv(int p, int m, int v, int r)
{
    return (void)v, least(2 * p, least(2 * m, m + 1 + r));
}
static int of_dualpipev(int p, int m, int v, int r)
{
    return (void)m, (void)v, (void)r, 2 * p + 1;
}
static int of_vmin(int p, int m, int v, int r)
{
    return (void)v, (void)r, least(2 * ((p + 4) / 3), 2 * m);
}
static int of_vhalf(int p, int m, int v, int r)
{
    return (void)v, (void)r, least(2 * (p / 2 + 1), 2 * m);
}

// clang-format off
static const struct { const char *name; int v_min, v_max, m_per_p; InFlight *in_flight; bool exact; } kinds[] = {
    {"gpipe",       1, 1, 0, all_of_them,    true},
    {"1f1b",        1, 1, 0, of_interleaved, true},
    {"interleaved", 1, 4, 0, of_interleaved, true},
    {"looped_bfs",  1, 4, 0, all_of_them,    true},
    {"zb_h1",       1, 1, 0, of_zb1p,        true},
    {"zb_h2",       1, 1, 0, of_zb_h2,       true},
    {"zb1p",        1, 4, 0, of_zb1p,        false},
    {"zbv",         2, 2, 0, of_zbv,         true},
    {"dualpipev",   2, 2, 2, of_dualpipev,   false},
    {"vmin",        2, 2, 0, of_vmin,        false},
    {"vhalf",       2, 2, 0, of_vhalf,       false},
};
// clang-format on

static void check_one(size_t kind, int p, int m, int v)
{
    Schedule *s = build_virtual(kinds[kind].name, p, m, v); /* proved by schedule_check */
    bool right = s->ascending && s->n_stages == p * v && ascends(s) && comes_to_its_end(s);
    if (!right) fail_msg("%s p=%d m=%d v=%d: order", kinds[kind].name, p, m, v);
    ScheduleReport report = simulate(s, 1, 1, 1, 0);
    for (int r = 0; r < p; r++) {
        int got = report.rank[r].peak_in_flight, most = kinds[kind].in_flight(p, m, v, r);
        if (got > most || (kinds[kind].exact && got < most))
            fail_msg("%s p=%d m=%d v=%d rank %d: %d in flight, expected %s%d", kinds[kind].name, p,
                     m, v, r, got, kinds[kind].exact ? "" : "at most ", most);
        assert_true(report.rank[r].busy == 3 * m * v);
    }
    if (m % 4 == 1) same_through_csv(s);
}

static void generators__are_right_for_all_sizes(void **state)
{
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++)
        for (int p = 1; p <= 8; p++)
            for (int v = kinds[kind].v_min; v <= kinds[kind].v_max; v++)
                for (int m = 1; m <= 33; m++, reset(state))
                    if (m >= kinds[kind].m_per_p * p) check_one(kind, p, m, v);
}

static void generators__refuse_what_does_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int p, m, v;
        const char *words[3];
    } bad[] = {
        {"dualpipev", 4, 7, 0, {"microbatches", "found 7", "8 = 2 x pp_size 4"}},
        {"dualpipev", 1, 1, 0, {"microbatches", "found 1", "2 = 2 x pp_size 1"}},
        {"zbv", 4, 8, 3, {"num_virtual_stages", "found 3", "zbv has 2"}},
        {"vmin", 4, 8, 1, {"num_virtual_stages", "found 1", "vmin has 2"}},
        {"interleaved", 4, 8, 65, {"num_virtual_stages", "found 65", "takes 1 to 64"}},
        {"zb_h1", 4, 8, 2, {"num_virtual_stages", "found 2", "zb_h1 has 1"}},
        {"looped_bfs", 4096, 4096, 64, {"pp_size 4096", "num_virtual_stages 64", "4096"}},
    };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        Schedule *s = NULL;
        ScheduleRequest request = {bad[k].name, bad[k].p, bad[k].m, bad[k].v};
        assert_int_equal(schedule_build(&s, &request, &arena), ERR_USAGE);
        for (int w = 0; w < 3; w++)
            if (!strstr(status_message(), bad[k].words[w]))
                fail_msg("%s lacks %s", status_message(), bad[k].words[w]);
    }
    /* No number given: the fewest it takes. */
    assert_int_equal(build("dualpipev", 3, 0)->n_mb, 6);
    assert_int_equal(build("zbv", 3, 0)->n_mb, 1);
}

/* What a rank holds does not grow with the number of microbatches, nor do its buffers of messages. */
static void generators__keep_slots_bounded(void **state)
{
    static const char *const bounded[] = {"1f1b", "interleaved", "zb_h1", "zb_h2",    "zb1p",
                                          "zbv",  "vhalf",       "vmin",  "dualpipev"};
    for (size_t k = 0; k < sizeof bounded / sizeof bounded[0]; k++)
        for (int p = 1; p <= 8; p++, reset(state)) {
            Schedule *some = build(bounded[k], p, 4 * p), *many = build(bounded[k], p, 32 * p);
            for (int r = 0; r < p; r++)
                for (int kind = 0; kind < SLOT_COUNT; kind++) {
                    int n = *slots_field(&some->n_slots[r], (SlotKind)kind);
                    int more = *slots_field(&many->n_slots[r], (SlotKind)kind);
                    if (more > n)
                        fail_msg("%s p=%d rank %d: %d slots of kind %d, %d for %d microbatches",
                                 bounded[k], p, r, n, kind, more, 32 * p);
                }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(generators__meet_the_oracle_numbers),
        ARENA_TEST(generators__meet_the_oracle_numbers_of_other_costs),
        ARENA_TEST(generators__without_bubble_on_a_rank_have_none),
        ARENA_TEST(generators__write_the_known_sequences),
        ARENA_TEST(generators__of_one_virtual_stage_are_the_plain_ones),
        ARENA_TEST(generators__are_right_for_all_sizes),
        ARENA_TEST(generators__refuse_what_does_not_fit),
        ARENA_TEST(generators__keep_slots_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
