/* Text forms: what is written can be read back, and what cannot be read is refused with its place. */
#include "schedule_test.h"

#include <jansson.h>
#include <unistd.h>

static void schedule_csv__reads_what_it_writes(void **state)
{
    (void)state;
    Schedule *all[] = {build("1f1b", 4, 6), build("gpipe", 1, 1), build("gpipe", 3, 12),
                       build("zbv", 4, 9)};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
        Schedule *s = parse(print(SCHEDULE_CSV, all[k]));
        assert_false(s->has_comm);
        complete(s);
        assert_same(s, all[k]);
        /* With messages: they are taken as they stand. */
        TextBuffer text;
        text_buffer_init(&text, &arena);
        schedule_print_comm_csv(&text, all[k]);
        s = parse(text.text);
        assert_int_equal(s->has_comm, all[k]->n_ranks > 1);
        if (!s->has_comm) continue;
        ok(schedule_check(s, NULL, &arena));
        ok(schedule_assign_slots(s, &arena));
        ok(schedule_check(s, NULL, &arena));
        assert_same(s, all[k]);
    }
}

static void schedule_csv__reads_the_forms_of_torch(void **state)
{
    (void)state;
    Schedule *s = parse("0F0,0F1,,,\"0B0\",0B1\r\n,1F0, 1B0 ,1F1,1B1,\r\n\r\n");
    Schedule *plain = parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1");
    assert_same(s, plain);
    s = parse("0UNSHARD,0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2,0REDUCE_GRAD,0RESHARD\n");
    assert_same(s, parse("0F0,0F1,0F2,0B0,0B1,0B2"));
    assert_int_equal(s->n_mb, 3);
    s = parse("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2B0,1B0\n");
    int v_placed[] = {0, 1, 1, 0};
    assert_memory_equal(s->rank_of_stage, v_placed, sizeof v_placed);
    ok(schedule_check(s, NULL, &arena));
}

static void schedule_csv__refuses_what_it_cannot_read(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"", "x.csv: no actions"},
        {"\n\n", "x.csv: no actions"},
        {",,,", "x.csv: no actions"},
        {"0F0,0B0\n1F0,1X0", "x.csv:2: cell 2: expected F, I, W"},
        {"F0", "x.csv:1: cell 1: expected a stage"},
        {"0F", "x.csv:1: cell 1: expected a microbatch"},
        {"0F0x", "expected a microbatch"},
        {"0F-1", "expected a microbatch"},
        {"0F0,99999999999999F0", "cell 2: expected a stage"},
        {"0F99999999999999", "expected a microbatch"},
        {"0F0,1048576F1048576", "need at least as many forwards"},
        {"0F0,0F1048575", "need at least as many forwards"},
        {"0F0,0B0,(0F1;0B1)", "cell 3: expected (ACTION;ACTION)OVERLAP_F_B"},
        {"(0F0;)OVERLAP_F_B", "expected a stage"},
        {"()OVERLAP_F_B", "expected a stage"},
        {"(", "expected (ACTION"},
        {")OVERLAP_F_B", "expected a stage"},
        {"0UNSHARD7", "expected F, I, W"},
        {"0F0,0B0,1B0", "stage 1 of 2 has no forward"},
        {"0f0", "expected F, I, W"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        Schedule *s = NULL;
        Status status = schedule_parse_csv(&s, bad[k].text, strlen(bad[k].text), "x.csv", &arena);
        if (status != ERR_FORMAT || s) fail_msg("accepted: %s", bad[k].text);
        if (!strstr(status_message(), bad[k].message))
            fail_msg("\"%s\": \"%s\" lacks \"%s\"", bad[k].text, status_message(), bad[k].message);
    }
}

static void schedule_build__takes_a_file_and_refuses_contradictions(void **state)
{
    (void)state;
    char folder[] = "/tmp/schedule_XXXXXX";
    assert_non_null(mkdtemp(folder));
    char *path = path_join(&arena, folder, "order.csv");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(print(SCHEDULE_CSV, build("zbv", 2, 4)), file);
    fclose(file);

    Schedule *s = NULL;
    ok(schedule_build(&s, &(ScheduleRequest){path, 0, 0, 0}, &arena));
    assert_same(s, build("zbv", 2, 4));
    assert_true(s->ascending);
    ok(schedule_build(&s, &(ScheduleRequest){path, 2, 4, 2}, &arena));
    ScheduleRequest wrong[] = {{path, 4, 0, 0}, {path, 0, 8, 0}, {path, 0, 0, 1}};
    const char *key[] = {"pp_size 2, asked for 4", "microbatches 4, asked for 8",
                         "num_virtual_stages 1"};
    for (int k = 0; k < 3; k++) {
        assert_refused(schedule_build(&s, &wrong[k], &arena), ERR_USAGE, key[k]);
        assert_non_null(strstr(status_message(), path));
    }
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", file);
    fclose(file);
    ok(schedule_build(&s, &(ScheduleRequest){path, 2, 0, 0}, &arena));
    assert_false(s->ascending);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("0F0,0B0\n1B0,1F0\n", file);
    fclose(file);
    assert_refused(schedule_build(&s, &(ScheduleRequest){path, 0, 0, 0}, &arena), ERR_FORMAT,
                   "rank 1 position 1 (1B0): stands before 1F0");
    unlink(path);
    rmdir(folder);
}

