/* In place of comm_mpi.c where there is no MPI to build with. */
#include "comm/comm_mpi.h"

#include <unistd.h>

Status mpi_world_create(MpiWorld **out)
{
    *out = NULL;
    return FAIL(ERR_UNSUPPORTED, "started by an MPI launcher, but this program was built without "
                                 "MPI (start it alone: its ranks are threads then)");
}

/* Nobody can hold a world. */

Comm *mpi_world_comm(MpiWorld *world)
{
    (void)world;
    return NULL;
}

void mpi_world_leave(MpiWorld *world, Status status)
{
    (void)world, (void)status;
}

bool mpi_world_all_left(MpiWorld *world, double seconds)
{
    (void)world, (void)seconds;
    return true;
}

bool mpi_world_has_left(const MpiWorld *world, int rank, Status *status)
{
    (void)world, (void)rank, (void)status;
    return false;
}

void mpi_world_free(MpiWorld **world, int exit_code)
{
    (void)exit_code;
    *world = NULL;
}

void mpi_world_abort(int exit_code)
{
    _exit(exit_code);
}

void mpi_world_shrink(MpiWorld *world, size_t piece_bytes, int n_tags)
{
    (void)world, (void)piece_bytes, (void)n_tags;
}
