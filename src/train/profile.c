#include "train/profile.h"
#include "io/file.h"
#include "pipeline/schedule_text.h"
#include "pipeline/timeline.h"

bool profile_wants(const TrainConfig *config, int64_t step)
{
    const IntList *steps = &config->train.profile_steps;
    for (int i = 0; i < steps->n; i++)
        if (steps->at[i] == step) return true;
    return false;
}

void profile_warn(const TrainConfig *config, int64_t n_steps, Log *log)
{
    const IntList *steps = &config->train.profile_steps;
    for (int i = 0; i < steps->n; i++)
        if (steps->at[i] > n_steps)
            log_warning(log, "train.profile_steps: step %lld never comes (the run has %lld)",
                        (long long)steps->at[i], (long long)n_steps);
}

Status profile_begin(Engine *e)
{
    e->pipeline[PASS_TRAIN]->watch_messages = true;
    return engine_align_clocks(e);
}

static Status write_timeline(const Engine *e, int64_t step, const ScheduleReport *report,
                             Arena *arena)
{
    TextBuffer text;
    text_buffer_init(&text, arena);
    schedule_print(&text, SCHEDULE_TRACE, e->schedule[PASS_TRAIN], report);
    const char *dir = path_join(arena, e->config->train.output, "trace");
    TRY(dir_create(dir));
    const char *name = text_format(arena, "step-%06lld.json", (long long)step);
    return file_write_atomic(path_join(arena, dir, name), text.text, text.length);
}

/* With an arena of its own: what other steps need does not grow by it. */
Status profile_end(Engine *e, int64_t step)
{
    Pipeline *pipeline = e->pipeline[PASS_TRAIN];
    Comm *world = e->mesh->world;
    Arena arena;
    arena_init(&arena, "timeline");
    ScheduleReport report;
    pipeline->watch_messages = false;
    Status status = timeline_gather(&report, pipeline, &arena);
    if (status == OK)
        status =
            comm_agree(world, world->rank == 0 ? write_timeline(e, step, &report, &arena) : OK);
    arena_free(&arena);
    return status;
}
