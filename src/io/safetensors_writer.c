#define _GNU_SOURCE /* sync_file_range */
#include "io/convert.h"
#include "io/json.h"
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLUSH_BYTES = 8 << 20 };

/* A declared tensor and its place in the file. */
typedef struct Slot {
    TensorDecl decl;
    int64_t n_elements;
    size_t bytes;
    uint64_t offset; /* in the file, once laid out */
} Slot;

struct SafetensorsWriter {
    const char *path, *temporary;
    int fd;     /* -1: not open */
    bool begun; /* the temporary file is this writer's */
    int n;
    Slot *slot;       /* [n] by name */
    int64_t *written; /* [n] elements */
    const char *header;
    size_t header_bytes; /* the 8 bytes of its length included */
    uint64_t file_bytes;
    size_t unflushed; /* bytes that nobody has asked the disk to take */
};

Status tensor_decl_bytes(const TensorDecl *decl, size_t *out)
{
    size_t bytes = dtype_bytes(decl->dtype);
    for (int i = 0; i < decl->n_dims; i++) {
        if (decl->dim[i] < 0)
            return FAIL(ERR_FORMAT, "tensor %s: dim %d is negative (%" PRId64 ")", decl->name, i,
                        decl->dim[i]);
        if (__builtin_mul_overflow(bytes, (size_t)decl->dim[i], &bytes) || bytes > INT64_MAX)
            return FAIL(ERR_FORMAT, "tensor %s: its size overflows at dim %d (%" PRId64 ")",
                        decl->name, i, decl->dim[i]);
    }
    *out = bytes;
    return OK;
}

/* ---------------------------------------------------------------- layout */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const Slot *)a)->decl.name, ((const Slot *)b)->decl.name);
}

static int compare_places(const void *a, const void *b)
{
    const Slot *x = *(Slot *const *)a, *y = *(Slot *const *)b;
    size_t wide = dtype_bytes(x->decl.dtype), other = dtype_bytes(y->decl.dtype);
    if (wide != other) return wide > other ? -1 : 1;
    return strcmp(x->decl.name, y->decl.name);
}

static void append_entry(TextBuffer *buffer, const Slot *slot, Arena *arena)
{
    text_append(buffer, ",", 1);
    json_append_string(buffer, slot->decl.name);
    text_append_format(
        buffer, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
        safetensors_dtype_name(slot->decl.dtype),
        shape_text(arena, slot->decl.n_dims, slot->decl.dim), slot->offset,
        slot->offset + slot->bytes);
}

/* Gives every slot its place and makes the header. */
static Status lay_out(SafetensorsWriter *w, Arena *arena)
{
    Slot **order = NULL;
    TRY(arena_alloc(arena, &order, (size_t)w->n, sizeof *order));
    for (int i = 0; i < w->n; i++) order[i] = &w->slot[i];
    if (w->n) qsort(order, (size_t)w->n, sizeof *order, compare_places);
    uint64_t data_bytes = 0;
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    text_append_format(&buffer, "12345678{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < w->n; i++) {
        order[i]->offset = data_bytes;
        append_entry(&buffer, order[i], arena);
        if (__builtin_add_overflow(data_bytes, order[i]->bytes, &data_bytes) ||
            data_bytes > INT64_MAX / 2)
            return FAIL(ERR_FORMAT, "%s: tensor %s: the file's size overflows", w->path,
                        order[i]->decl.name);
    }
    text_append(&buffer, "}", 1);
    while (buffer.length % 8 != 0) text_append(&buffer, " ", 1);
    uint64_t length = buffer.length - 8;
    if (length > SAFETENSORS_MAX_HEADER)
        return FAIL(ERR_FORMAT, "%s: header: %" PRIu64 " bytes, the format's limit is %d", w->path,
                    length, SAFETENSORS_MAX_HEADER);
    for (int i = 0; i < 8; i++) buffer.text[i] = (char)(length >> 8 * i & 0xff);
    for (int i = 0; i < w->n; i++) w->slot[i].offset += buffer.length;
    w->header = buffer.text;
    w->header_bytes = buffer.length;
    w->file_bytes = buffer.length + data_bytes;
    return OK;
}

