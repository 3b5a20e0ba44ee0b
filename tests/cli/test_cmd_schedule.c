#include "program.h"

#include "io/json.h"
#include "pipeline/schedule.h"

#include <math.h>

static json_t *run_json(Temp *temp, const char *arguments)
{
    Ran ran = assert_runs(temp, arguments);
    JsonDoc doc;
    assert_ok(json_doc_parse(&doc, arguments, ran.out, strlen(ran.out)));
    return doc.root;
}

static double real_at(const json_t *object, const char *key)
{
    assert_true(json_is_number(json_object_get(object, key)));
    return json_number_value(json_object_get(object, key));
}

/* Closed forms: gpipe and 1f1b take (m + p - 1)(F + I + W) when F, I, W are the same everywhere. */
static void cmd_schedule__makespan_and_bubble(void **state)
{
    static const struct {
        const char *line;
        double makespan, work;
        int peak;
    } rows[] = {
        {"--schedule 1f1b --pp 4 --microbatches 8", 33, 24, 4},
        {"--schedule gpipe --pp 4 --microbatches 8", 33, 24, 8},
        {"--schedule 1f1b --pp 2 --microbatches 4", 15, 12, 2},
        {"--schedule 1f1b --pp 2 --microbatches 4 --costs 2,1,1", 20, 16, 2},
        {"--schedule 1f1b --pp 1 --microbatches 3 --costs=1,1,1,5", 9, 9, 1},
        /* Two ranks, one microbatch: forward, message, forward and backward, message, backward. */
        {"--schedule gpipe --pp 2 --microbatches 1 --costs 1,1,1,0.5", 7, 3, 1},
    };
    Temp *temp = *state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *root =
            run_json(temp, text_format(&temp->arena, "schedule --format json %s", rows[i].line));
        double makespan = real_at(root, "makespan"), work = real_at(root, "work");
        if (makespan != rows[i].makespan || work != rows[i].work)
            fail_msg("%s: makespan %g, work %g", rows[i].line, makespan, work);
        assert_true(real_at(root, "bubble") == (makespan - work) / makespan);
        assert_true(json_is_true(json_object_get(root, "valid")));
        const json_t *first = json_array_get(json_object_get(root, "ranks"), 0);
        assert_int_equal(json_integer_value(json_object_get(first, "peak_in_flight")),
                         rows[i].peak);
        json_decref(root);
    }
}

static void cmd_schedule__csv_reads_back_to_the_same(void **state)
{
    Temp *temp = *state;
    Ran csv = assert_runs(temp, "schedule --schedule 1f1b --pp 3 --microbatches 5 --format csv");
    const char *file = temp_file(temp, "s.csv", csv.out, strlen(csv.out));
    Ran named = assert_runs(temp, "schedule --schedule 1f1b --pp 3 --microbatches 5 --format json");
    const char *line = text_format(&temp->arena, "schedule --schedule %s --format json", file);
    assert_string_equal(assert_runs(temp, line).out, named.out);
    line = text_format(&temp->arena, "schedule --schedule %s --pp 4 --format json", file);
    assert_int_equal(run_program(temp, line).status, 2);
}

static void cmd_schedule__costs_of_each_stage_come_from_a_file(void **state)
{
    Temp *temp = *state;
    static const char costs[] = "{\"f\": [1, 3], \"i\": [1, 3], \"w\": [1, 4], \"comm\": 0}";
    const char *file = temp_file(temp, "c.json", costs, strlen(costs));
    json_t *root = run_json(
        temp,
        text_format(&temp->arena,
                    "schedule --schedule gpipe --pp 2 --microbatches 2 --format json --costs %s",
                    file));
    assert_true(real_at(root, "work") == 20);
    assert_true(real_at(root, "makespan") == 23); /* F0 on rank 0, all of rank 1, B1 on rank 0 */
    json_decref(root);
    const char *line = text_format(
        &temp->arena, "schedule --schedule gpipe --pp 3 --microbatches 2 --costs %s", file);
    assert_refused(temp, line, WORDS("key f", "found 2", "expected 3"));
}

