#include "model/shared_file.h"

static Status fill_and_count(Comm *comm, SafetensorsWriter *writer, SharedFileFill *fill, void *arg)
{
    TRY(comm_agree(comm, fill(writer, arg)));
    int n;
    int64_t *counts = safetensors_writer_counts(writer, &n);
    return comm_sum_i64(comm, counts, n);
}

Status shared_file_write(Comm *comm, const char *path, const TensorDecl *decl, int n,
                         SharedFileFill *fill, void *arg, Arena *scratch)
{
    bool first = comm->rank == 0;
    SafetensorsWriter *writer = NULL;
    Status status = safetensors_writer_create(&writer, path, decl, n, scratch);
    if (status == OK && first) status = safetensors_writer_begin(writer);
    status = comm_agree(comm, status);
    if (status == OK && !first) status = safetensors_writer_join(writer);
    status = comm_agree(comm, status);
    if (status == OK) status = fill_and_count(comm, writer, fill, arg);
    if (status != OK) {
        safetensors_writer_abort(&writer);
        return status;
    }
    if (!first) status = safetensors_writer_leave(writer);
    status = comm_agree(comm, status);
    if (!first) return comm_agree(comm, status);
    if (status != OK)
        safetensors_writer_abort(&writer);
    else
        status = safetensors_writer_finish(&writer);
    return comm_agree(comm, status);
}