static void schedule_json__has_the_promised_fields(void **state)
{
    (void)state;
    json_error_t error;
    json_t *root = json_loads(print(SCHEDULE_JSON, build("1f1b", 2, 4)), 0, &error);
    if (!root) fail_msg("%s", error.text);
    assert_int_equal(json_object_size(root), 6);
    assert_true(json_number_value(json_object_get(root, "makespan")) == 15);
    assert_true(json_number_value(json_object_get(root, "work")) == 12);
    assert_true(json_number_value(json_object_get(root, "bubble")) == 3.0 / 15);
    assert_true(json_is_true(json_object_get(root, "valid")));
    assert_int_equal(json_array_size(json_object_get(root, "errors")), 0);
    json_t *ranks = json_object_get(root, "ranks"), *first = json_array_get(ranks, 0);
    assert_int_equal(json_array_size(ranks), 2);
    assert_int_equal(json_object_size(first), 5);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(first, "stages"), 0)), 0);
    json_t *actions = json_object_get(first, "actions");
    assert_int_equal(json_array_size(actions), 8);
    assert_string_equal(json_string_value(json_array_get(actions, 2)), "0B0");
    assert_true(json_number_value(json_object_get(first, "busy")) == 12);
    assert_int_equal(json_integer_value(json_object_get(first, "peak_in_flight")), 2);
    assert_true(json_number_value(json_object_get(first, "peak_activation")) == 2);
    json_decref(root);

    TextBuffer text;
    text_buffer_init(&text, &arena);
    schedule_print_invalid_json(&text, "a \"b\\c\"\x01: broken");
    root = json_loads(text.text, 0, &error);
    if (!root) fail_msg("%s", error.text);
    assert_true(json_is_false(json_object_get(root, "valid")));
    assert_string_equal(json_string_value(json_array_get(json_object_get(root, "errors"), 0)),
                        "a \"b\\c\"\x01: broken");
    assert_true(json_is_null(json_object_get(root, "makespan")));
    json_decref(root);

    root = json_loads(print(SCHEDULE_TRACE, build("zbv", 2, 3)), 0, &error);
    if (!root) fail_msg("%s", error.text);
    /* a name per rank, and F, I, W of 4 stages and 3 microbatches */
    assert_int_equal(json_array_size(json_object_get(root, "traceEvents")), 2 + 3 * 4 * 3);
    json_decref(root);
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) n++;
    return n;
}

static void schedule_grid__shows_time_from_left_to_right(void **state)
{
    (void)state;
    const char *grid = print(SCHEDULE_GRID, build("1f1b", 2, 3));
    const char *expected[] = {"makespan 12   work 9   bubble 25.00 %\n",
                              "rank 0   F0 F1 .  .  B0--- F2 B1--- .  B2---\n",
                              "rank 1   .  F0 B0--- F1 B1--- F2 B2--- .  .\n"};
    for (int k = 0; k < 3; k++)
        if (!strstr(grid, expected[k])) fail_msg("%s\nlacks\n%s", grid, expected[k]);
    assert_non_null(strstr(print(SCHEDULE_GRID, build("zbv", 2, 2)), "rank 1   .   1F0 2F0"));
}

/* Blocks of a length that a terminal does not fold, each with all ranks. */
static void schedule_grid__folds_a_long_schedule(void **state)
{
    (void)state;
    const char *grid = print(SCHEDULE_GRID, build("1f1b", 8, 16));
    assert_int_equal(count(grid, "\ntime     "), 3);
    assert_int_equal(count(grid, "\nrank 7   "), 3);
    assert_non_null(strstr(grid, "\ntime     25                  30  "));
    assert_non_null(strstr(grid, "\nrank 0   B1----- F9  B2----- "));
    for (const char *line = grid; *line; line += strcspn(line, "\n") + 1)
        assert_in_range(strcspn(line, "\n"), 0, 120);
}

