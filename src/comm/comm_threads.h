#pragma once
/**
 * Ranks as threads of one process. A message is copied once, from the sender's memory to the
 * receiver's, by whichever of the two comes second; nothing is buffered and nothing allocated once the
 * pools of request records have grown to what a step needs.
 */
#include "comm/comm.h"

typedef struct ThreadWorld ThreadWorld;

Status thread_world_create(ThreadWorld **out, int n_ranks) MUST_USE;
/** After all ranks ended. */
void thread_world_free(ThreadWorld **world);
/** The rank's comm, lent; only that rank's thread may call it. */
Comm *thread_world_comm(ThreadWorld *world, int rank);
/** The rank answers no more: pending and later waits of others for it are lost. */
void thread_world_leave(ThreadWorld *world, int rank);