static void cmd_schedule__an_order_that_cannot_run_is_refused(void **state)
{
    Temp *temp = *state;
    static const char csv[] = "0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n";
    const char *file = temp_file(temp, "bad.csv", csv, strlen(csv));
    const char *line = text_format(&temp->arena, "schedule --schedule %s", file);
    assert_refused(temp, line, WORDS("bad.csv", "rank 1", "position 1", "1B0"));
    Ran ran = run_program(temp, text_format(&temp->arena, "%s --format json", line));
    assert_int_equal(ran.status, 2);
    JsonDoc doc;
    assert_ok(json_doc_parse(&doc, "stdout", ran.out, strlen(ran.out)));
    assert_true(json_is_false(json_object_get(doc.root, "valid")));
    assert_int_equal(json_array_size(json_object_get(doc.root, "errors")), 1);
    json_doc_free(&doc);
}

static void cmd_schedule__warns_of_another_order_of_sums(void **state)
{
    Temp *temp = *state;
    static const char csv[] = "0F1,0F0,0B1,0B0\n";
    const char *file = temp_file(temp, "down.csv", csv, strlen(csv));
    Ran ran = assert_runs(temp, text_format(&temp->arena, "schedule --schedule %s", file));
    assert_says(file, ran.err, WORDS("warning: ", "ascending order"));
}

static void cmd_schedule__writes_grid_and_svg(void **state)
{
    Temp *temp = *state;
    Ran ran = assert_runs(temp, "schedule --schedule 1f1b --pp 2 --microbatches 2");
    assert_says("grid", ran.out, WORDS("rank 0", "bubble", "F0", "B1"));
    ran = assert_runs(temp, "schedule --schedule 1f1b --pp 2 --microbatches 2 --format svg");
    assert_int_equal(strncmp(ran.out, "<svg", 4), 0);
}

/* A simulated trace read back: measured is what was simulated, and the medians are its costs. */
static void cmd_schedule__shows_a_trace_against_its_simulation(void **state)
{
    Temp *temp = *state;
    static const char *const rows[][2] = {{"1f1b --pp 2 --microbatches 4", "4,1,1"},
                                          {"zbv --pp 2 --microbatches 5", "4,2,1"}};
    for (size_t i = 0; i < 2; i++) {
        const char *schedule = text_format(&temp->arena, "schedule --schedule %s", rows[i][0]);
        Ran ran = assert_runs(
            temp, text_format(&temp->arena, "%s --costs %s --format trace", schedule, rows[i][1]));
        const char *trace = temp_file(temp, "t.json", ran.out, strlen(ran.out));
        schedule = text_format(&temp->arena, "%s --trace %s", schedule, trace);
        json_t *root = run_json(temp, text_format(&temp->arena, "%s --format json", schedule));
        const json_t *measured = json_object_get(root, "measured"),
                     *simulated = json_object_get(root, "simulated");
        static const char *const keys[] = {"makespan", "work", "bubble"};
        for (size_t k = 0; k < 3; k++)
            assert_true(fabs(real_at(measured, keys[k]) - real_at(simulated, keys[k])) < 1e-9);
        assert_true(json_number_value(json_array_get(json_object_get(root, "f"), 1)) == 4);
        json_decref(root);
        assert_says("table", assert_runs(temp, schedule).out,
                    WORDS("measured", "simulated", "difference", "+0.00 %"));
        ran = assert_runs(temp, text_format(&temp->arena, "%s --format svg", schedule));
        assert_says("svg", ran.out, WORDS("<svg", "measured", "simulated", "</svg>"));
        ran = assert_runs(temp, text_format(&temp->arena, "%s --format json", schedule));
        const char *costs = temp_file(temp, "costs.json", ran.out, strlen(ran.out));
        assert_runs(temp, text_format(&temp->arena, "schedule --schedule %s --costs %s", rows[i][0],
                                      costs));
    }
}

