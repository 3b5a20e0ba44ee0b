#pragma once
/**
 * Ranks as processes that a launcher (mpiexec, srun) started, over MPI. A build without MPI has
 * comm_mpi_none.c in place of comm_mpi.c and comm_mpi_messages.c: there mpi_world_create refuses.
 *
 * Only MPI_Isend, MPI_Irecv and MPI_Test* carry data, on a duplicate of MPI_COMM_WORLD; nothing blocks
 * and nothing spins, so ranks may outnumber cores with any MPI.
 *
 * Matching. Tags here have 64 bits, MPI guarantees 32767 of them, so tags are matched by us. Each
 * message is announced by an envelope (tag, bytes, number) with MPI tag 0; its bytes follow with MPI
 * tag 1 + number mod 32767, number counting the messages of this sender to this receiver. MPI keeps
 * the order of the envelopes of a pair. The receiver matches an envelope with the oldest posted receive
 * of its tag, or stores it until one is posted, and only then posts MPI's receive. Two messages could
 * take each other's bytes only if they have the same MPI tag and the later one is matched first: then the
 * earlier one is 32767 numbers or more older and still stored. An envelope that arrives in that
 * situation ends the process ("too many messages").
 *
 * The end. A rank that leaves sends an envelope that says so, and how it went, to all; it is the last
 * one of its pair. Hence a receive is lost exactly if its sender's last envelope is here and none fits.
 * Until all have left, a rank that left takes what still comes for it and drops it: sends to it get
 * done, and no memory is read after its owner took it back.
 *
 * All processes must have the same byte order and word size.
 */
#include "comm/comm.h"

typedef struct MpiWorld MpiWorld;

/**
 * MPI_Init_thread and a comm of all processes. Collective: over all processes that were started
 * together; once in a process. From here on die() ends all of them.
 * Errors: ERR_UNSUPPORTED if built without MPI, or if the MPI library lacks what is needed.
 */
Status mpi_world_create(MpiWorld **out) MUST_USE;
/** This process' comm, lent. */
Comm *mpi_world_comm(MpiWorld *world);
/** Tell all ranks that this one answers no more, and with what status it ended. Does not wait. */
void mpi_world_leave(MpiWorld *world, Status status);
/** After leaving: wait until all have left, at most so many seconds (0: for ever). False: not yet. */
bool mpi_world_all_left(MpiWorld *world, double seconds);
/** Whether the rank is known to have left; its status then. */
bool mpi_world_has_left(const MpiWorld *world, int rank, Status *status);
/**
 * MPI_Finalize, after all left. If that takes more than a second, its network connections are ended; after 3 the process, with
 * this exit code.
 */
void mpi_world_free(MpiWorld **world, int exit_code);
/** End all processes at once with this exit code (MPI_Abort). */
_Noreturn void mpi_world_abort(int exit_code);

/**
 * For tests: pieces of at most so many bytes instead of 1 GiB (MPI counts with int), and so many tags
 * instead of 32767. The same on all ranks, while no message is on its way.
 */
void mpi_world_shrink(MpiWorld *world, size_t piece_bytes, int n_tags);
