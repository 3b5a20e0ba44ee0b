#pragma once
/**
 * What the ranks of a pipeline did in a step, as a report of the same kind as a simulation's: the same bubble,
 * the same pictures. Times are milliseconds of rank 0's clock, 0 where the first action of all began.
 */
#include "pipeline/executor.h"

/**
 * Of the pipeline's last step; *out is set on rank 0 of pp. In the arena.
 * Collective: over pp, between steps. Errors: ERR_MEMORY; ERR_PEER.
 */
Status timeline_gather(ScheduleReport *out, const Pipeline *pipeline, Arena *arena) MUST_USE;

/** The median times of a report by stage and kind. Of a stage that runs B alone, I and W are each half of it; comm is 0. */
Costs timeline_costs(const ScheduleReport *report, const Schedule *schedule, Arena *arena);
