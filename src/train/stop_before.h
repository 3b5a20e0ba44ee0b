#pragma once
/** train.stop_before: until when a run must have saved and left, and whether one more step would be too many. */
#include "train/config.h"

#include <time.h>

/**
 * Seconds from `now` until then; INFINITY for text NULL.
 *
 *   "18:30", "18:30:15"     the next time that the clock of this machine shows this
 *   "2026-12-01T18:30"      that moment, in the machine's time zone; seconds may follow
 *   "2h30m", "90m", "600"   a duration, without any unit in seconds
 *
 * ERR_USAGE "PLACE: train.stop_before: …": none of these, or a moment that is past. check_form: the form alone.
 */
Status stop_before_seconds(double *out, const char *text, const char *place, time_t now) MUST_USE;
Status stop_before_check_form(const char *text, const char *place) MUST_USE;

/** What a run has learnt of its own pace; times in seconds of clock_seconds(). */
typedef struct Deadline {
    double at; /* 0: none */
    double step_began;
    double longest_step, longest_save, longest_export; /* so far */
} Deadline;

/** How many saves and exports training waits for. */
typedef struct Waits {
    int saves, exports;
} Waits;

/**
 * What is waited for beside one more step if the run does not stop after `step`: the save that is under way (busy), what is due
 * after this step, and the save after the next; after the run's last step its exports too.
 */
Waits deadline_waits(const CheckpointSection *checkpoint, int64_t step, int64_t n_steps, bool busy);

/** at: 0, none. Until a save or an export was seen, either is taken to write a checkpoint's bytes at 100 MB a second. */
Deadline deadline_begin(double at, int64_t checkpoint_bytes);
void deadline_step_ends(Deadline *deadline);
void deadline_save_took(Deadline *deadline, double seconds);
void deadline_export_took(Deadline *deadline, double seconds);
/**
 * Asked in a step: whether after it, one more of the longest length and these waits, all with a tenth to spare, would end too
 * late.
 */
bool deadline_is_near(const Deadline *deadline, Waits waits);