static Status copy_decl(Slot *slot, const TensorDecl *decl, const char *path, Arena *arena)
{
    slot->decl = *decl;
    slot->decl.name = text_copy(arena, decl->name);
    int64_t *dim = NULL;
    TRY(arena_alloc(arena, &dim, (size_t)decl->n_dims, sizeof *dim));
    for (int i = 0; i < decl->n_dims; i++) dim[i] = decl->dim[i];
    slot->decl.dim = dim;
    if (strcmp(decl->name, "__metadata__") == 0)
        return FAIL(ERR_FORMAT, "%s: tensor %s: the name is reserved", path, decl->name);
    if (tensor_decl_bytes(decl, &slot->bytes) != OK)
        return FAIL(ERR_FORMAT, "%s: %s", path, status_message());
    slot->n_elements = (int64_t)(slot->bytes / dtype_bytes(decl->dtype));
    return OK;
}

Status safetensors_writer_create(SafetensorsWriter **out, const char *path, const TensorDecl *decl,
                                 int n, Arena *arena)
{
    SafetensorsWriter *w = NULL;
    TRY(arena_alloc(arena, &w, 1, sizeof *w));
    *w = (SafetensorsWriter){.path = text_copy(arena, path),
                             .temporary = text_format(arena, "%s.tmp", path),
                             .fd = -1,
                             .n = n};
    TRY(arena_alloc(arena, &w->slot, (size_t)n, sizeof *w->slot));
    TRY(arena_alloc(arena, &w->written, (size_t)n, sizeof *w->written));
    for (int i = 0; i < n; i++) TRY(copy_decl(&w->slot[i], &decl[i], path, arena));
    if (n) qsort(w->slot, (size_t)n, sizeof *w->slot, compare_names);
    for (int i = 1; i < n; i++)
        if (strcmp(w->slot[i].decl.name, w->slot[i - 1].decl.name) == 0)
            return FAIL(ERR_FORMAT, "%s: tensor %s: declared twice", path, w->slot[i].decl.name);
    TRY(lay_out(w, arena));
    *out = w;
    return OK;
}

/* ---------------------------------------------------------------- writing */

static Status fail_errno(const SafetensorsWriter *w)
{
    return FAIL(ERR_IO, "%s: %s", w->temporary, strerror(errno));
}

Status safetensors_writer_begin(SafetensorsWriter *w)
{
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (w->fd < 0) return fail_errno(w);
    /* Full size at once: the ranks that join find the file as large as it will be. */
    Status st = ftruncate(w->fd, (off_t)w->file_bytes) == 0 ? OK : fail_errno(w);
    if (st == OK) st = fd_write_at(w->fd, w->temporary, w->header, w->header_bytes, 0);
    w->begun = st == OK;
    if (st == OK) return OK;
    close(w->fd);
    w->fd = -1;
    unlink(w->temporary);
    return st;
}

Status safetensors_writer_join(SafetensorsWriter *w)
{
    if (w->fd < 0) w->fd = open(w->temporary, O_WRONLY | O_CLOEXEC);
    return w->fd < 0 ? fail_errno(w) : OK;
}

/* The slot of a name, once the range is known to be within it. */
static Status find_range(const SafetensorsWriter *w, const char *name, int64_t first, int64_t count,
                         Slot **out)
{
    if (w->fd < 0) return FAIL(ERR_IO, "%s: tensor %s: the file is not begun", w->path, name);
    Slot key = {.decl.name = name};
    Slot *slot = w->n ? bsearch(&key, w->slot, (size_t)w->n, sizeof key, compare_names) : NULL;
    if (!slot) return FAIL(ERR_FORMAT, "%s: tensor %s: not declared", w->path, name);
    if (first < 0 || count < 0 || first > slot->n_elements || count > slot->n_elements - first)
        return FAIL(ERR_FORMAT,
                    "%s: tensor %s: elements %" PRId64 " and %" PRId64 " more of %" PRId64
                    " do not exist",
                    w->path, name, first, count, slot->n_elements);
    *out = slot;
    return OK;
}

