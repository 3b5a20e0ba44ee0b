#pragma once
/** Pictures of a schedule in time. */
#include "pipeline/schedule_text.h"

/**
 * A lane per rank: actions coloured by kind with their microbatch number, later virtual stages paler,
 * bubbles hatched; under each lane what is held in memory over time, all ranks to one scale.
 */
void schedule_print_svg(TextBuffer *out, const Schedule *schedule, const ScheduleReport *report);

/** A measured step above its simulation, on one scale. */
void schedule_print_svg_both(TextBuffer *out, const Schedule *schedule,
                             const ScheduleReport *measured, const ScheduleReport *simulated);