/* Tags close what was opened, in order, attributes are quoted, and < & " stand nowhere else. */
static void assert_well_formed(const char *xml)
{
    char open[16][24];
    int depth = 0;
    for (const char *at = xml; *at; at++) {
        if (*at == '&' && strncmp(at, "&amp;", 5) && strncmp(at, "&lt;", 4) &&
            strncmp(at, "&gt;", 4) && strncmp(at, "&quot;", 6))
            fail_msg("a bare & at \"%.40s\"", at);
        if (*at != '<') continue;
        char name[24] = "";
        int length = 0, quotes = 0;
        bool closes = at[1] == '/';
        sscanf(at + 1 + closes, "%23[A-Za-z]%n", name, &length);
        assert_true(length > 0);
        const char *tag = at;
        for (at++; *at && (*at != '>' || quotes % 2); at++) {
            if (*at == '<') fail_msg("a < inside the tag \"%.40s\"", tag);
            quotes += *at == '"';
            if (*at == '=' && quotes % 2 == 0) assert_int_equal(at[1], '"');
        }
        if (*at != '>') fail_msg("no end of the tag \"%.40s\"", tag);
        if (at[-1] == '/') continue;
        if (!closes) {
            assert_true(depth < 16);
            strcpy(open[depth++], name);
        } else if (depth == 0 || strcmp(open[--depth], name)) {
            fail_msg("</%s> closes %s", name, depth >= 0 ? open[depth] : "nothing");
        }
    }
    assert_int_equal(depth, 0);
}

static void schedule_svg__draws_every_action_once(void **state)
{
    (void)state;
    Schedule *s = build("zbv", 4, 8);
    s->name = "<zbv & \"co\">";
    const char *svg = print(SCHEDULE_SVG, s);
    assert_well_formed(svg);
    for (int stage = 0; stage < 8; stage++)
        for (int mb = 0; mb < 8; mb++)
            for (ActionKind kind = ACT_F; kind <= ACT_W; kind++) {
                char text[ACTION_TEXT_MAX];
                const char *box =
                    text_format(&arena, "<title>%s:", action_text(text, kind, stage, mb));
                if (count(svg, box) != 1) fail_msg("%d of %s", count(svg, box), box);
            }
    assert_int_equal(count(svg, "<title>"), 3 * 8 * 8);
    assert_int_equal(count(svg, "<path class=\"m\""), 4);
    assert_non_null(strstr(svg, "&lt;zbv &amp; &quot;co&quot;&gt;"));
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    assert_string_equal(svg, print(SCHEDULE_SVG, s));
}

static void schedule_svg__draws_messages_that_take_time(void **state)
{
    (void)state;
    Schedule *s = build("zbv", 3, 4);
    ScheduleReport report;
    Costs costs = costs_uniform(6, 1, 1, 0, 0.5, &arena);
    ok(schedule_simulate(&report, s, &costs, 1, &arena));
    TextBuffer text;
    text_buffer_init(&text, &arena);
    schedule_print(&text, SCHEDULE_SVG, s, &report);
    assert_well_formed(text.text);
    assert_int_equal(count(text.text, "<path class=\"q\""), 2 * 4 * 4);
    assert_int_equal(count(print(SCHEDULE_SVG, s), "<path class=\"q\""), 0);
    assert_non_null(strstr(text.text, "costs F 1, I 1, W 0, message 0.5"));
}

/* No number fits; the page does not grow with the schedule. */
static void schedule_svg__keeps_a_long_schedule_on_the_page(void **state)
{
    (void)state;
    const char *svg = print(SCHEDULE_SVG, build("zbv", 16, 64));
    assert_well_formed(svg);
    assert_int_equal(count(svg, "<title>"), 3 * 32 * 64);
    assert_null(strstr(svg, "<text class=\"d"));
    assert_null(strstr(svg, "<text class=\"l"));
    int width = 0;
    assert_int_equal(sscanf(strstr(svg, " width=\""), " width=\"%d", &width), 1);
    assert_in_range(width, 1600, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(schedule_csv__reads_what_it_writes),
        ARENA_TEST(schedule_csv__reads_the_forms_of_torch),
        ARENA_TEST(schedule_csv__refuses_what_it_cannot_read),
        ARENA_TEST(schedule_build__takes_a_file_and_refuses_contradictions),
        ARENA_TEST(schedule_json__has_the_promised_fields),
        ARENA_TEST(schedule_grid__shows_time_from_left_to_right),
        ARENA_TEST(schedule_grid__folds_a_long_schedule),
        ARENA_TEST(schedule_svg__draws_every_action_once),
        ARENA_TEST(schedule_svg__draws_messages_that_take_time),
        ARENA_TEST(schedule_svg__keeps_a_long_schedule_on_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
