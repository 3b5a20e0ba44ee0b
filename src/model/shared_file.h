#pragma once
/** A safetensors file that several ranks write together, each what it has. */
#include "comm/comm.h"
#include "io/safetensors.h"

/** Writes this rank's elements (safetensors_write_…); all ranks together every element once. */
typedef Status SharedFileFill(SafetensorsWriter *writer, void *arg);

/**
 * Rank 0 lays the file out, all fill in their slices, rank 0 counts and renames: complete or absent. The same bytes however
 * the elements are spread. Collective over comm, with the same list.
 * Errors: those of safetensors_writer_…, the same on all ranks (comm_agree).
 */
Status shared_file_write(Comm *comm, const char *path, const TensorDecl *decl, int n,
                         SharedFileFill *fill, void *arg, Arena *scratch) MUST_USE;