static void cmd_schedule__refuses_a_trace_of_another_schedule(void **state)
{
    Temp *temp = *state;
    Ran ran = assert_runs(temp, "schedule --schedule 1f1b --pp 2 --microbatches 4 --format trace");
    const char *trace = temp_file(temp, "t.json", ran.out, strlen(ran.out));
    static const char *const rows[][2] = {
        {"1f1b --pp 2 --microbatches 5", "no 0F4 on rank 0, which schedule 1f1b has"},
        {"1f1b --pp 2 --microbatches 3", "rank 0 ran 0F3, which schedule 1f1b does not"},
        {"zb_h1 --pp 2 --microbatches 4", "ran 0B0, which schedule zb_h1 does not"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_refused(
            temp, text_format(&temp->arena, "schedule --schedule %s --trace %s", rows[i][0], trace),
            WORDS(trace, rows[i][1]));
    assert_refused(
        temp,
        text_format(&temp->arena,
                    "schedule --schedule 1f1b --pp 2 --microbatches 4 --costs 1,1,1 --trace %s",
                    trace),
        WORDS("--costs", "--trace"));
    const char *other = temp_file(temp, "o.json", "{\"traceEvents\": 3}", 18);
    assert_refused(temp,
                   text_format(&temp->arena,
                               "schedule --schedule 1f1b --pp 2 --microbatches 4 --trace %s",
                               other),
                   WORDS(other, "traceEvents"));
}

static void cmd_schedule__help_names_every_schedule(void **state)
{
    Temp *temp = *state;
    const char *help = assert_runs(temp, "schedule --help").out;
    for (const ScheduleKind *kind = schedule_kinds; kind->name; kind++)
        if (kind->generate) assert_says("help", help, WORDS(kind->name));
}

/* What docs/schedules.md shows and counts is what this program gives. */
static void cmd_schedule__pictures_of_the_documentation_are_current(void **state)
{
    (void)state;
    assert_int_equal(
        system("'" SW_SOURCE_DIR "/scripts/draw-schedules.sh' --check '" SW_PROGRAM "'"), 0);
}

static void cmd_schedule__refuses_what_does_not_fit(void **state)
{
    Temp *temp = *state;
    assert_refused(temp, "schedule", WORDS("--schedule is missing"));
    assert_refused(temp, "schedule --schedule 1f1b --microbatches 2", WORDS("--pp is missing"));
    assert_refused(temp, "schedule --schedule 1f1b --pp 2", WORDS("--microbatches is missing"));
    assert_refused(temp, "schedule --schedule 1f1 --pp 2", WORDS("1f1", "1f1b"));
    assert_refused(temp, "schedule --schedule 1f1b --pp 0 --microbatches 2",
                   WORDS("--pp", "found 0", "from 1"));
    assert_refused(temp, "schedule --schedule no.csv", WORDS("no.csv"));
    static const char *const costs[] = {"1,1",    "1,1,1,1,1", "a,1,1", "1,,1", "1;1;1",
                                        "-1,1,1", "1,nan,1",   "0,0,0", "1,1,", "1,1,1,"};
    for (size_t i = 0; i < sizeof costs / sizeof costs[0]; i++)
        assert_refused(temp,
                       text_format(&temp->arena,
                                   "schedule --schedule 1f1b --pp 2 --microbatches 2 --costs '%s'",
                                   costs[i]),
                       WORDS("--costs"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(cmd_schedule__makespan_and_bubble),
        TEMP_TEST(cmd_schedule__csv_reads_back_to_the_same),
        TEMP_TEST(cmd_schedule__costs_of_each_stage_come_from_a_file),
        TEMP_TEST(cmd_schedule__an_order_that_cannot_run_is_refused),
        TEMP_TEST(cmd_schedule__warns_of_another_order_of_sums),
        TEMP_TEST(cmd_schedule__writes_grid_and_svg),
        TEMP_TEST(cmd_schedule__shows_a_trace_against_its_simulation),
        TEMP_TEST(cmd_schedule__refuses_a_trace_of_another_schedule),
        TEMP_TEST(cmd_schedule__help_names_every_schedule),
        TEMP_TEST(cmd_schedule__pictures_of_the_documentation_are_current),
        TEMP_TEST(cmd_schedule__refuses_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
