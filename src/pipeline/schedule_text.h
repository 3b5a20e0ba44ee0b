#pragma once
/**
 * Schedules as text: for people (grid, svg), for other programs (json, csv, trace), and back (csv).
 *
 * CSV as torch.distributed.pipelining has it: one line per rank, cells in order, an empty cell = idle;
 * cell = stage, letters, microbatch ("2F0", "1I3", "1W3", "0B2", "0SEND_F1"); "(0F5;7B2)OVERLAP_F_B" is
 * read as its parts, one after the other; "0UNSHARD", "0RESHARD", "0REDUCE_GRAD" are skipped.
 */
#include "pipeline/schedule.h"

typedef enum ScheduleFormat {
    SCHEDULE_GRID,
    SCHEDULE_CSV,
    SCHEDULE_JSON,
    SCHEDULE_SVG,
    SCHEDULE_TRACE, /* Chrome trace, a unit of time shown as a millisecond; with waits and messages when measured */
    SCHEDULE_FORMAT_COUNT
} ScheduleFormat;

enum { ACTION_TEXT_MAX = 40 };
/** "2F0"; text has ACTION_TEXT_MAX bytes. Returns text. */
const char *action_text(char *text, ActionKind kind, int stage, int mb);

/**
 * Append the schedule in a format. Compute actions only. SCHEDULE_CSV needs no report; the others need one of
 * schedule_simulate.
 */
void schedule_print(TextBuffer *out, ScheduleFormat format, const Schedule *schedule,
                    const ScheduleReport *report);
/** CSV with SEND and RECV cells. */
void schedule_print_comm_csv(TextBuffer *out, const Schedule *schedule);
/** The JSON of a schedule that was refused: valid false, errors [error], numbers null, ranks empty. */
void schedule_print_invalid_json(TextBuffer *out, const char *error);

/**
 * Read a file. Ranks, stages, microbatches and placement come from its cells; the order is not checked
 * (schedule_check does). A file with SEND and RECV cells has has_comm set.
 * Errors: ERR_IO; ERR_FORMAT "PATH:LINE: cell N: what is wrong".
 */
Status schedule_read_csv(Schedule **out, const char *path, Arena *arena) MUST_USE;
/** The same from memory; `place` stands for the path. */
Status schedule_parse_csv(Schedule **out, const char *text, size_t bytes, const char *place,
                          Arena *arena) MUST_USE;
