/* schedule: build or read an order of work, check it, simulate it, show it. */
#include "cli/command.h"
#include "cli/schedule_trace.h"

#include "io/json.h"
#include "pipeline/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ScheduleArgs {
    const char *schedule, *costs, *trace;
    int pp, microbatches, n_virtual;
    double w_share;
    ScheduleFormat format;
} ScheduleArgs;

// clang-format off
static const OptionChoice formats[] = {
    {"grid", SCHEDULE_GRID}, {"csv", SCHEDULE_CSV}, {"json", SCHEDULE_JSON}, {"svg", SCHEDULE_SVG}, {"trace", SCHEDULE_TRACE}, {0}};
static const OptionSpec options[] = {
    {"schedule",     OPT_TEXT, OPTION_AT(ScheduleArgs, schedule),     NULL,   OPTION_ANY, .help = "gpipe, 1f1b, interleaved, looped_bfs, zb_h1, zb_h2, zb1p, zbv, vhalf, vmin or dualpipev, or a CSV file as torch.distributed.pipelining writes them", .value = "NAME|FILE.csv", .required = true},
    {"pp",           OPT_INT,  OPTION_AT(ScheduleArgs, pp),           NULL,   OPTION_RANGE(1, 1024), .help = "pipeline ranks; may be left out with a file", .value = "P"},
    {"microbatches", OPT_INT,  OPTION_AT(ScheduleArgs, microbatches), NULL,   OPTION_RANGE(1, 100000), .help = "microbatches of a step; may be left out with a file", .value = "M"},
    {"virtual",      OPT_INT,  OPTION_AT(ScheduleArgs, n_virtual),    NULL,   OPTION_RANGE(1, 64), .help = "stages per rank; left out: 2 for interleaved, zb1p, zbv, vhalf, vmin and dualpipev, what the file says, else 1", .value = "V"},
    {"costs",        OPT_TEXT, OPTION_AT(ScheduleArgs, costs),        NULL,   OPTION_ANY, .help = "time of one microbatch on one stage, in any unit: F forward, I input gradient, W weight gradient, COMM delay of a message between ranks. A file gives them per stage: {\"f\": [..], \"i\": [..], \"w\": [..], \"comm\": 0}; left out: 1,1,1", .value = "F,I,W[,COMM]|FILE.json"},
    {"w-share",      OPT_REAL, OPTION_AT(ScheduleArgs, w_share),      "1.0",  OPTION_RANGE(0, 1), .help = "what a microbatch that still waits for W weighs in peak_activation, against 1 before its I"},
    {"format",       OPT_ENUM, OPTION_AT(ScheduleArgs, format),       "grid", OPTION_CHOICES(formats), .help = "what goes to stdout; trace: the times as a Chrome trace (opens in Perfetto)"},
    {"trace",        OPT_TEXT, OPTION_AT(ScheduleArgs, trace),        NULL,   OPTION_ANY, .help = "a step that a run measured (its trace/step-NNNNNN.json), shown against the simulation with the medians of its own times instead of --costs. json: these costs, as --costs reads them, and both bubbles", .value = "FILE"},
    {0}};
// clang-format on

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

/* ---- costs ----------------------------------------------------------------------------------------- */

static Status check_cost(const char *place, const char *what, double value)
{
    if (isfinite(value) && value >= 0) return OK;
    return FAIL(ERR_USAGE, "%s: %s: out of range (found %g, expected a number of at least 0)",
                place, what, value);
}

/* "F,I,W[,COMM]" */
static Status costs_from_text(Costs *out, const char *text, int n_stages, Arena *arena)
{
    double value[4] = {0};
    int n = 0;
    const char *at = text;
    for (char *end; n < 4; n++, at = end + 1) {
        value[n] = strtod(at, &end);
        if (end == at || (*end && *end != ',')) break;
        TRY(check_cost("schedule", "--costs", value[n]));
        if (!*end) {
            at = NULL;
            n++;
            break;
        }
    }
    if (at || n < 3)
        return FAIL(ERR_USAGE,
                    "schedule: --costs: found %.100s, expected F,I,W or F,I,W,COMM or a .json file",
                    text);
    if (value[0] + value[1] + value[2] <= 0)
        return FAIL(ERR_USAGE, "schedule: --costs: F, I and W are all 0 (found %.100s)", text);
    *out = costs_uniform(n_stages, value[0], value[1], value[2], value[3], arena);
    return OK;
}

static Status cost_list(double **out, const json_t *object, const char *path, const char *key,
                        int n_stages, Arena *arena)
{
    json_t *list;
    TRY(json_get_array(object, path, key, &list));
    if (json_array_size(list) != (size_t)n_stages)
        return FAIL(ERR_FORMAT, "%s: key %s: a cost per stage (found %zu, expected %d)", path, key,
                    json_array_size(list), n_stages);
    double *costs = ARENA_NEW(arena, double, n_stages);
    for (int s = 0; s < n_stages; s++) {
        const json_t *item = json_array_get(list, (size_t)s);
        if (!json_is_number(item))
            return FAIL(ERR_FORMAT, "%s: key %s: stage %d: expected a number (found %s)", path, key,
                        s, json_kind_name(item));
        costs[s] = json_number_value(item);
        TRY(check_cost(path, key, costs[s]));
    }
    *out = costs;
    return OK;
}

