/* A schedule file: read, checked, completed, simulated and printed; what is accepted reads back the same. */
#include "fuzz_target.h"
#include "pipeline/schedule_text.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena arena;
    arena_init(&arena, "fuzz");
    Schedule *s;
    Status status = schedule_parse_csv(&s, (const char *)data, size, "fuzz.csv", &arena);
    if (status == OK) status = schedule_check(s, &s->ascending, &arena);
    if (status == OK) {
        TextBuffer csv, again, other;
        text_buffer_init(&csv, &arena);
        text_buffer_init(&again, &arena);
        text_buffer_init(&other, &arena);
        schedule_print(&csv, SCHEDULE_CSV, s, NULL);
        Schedule *read_back;
        must(schedule_parse_csv(&read_back, csv.text, csv.length, "back.csv", &arena) == OK);
        schedule_print(&again, SCHEDULE_CSV, read_back, NULL);
        must(strcmp(csv.text, again.text) == 0);

        if (!s->has_comm) {
            must(schedule_add_comm(s, &arena) == OK);
            must(schedule_hoist_receives(s, &arena) == OK);
        }
        must(schedule_assign_slots(s, &arena) == OK);
        must(schedule_check(s, NULL, &arena) == OK);
        ScheduleReport report;
        Costs costs = costs_uniform(s->n_stages, 1, 2, 0.5, 0.25, &arena);
        must(schedule_simulate(&report, s, &costs, 0.5, &arena) == OK);
        for (int format = 0; format < SCHEDULE_FORMAT_COUNT; format++)
            schedule_print(&other, (ScheduleFormat)format, s, &report);
    } else {
        must(status_message()[0] != '\0');
    }
    arena_free(&arena);
    return 0;
}