/* The disk takes what is there while more is copied; errors are left to fsync, which waits for the rest. */
static void flush_some(SafetensorsWriter *w, size_t bytes)
{
    w->unflushed += bytes;
    if (w->unflushed < FLUSH_BYTES) return;
    w->unflushed = 0;
    (void)sync_file_range(w->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

static Status write_elements(SafetensorsWriter *w, const Slot *slot, int64_t first, int64_t count,
                             const void *src)
{
    size_t size = dtype_bytes(slot->decl.dtype);
    TRY(fd_write_at(w->fd, w->temporary, src, (size_t)count * size,
                    slot->offset + (uint64_t)first * size));
    w->written[slot - w->slot] += count;
    flush_some(w, (size_t)count * size);
    return OK;
}

Status safetensors_write_raw(SafetensorsWriter *w, const char *name, int64_t first, int64_t count,
                             const void *src)
{
    Slot *slot;
    TRY(find_range(w, name, first, count, &slot));
    return write_elements(w, slot, first, count, src);
}

Status safetensors_write_f32(SafetensorsWriter *w, const char *name, int64_t first, int64_t count,
                             const float *src)
{
    enum { BLOCK = 16384 };
    Slot *slot;
    TRY(find_range(w, name, first, count, &slot));
    DType dtype = slot->decl.dtype;
    if (dtype == DTYPE_F32) return write_elements(w, slot, first, count, src);
    if (dtype != DTYPE_BF16 && dtype != DTYPE_F16)
        return FAIL(ERR_UNSUPPORTED, "%s: tensor %s: f32 values cannot be written as %s", w->path,
                    name, dtype_name(dtype));
    uint16_t block[BLOCK];
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        convert_array(block, dtype, src + at, DTYPE_F32, n);
        TRY(write_elements(w, slot, first + at, n, block));
    }
    return OK;
}

int64_t safetensors_writer_bytes(const SafetensorsWriter *w)
{
    return (int64_t)w->file_bytes;
}

int64_t *safetensors_writer_counts(SafetensorsWriter *w, int *n)
{
    *n = w->n;
    return w->written;
}

/* ---------------------------------------------------------------- the end */

Status safetensors_writer_leave(SafetensorsWriter *w)
{
    if (w->fd < 0) return OK;
    Status st = fsync(w->fd) == 0 ? OK : fail_errno(w);
    if (close(w->fd) != 0 && st == OK) st = fail_errno(w);
    w->fd = -1;
    return st;
}

static Status check_complete(const SafetensorsWriter *w)
{
    for (int i = 0; i < w->n; i++)
        if (w->written[i] != w->slot[i].n_elements)
            return FAIL(ERR_IO,
                        "%s: tensor %s: %" PRId64 " elements were written, expected %" PRId64,
                        w->path, w->slot[i].decl.name, w->written[i], w->slot[i].n_elements);
    return OK;
}

Status safetensors_writer_finish(SafetensorsWriter **writer)
{
    SafetensorsWriter *w = *writer;
    *writer = NULL;
    if (!w->begun) return FAIL(ERR_IO, "%s: finished, but not begun", w->path);
    Status st = check_complete(w);
    Status closed = safetensors_writer_leave(w);
    if (st == OK) st = closed;
    if (st == OK) st = file_rename(w->path, w->temporary);
    if (st != OK) unlink(w->temporary);
    return st;
}

void safetensors_writer_abort(SafetensorsWriter **writer)
{
    SafetensorsWriter *w = *writer;
    *writer = NULL;
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    if (w->begun) unlink(w->temporary);
}
