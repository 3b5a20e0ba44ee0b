#pragma once
/**
 * Saving checkpoints of a run (their form: train/checkpoint.h), by all ranks together, each its own elements:
 *
 *   saver_start    rank 0 makes a hidden folder and the files in it, all copy what they will write, and training goes on
 *   parts          beside it a thread of each rank writes the rank's elements from the copy
 *   folder         once all parts are on disk: a thread of rank 0 adds what lies beside them, checksums everything, renames
 *                  the folder, moves `latest`, and removes checkpoints beyond checkpoint.keep
 *
 * The threads never communicate. Ranks agree where training does: saver_part_done of all ranks is summed with a step's other
 * numbers, and when all say so saver_advance goes from parts to folder, and from folder to the end.
 *
 * With checkpoint.async false, or without checkpoint.interval, there are no copies: the same is done while training waits. The
 * bytes on disk are the same.
 *
 * A save that fails leaves nothing behind but the checkpoints that were there before.
 */
#include "train/checkpoint.h"

typedef struct Saver Saver;

/**
 * After the moments are made. Takes all memory of later saves from the engine's arena. Collective over world.
 * Errors: ERR_MEMORY, the same on all ranks.
 */
Status saver_create(Saver **out, Engine *engine, Log *log) MUST_USE;
/** Waits for this rank's thread; a save that is not at its end stays a hidden folder. */
void saver_free(Saver **saver);

/** Whether training need not wait for saver_settle after saver_start; the same on all ranks. */
bool saver_is_beside(const Saver *saver);
/** Of this rank: bytes that the copy takes, 0 without one. */
int64_t saver_copy_bytes(const Saver *saver);
/** Bytes of a whole checkpoint, without what lies beside the tensors. */
int64_t saver_checkpoint_bytes(const Saver *saver);

/** Whether a save is under way; the same on all ranks. */
bool saver_is_busy(const Saver *saver);
/** Since the last save was started. */
double saver_seconds(const Saver *saver);
/** The step that is being saved, or was last. */
int64_t saver_step(const Saver *saver);

/**
 * Begin to save the engine's masters and moments with this state. None is under way. Collective over world.
 * Errors, the same on all ranks (comm_agree): ERR_IO, not enough space among them; nothing is under way then.
 */
Status saver_start(Saver *saver, const TrainState *state) MUST_USE;

/** Whether this rank has nothing to write at the moment. */
bool saver_part_done(Saver *saver);
/** When it is so on all ranks: what comes next. Collective over world. Errors: as saver_settle. */
Status saver_advance(Saver *saver) MUST_USE;
/**
 * Wait for the save that is under way, if any. Collective over world.
 * Errors: why it failed (one rank's own, ERR_PEER on the others); nothing is under way any more.
 */
Status saver_settle(Saver *saver) MUST_USE;