static Status costs_from_json(Costs *out, const json_t *root, const char *path, int n_stages,
                              Arena *arena)
{
    double *f, *i, *w, comm, sum = 0;
    TRY(json_expect_object(root, path));
    TRY(cost_list(&f, root, path, "f", n_stages, arena));
    TRY(cost_list(&i, root, path, "i", n_stages, arena));
    TRY(cost_list(&w, root, path, "w", n_stages, arena));
    TRY(json_get_real_or(root, path, "comm", 0, &comm));
    TRY(check_cost(path, "comm", comm));
    for (int s = 0; s < n_stages; s++) sum += f[s] + i[s] + w[s];
    if (sum <= 0) return FAIL(ERR_FORMAT, "%s: all costs are 0", path);
    *out = (Costs){.f_s = f, .i_s = i, .w_s = w, .comm = comm};
    return OK;
}

static Status read_costs(Costs *out, const char *text, int n_stages, Arena *arena)
{
    if (!ends_with(text, ".json")) return costs_from_text(out, text, n_stages, arena);
    JsonDoc doc;
    TRY(json_doc_read(&doc, text));
    Status st = costs_from_json(out, doc.root, text, n_stages, arena);
    json_doc_free(&doc);
    return st;
}

/* ---- the command ----------------------------------------------------------------------------------- */

static Status check_numbers(const ScheduleArgs *args)
{
    if (schedule_is_file(args->schedule)) return OK;
    const char *missing = args->pp < 0 ? "pp" : args->microbatches < 0 ? "microbatches" : NULL;
    if (!missing) return OK;
    /* An unknown name is the better message of the two. */
    const ScheduleKind *kind;
    TRY(schedule_find(&kind, args->schedule));
    return FAIL(ERR_USAGE, "schedule: --%s is missing (only a CSV file says it itself)", missing);
}

static Status run(const void *args_, const struct World *world, Arena *arena)
{
    (void)world;
    const ScheduleArgs *args = args_;
    TRY(check_numbers(args));
    ScheduleRequest request = {.name = args->schedule,
                               .n_ranks = args->pp < 0 ? 0 : args->pp,
                               .n_mb = args->microbatches < 0 ? 0 : args->microbatches,
                               .n_virtual = args->n_virtual < 0 ? 0 : args->n_virtual};
    TextBuffer out;
    text_buffer_init(&out, arena);
    Schedule *schedule;
    Status st = schedule_build(&schedule, &request, arena);
    if (st == ERR_FORMAT && args->format == SCHEDULE_JSON) {
        schedule_print_invalid_json(&out, status_message());
        fputs(out.text, stdout);
    }
    TRY(st);
    if (!schedule->ascending)
        fprintf(stderr,
                "warning: %s: microbatches are not in ascending order on every stage: results "
                "will not equal those of other schedules bit for bit\n",
                args->schedule);

    Costs costs;
    ScheduleReport report, measured;
    if (args->trace) {
        if (args->costs)
            return FAIL(ERR_USAGE,
                        "schedule: --costs: the trace says them (found %.100s and --trace)",
                        args->costs);
        TRY(trace_read(&measured, args->trace, schedule, args->w_share, arena));
        costs = timeline_costs(&measured, schedule, arena);
    } else {
        TRY(read_costs(&costs, args->costs ? args->costs : "1,1,1", schedule->n_stages, arena));
    }
    TRY(schedule_simulate(&report, schedule, &costs, args->w_share, arena));
    if (args->trace)
        trace_print(&out, args->format, schedule, &measured, &report, &costs);
    else
        schedule_print(&out, args->format, schedule, &report);
    fputs(out.text, stdout);
    return OK;
}

const Command command_schedule = {
    .name = "schedule",
    .summary = "build or read a pipeline schedule, check and simulate it",
    .usage = "--schedule NAME|FILE.csv --pp P --microbatches M [--virtual V] "
             "[--costs F,I,W[,COMM]|FILE.json] [--w-share X] [--format grid|csv|json|svg|trace] "
             "[--trace FILE]",
    .about =
        "A schedule is the order in which each pipeline rank runs the forward (F), the input "
        "gradient (I) and the weight gradient (W) of each microbatch on its stages; B is I and "
        "then W. 2F0 is the forward of microbatch 0 on stage 2. This command builds one by name "
        "or reads one from a CSV file (a line per rank), proves that it can run, and simulates it "
        "with the given costs: how long a step takes (makespan), which share of it the busiest "
        "rank waits (bubble = (makespan - work) / makespan), and how many microbatches each rank "
        "holds at its peak: a microbatch on one stage counts 1 from the end of its F to the end of "
        "its W. A file that cannot run is refused with rank, position and reason. "
        "docs/schedules.md shows all schedules and which to choose.",
    .example =
        "stagewright schedule --schedule zbv --pp 4 --microbatches 8 --costs 1,1,0.8,0.1\n"
        "stagewright schedule --schedule zbv --pp 4 --microbatches 8 --format svg >zbv.svg\n"
        "stagewright schedule --schedule 1f1b --pp 2 --microbatches 4 --format csv >mine.csv\n"
        "stagewright schedule --schedule mine.csv",
    .options = options,
    .args_size = sizeof(ScheduleArgs),
    .run = run,
};
