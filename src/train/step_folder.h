#pragma once
/**
 * Folders that are complete or absent: written as .NAME.tmp beside NAME, flushed, renamed. And those called step-000100, of
 * which a run keeps the newest. Paths come out of the arena; all errors are ERR_IO.
 */
#include "base/log.h"

/** "step-000100" */
const char *step_name(Arena *arena, int64_t step);
/** The number of a folder step-…, or -1. */
int64_t step_of(const char *name);

/** dir/NAME -> dir/.NAME.tmp, emptied. */
Status folder_begin(const char **temporary, const char *dir, Arena *arena) MUST_USE;
/** Where folder_begin puts it. */
const char *folder_temporary(const char *dir, Arena *arena);
/** dir/.NAME.tmp takes the name. What has it already gives way, to be removed by folder_forget: a kill loses neither. */
Status folder_end(const char *dir, Arena *arena) MUST_USE;
Status folder_forget(const char *dir, Arena *arena) MUST_USE;
/**
 * Half a folder serves nobody, and where it fails the disk is often full: removed, and the status message stays what it was.
 * By one rank, once no other writes any more.
 */
void folder_drop(const char *dir, Arena *arena);

/**
 * Of the folders up to this step remove all but the newest `keep`. A later one was left by a run that was ahead of what it was
 * resumed from; counting it could remove the very folder that was just saved.
 */
Status folder_prune(const char *dir, int64_t keep, int64_t step, Arena *arena) MUST_USE;

/** A folder that had given way when the run was killed, with nothing in its place, gets its name back. No error without dir. */
Status folder_recover(const char *dir, Log *log, Arena *arena) MUST_USE;
/** Remove what interrupted writes left in dir, and say so in one line. No error without dir. */
Status folder_clear(const char *dir, Log *log, Arena *arena) MUST_USE;
