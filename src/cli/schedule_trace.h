#pragma once
/** A step's trace (trace/step-NNNNNN.json of a run) against the simulation of its schedule. For the command schedule. */
#include "pipeline/schedule_text.h"

/**
 * The measured times of a schedule's compute actions, in milliseconds; w_share as for schedule_simulate.
 * Errors: ERR_IO; ERR_FORMAT a file that is no such trace, or of another schedule (event, or action that is missing).
 */
Status trace_read(ScheduleReport *out, const char *path, const Schedule *schedule, double w_share,
                  Arena *arena) MUST_USE;

/**
 * Append both for people (a table of bubbles and of the costs per stage), as JSON (the costs as --costs reads them, and
 * both bubbles), or as a picture. Other formats show the simulation.
 */
void trace_print(TextBuffer *out, ScheduleFormat format, const Schedule *schedule,
                 const ScheduleReport *measured, const ScheduleReport *simulated,
                 const Costs *costs);
