#pragma once
/**
 * One safetensors file: 8 bytes little-endian header length N, N bytes of JSON (name -> dtype, shape,
 * data_offsets [begin, end) into the data), data. Ranges cover the data without overlap or hole.
 * Source: the format's README in huggingface/safetensors.
 *
 * Reading maps the file. Everything the header says is checked before any data is touched: a file
 * that opens is sound, and reading its tensors cannot go wrong but by asking for what is not there.
 */
#include "core/tensor.h"
#include "io/file.h"

/** The longest header accepted, as in the reference implementation. */
enum { SAFETENSORS_MAX_HEADER = 100 * 1000 * 1000 };

typedef struct SafetensorsEntry {
    const char *name;
    const char *dtype_name; /* as in the file: "BF16", "F8_E4M3", … */
    DType dtype;            /* DTYPE_COUNT: a known type that cannot be loaded */
    int n_dims;             /* any number, 0 for a single element */
    const int64_t *dim;     /* [n_dims], each >= 0 */
    int64_t n_elements;
    uint64_t offset; /* of the first byte, in the file */
    size_t bytes;
} SafetensorsEntry;

typedef struct SafetensorsFile {
    const char *path;
    MappedFile map;
    bool mapped; /* false: the bytes are the caller's */
    int n;
    const SafetensorsEntry *entry; /* [n], sorted by name (strcmp) */
} SafetensorsFile;

/**
 * Map and check. The list lives in the arena, the map until safetensors_close.
 * Errors: ERR_IO; ERR_FORMAT "PATH: tensor NAME: reason" or "PATH: header: reason" for everything
 * that is wrong with it.
 */
Status safetensors_open(SafetensorsFile **out, const char *path, Arena *arena) MUST_USE;
/** The same for a file that is in memory, which must outlive the handle; path is for messages. */
Status safetensors_open_memory(SafetensorsFile **out, const char *path, const void *bytes, size_t n,
                               Arena *arena) MUST_USE;
void safetensors_close(SafetensorsFile **file); /* clears the handle; NULL is fine */

/** NULL: not there. */
const SafetensorsEntry *safetensors_find(const SafetensorsFile *file, const char *name);

/** The tensor's bytes, entry->bytes of them, lent until close, maybe unaligned. */
const void *safetensors_bytes(const SafetensorsFile *file, const SafetensorsEntry *entry);

/**
 * Elements first … first+count-1 (flat, row-major) into dst [count] as dtype: f32 or f64 from any
 * loadable type, or the tensor's own type unchanged.
 * ERR_UNSUPPORTED: the stored type cannot be loaded, or not as dtype. ERR_FORMAT: a range beyond the end.
 */
Status safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, int64_t first,
                        int64_t count, DType dtype, void *dst) MUST_USE;

/** The format's name of a type that can be loaded: "F32", "BF16", … */
const char *safetensors_dtype_name(DType dtype);

/** "[2, 3]" in the arena, for messages and listings. */
const char *shape_text(Arena *arena, int n_dims, const int64_t *dim);

/* ------------------------------------------------------------------------------------------------ */

/** A tensor to be written: dtype is f32, f64, bf16, f16, i32, i64 or u8. */
typedef struct TensorDecl {
    const char *name;
    DType dtype;
    int n_dims;
    const int64_t *dim; /* [n_dims] */
} TensorDecl;

/** Bytes of a declared tensor; ERR_FORMAT when negative dims or overflow. */
Status tensor_decl_bytes(const TensorDecl *decl, size_t *out) MUST_USE;

/**
 * Writes PATH.tmp and renames it to PATH in the end:
 *
 *   safetensors_writer_create(&w, path, decls, n, arena);     nothing on disk yet
 *   safetensors_writer_begin(w);                              header and the file's full size
 *   safetensors_write_f32(w, name, first, count, src); …      every element once, in any order
 *   safetensors_writer_finish(&w);                            or safetensors_writer_abort(&w)
 *
 * Data is laid out by falling element size, then name, so that all tensors are aligned and the same
 * tensors give the same file whatever the order of declaration.
 *
 * Several ranks can fill one file, each with a writer of its own made from the same list: one calls
 * begin, then (after a barrier) the others call join instead. In the end the others call leave, the
 * counts of all are added up in the first one's safetensors_writer_counts, and that one finishes. It
 * may leave and join in between too, so that no file is open while nobody writes.
 * One writer, one thread at a time.
 */
typedef struct SafetensorsWriter SafetensorsWriter;

/** Copies decls. ERR_FORMAT: a name twice, or "__metadata__"; negative dims or overflow. */
Status safetensors_writer_create(SafetensorsWriter **out, const char *path, const TensorDecl *decl,
                                 int n, Arena *arena) MUST_USE;
Status safetensors_writer_begin(SafetensorsWriter *writer) MUST_USE;
/** Open the temporary file that was begun; one that is open stays so. */
Status safetensors_writer_join(SafetensorsWriter *writer) MUST_USE;

/** Elements first … first+count-1 of a tensor of f32 (a copy), bf16 or f16 (rounded to nearest even). */
Status safetensors_write_f32(SafetensorsWriter *writer, const char *name, int64_t first,
                             int64_t count, const float *src) MUST_USE;
/** The same from bytes already in the tensor's type. */
Status safetensors_write_raw(SafetensorsWriter *writer, const char *name, int64_t first,
                             int64_t count, const void *src) MUST_USE;

/** Elements written so far per tensor, [n] in the order of the file's names; lent, may be added to. */
int64_t *safetensors_writer_counts(SafetensorsWriter *writer, int *n);

/** Checks that each tensor was written as often as it has elements, fsync, rename. Clears the handle, also on failure. */
Status safetensors_writer_finish(SafetensorsWriter **writer) MUST_USE;
/** fsync and close; the temporary file and the counts stay, for join or finish. */
Status safetensors_writer_leave(SafetensorsWriter *writer) MUST_USE;
/** Bytes of the whole file. */
int64_t safetensors_writer_bytes(const SafetensorsWriter *writer);
/** Closes, and removes the temporary file if this writer began it. Clears the handle; NULL is fine. */
void safetensors_writer_abort(SafetensorsWriter **writer);
