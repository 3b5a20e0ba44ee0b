#include "io/safetensors.h"
#include "io/convert.h"
#include "io/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every type of the format; those without a DType can be listed, but not loaded. */
typedef struct FileDType {
    const char *name;
    unsigned bits;
    DType dtype;
} FileDType;

// clang-format off
static const FileDType file_dtypes[] = {
    {"F32",         32, DTYPE_F32},  {"F64",         64, DTYPE_F64},  {"BF16",        16, DTYPE_BF16},
    {"F16",         16, DTYPE_F16},  {"I32",         32, DTYPE_I32},  {"I64",         64, DTYPE_I64},
    {"U8",           8, DTYPE_U8},   {"BOOL",         8, DTYPE_COUNT}, {"I8",           8, DTYPE_COUNT},
    {"I16",         16, DTYPE_COUNT}, {"U16",         16, DTYPE_COUNT}, {"U32",         32, DTYPE_COUNT},
    {"U64",         64, DTYPE_COUNT}, {"C64",         64, DTYPE_COUNT}, {"F8_E4M3",      8, DTYPE_COUNT},
    {"F8_E5M2",      8, DTYPE_COUNT}, {"F8_E8M0",      8, DTYPE_COUNT}, {"F8_E4M3FNUZ",  8, DTYPE_COUNT},
    {"F8_E5M2FNUZ",  8, DTYPE_COUNT}, {"F6_E2M3",      6, DTYPE_COUNT}, {"F6_E3M2",      6, DTYPE_COUNT},
    {"F4",           4, DTYPE_COUNT},
};
// clang-format on

enum { N_FILE_DTYPES = sizeof file_dtypes / sizeof file_dtypes[0] };

static const FileDType *file_dtype_find(const char *name)
{
    for (int i = 0; i < N_FILE_DTYPES; i++)
        if (strcmp(file_dtypes[i].name, name) == 0) return &file_dtypes[i];
    return NULL;
}

const char *safetensors_dtype_name(DType dtype)
{
    for (int i = 0; i < N_FILE_DTYPES; i++)
        if (file_dtypes[i].dtype == dtype && dtype != DTYPE_COUNT) return file_dtypes[i].name;
    return NULL;
}

const char *shape_text(Arena *arena, int n_dims, const int64_t *dim)
{
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    text_append(&buffer, "[", 1);
    for (int i = 0; i < n_dims; i++)
        text_append_format(&buffer, "%s%" PRId64, i ? ", " : "", dim[i]);
    text_append(&buffer, "]", 1);
    return buffer.text;
}

/* ---------------------------------------------------------------- header */

static Status fail_tensor(const char *path, const char *name, const char *format, ...)
    PRINTF_LIKE(3, 4);

static Status fail_tensor(const char *path, const char *name, const char *format, ...)
{
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return FAIL(ERR_FORMAT, "%s: tensor %s: %s", path, name, reason);
}

/* The header's length, once it is known to be within the file. */
static Status header_length(const SafetensorsFile *file, size_t *out)
{
    if (file->map.bytes < 8)
        return FAIL(ERR_FORMAT, "%s: header: the file has %zu bytes, too few for a header length",
                    file->path, file->map.bytes);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | file->map.data[i];
    if (length > SAFETENSORS_MAX_HEADER)
        return FAIL(ERR_FORMAT, "%s: header: length %" PRIu64 " is above the limit of %d bytes",
                    file->path, length, SAFETENSORS_MAX_HEADER);
    if (length > file->map.bytes - 8)
        return FAIL(ERR_FORMAT, "%s: header: length %" PRIu64 ", but only %zu bytes follow",
                    file->path, length, file->map.bytes - 8);
    *out = (size_t)length;
    return OK;
}

static Status read_shape(SafetensorsEntry *entry, const char *path, const json_t *shape,
                         Arena *arena)
{
    if (!json_is_array(shape))
        return fail_tensor(path, entry->name, "shape: expected a list (found %s)",
                           json_kind_name(shape));
    size_t n = json_array_size(shape);
    int64_t *dim = NULL, product = 1;
    TRY(arena_alloc(arena, &dim, n, sizeof *dim));
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(shape, i);
        if (!json_is_integer(item))
            return fail_tensor(path, entry->name, "shape[%zu]: expected an integer (found %s)", i,
                               json_kind_name(item));
        dim[i] = json_integer_value(item);
        if (dim[i] < 0)
            return fail_tensor(path, entry->name, "shape[%zu]: %" PRId64 " is negative", i, dim[i]);
        if (__builtin_mul_overflow(product, dim[i], &product))
            return fail_tensor(path, entry->name,
                               "shape: the number of elements overflows at dim "
                               "%zu (%" PRId64 ")",
                               i, dim[i]);
    }
    entry->n_dims = (int)n;
    entry->dim = dim;
    entry->n_elements = product;
    return OK;
}

/* data_offsets against the data's size and against shape and type. */
static Status read_range(SafetensorsEntry *entry, const char *path, const json_t *offsets,
                         unsigned bits, size_t data_start, size_t data_bytes)
{
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)))
        return fail_tensor(path, entry->name, "data_offsets: expected two integers");
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t end = json_integer_value(json_array_get(offsets, 1));
    if (begin < 0 || begin > end)
        return fail_tensor(path, entry->name,
                           "data_offsets [%" PRId64 ", %" PRId64 "): begin is %s", begin, end,
                           begin < 0 ? "negative" : "after end");
    if ((uint64_t)end > data_bytes)
        return fail_tensor(path, entry->name,
                           "data_offsets [%" PRId64 ", %" PRId64
                           ") end beyond the file (found %zu bytes of data)",
                           begin, end, data_bytes);
    int64_t total_bits;
    if (__builtin_mul_overflow(entry->n_elements, (int64_t)bits, &total_bits))
        return fail_tensor(path, entry->name, "shape: %" PRId64 " elements of %s overflow",
                           entry->n_elements, entry->dtype_name);
    if (total_bits % 8 != 0 || end - begin != total_bits / 8)
        return fail_tensor(path, entry->name,
                           "%" PRId64 " bytes of data, expected %" PRId64 " for %" PRId64
                           " elements of %s",
                           end - begin, (total_bits + 7) / 8, entry->n_elements, entry->dtype_name);
    entry->offset = (uint64_t)data_start + (uint64_t)begin;
    entry->bytes = (size_t)(end - begin);
    return OK;
}

static Status read_entry(SafetensorsEntry *entry, const char *path, const char *name,
                         const json_t *value, size_t data_start, size_t data_bytes, Arena *arena)
{
    entry->name = text_copy(arena, name);
    if (!json_is_object(value))
        return fail_tensor(path, name, "expected an object (found %s)", json_kind_name(value));
    const json_t *dtype = json_object_get(value, "dtype");
    if (!json_is_string(dtype))
        return fail_tensor(path, name, "dtype: expected a string (found %s)",
                           json_kind_name(dtype));
    const FileDType *type = file_dtype_find(json_string_value(dtype));
    if (!type) return fail_tensor(path, name, "dtype: unknown (%s)", json_string_value(dtype));
    entry->dtype_name = type->name;
    entry->dtype = type->dtype;
    TRY(read_shape(entry, path, json_object_get(value, "shape"), arena));
    return read_range(entry, path, json_object_get(value, "data_offsets"), type->bits, data_start,
                      data_bytes);
}

static Status check_metadata(const char *path, const json_t *metadata)
{
    if (!json_is_object(metadata))
        return FAIL(ERR_FORMAT, "%s: __metadata__: expected an object (found %s)", path,
                    json_kind_name(metadata));
    const char *key;
    const json_t *value;
    json_object_foreach(
        (json_t *)(uintptr_t)metadata, key,
        value) if (!json_is_string(value)) return FAIL(ERR_FORMAT,
                                                       "%s: __metadata__: key %s: expected a "
                                                       "string (found %s)",
                                                       path, key, json_kind_name(value));
    return OK;
}

static int compare_by_place(const void *a, const void *b)
{
    const SafetensorsEntry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_by_name(const void *a, const void *b)
{
    return strcmp(((const SafetensorsEntry *)a)->name, ((const SafetensorsEntry *)b)->name);
}

/* The ranges, sorted by place, must follow one another from the start of the data to its end. */
static Status check_cover(const SafetensorsFile *file, const SafetensorsEntry *entry, int n,
                          size_t data_start)
{
    uint64_t at = data_start;
    for (int i = 0; i < n; i++) {
        if (entry[i].offset < at)
            return fail_tensor(file->path, entry[i].name, "overlaps tensor %s by %" PRIu64 " bytes",
                               entry[i - 1].name, at - entry[i].offset);
        if (entry[i].offset > at)
            return fail_tensor(file->path, entry[i].name,
                               "a hole of %" PRIu64 " bytes before its data", entry[i].offset - at);
        at += entry[i].bytes;
    }
    if (at != file->map.bytes)
        return FAIL(ERR_FORMAT, "%s: %" PRIu64 " bytes after the last tensor%s%s", file->path,
                    file->map.bytes - at, n ? " " : "", n ? entry[n - 1].name : "");
    return OK;
}

static Status read_header(SafetensorsFile *file, const json_t *header, size_t data_start,
                          Arena *arena)
{
    if (!json_is_object(header))
        return FAIL(ERR_FORMAT, "%s: header: expected an object (found %s)", file->path,
                    json_kind_name(header));
    SafetensorsEntry *entry = NULL;
    int n = 0;
    TRY(arena_alloc(arena, &entry, json_object_size(header), sizeof *entry));
    const char *name;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0)
            TRY(check_metadata(file->path, value));
        else
            TRY(read_entry(&entry[n++], file->path, name, value, data_start,
                           file->map.bytes - data_start, arena));
    }
    if (n) qsort(entry, (size_t)n, sizeof *entry, compare_by_place);
    TRY(check_cover(file, entry, n, data_start));
    if (n) qsort(entry, (size_t)n, sizeof *entry, compare_by_name);
    file->entry = entry;
    file->n = n;
    return OK;
}

static Status check_file(SafetensorsFile *file, Arena *arena)
{
    size_t length = 0;
    TRY(header_length(file, &length));
    const char *text = (const char *)file->map.data + 8;
    if (length == 0 || text[0] != '{')
        return FAIL(ERR_FORMAT, "%s: header: does not start with {", file->path);
    json_error_t error;
    json_t *header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!header)
        return FAIL(ERR_FORMAT, "%s: header: byte %d: %s", file->path, error.position, error.text);
    Status st = read_header(file, header, 8 + length, arena);
    json_decref(header);
    return st;
}

/* ---------------------------------------------------------------- files */

static Status open_map(SafetensorsFile **out, const char *path, MappedFile map, bool mapped,
                       Arena *arena)
{
    SafetensorsFile *file = NULL;
    TRY(arena_alloc(arena, &file, 1, sizeof *file));
    *file = (SafetensorsFile){.path = text_copy(arena, path), .map = map, .mapped = mapped};
    TRY(check_file(file, arena));
    *out = file;
    return OK;
}

Status safetensors_open(SafetensorsFile **out, const char *path, Arena *arena)
{
    MappedFile map;
    TRY(file_map(&map, path));
    Status st = open_map(out, path, map, true, arena);
    if (st != OK) file_unmap(&map);
    return st;
}

Status safetensors_open_memory(SafetensorsFile **out, const char *path, const void *bytes, size_t n,
                               Arena *arena)
{
    return open_map(out, path, (MappedFile){.data = bytes, .bytes = n}, false, arena);
}

void safetensors_close(SafetensorsFile **file)
{
    if (*file && (*file)->mapped) file_unmap(&(*file)->map);
    *file = NULL;
}

const SafetensorsEntry *safetensors_find(const SafetensorsFile *file, const char *name)
{
    if (!file->n) return NULL;
    SafetensorsEntry key = {.name = name};
    return bsearch(&key, file->entry, (size_t)file->n, sizeof key, compare_by_name);
}

const void *safetensors_bytes(const SafetensorsFile *file, const SafetensorsEntry *entry)
{
    return file->map.data + entry->offset;
}

Status safetensors_read(const SafetensorsFile *file, const SafetensorsEntry *entry, int64_t first,
                        int64_t count, DType dtype, void *dst)
{
    bool widens = dtype == DTYPE_F32 || dtype == DTYPE_F64;
    if (!convert_possible(dtype, entry->dtype) || (dtype != entry->dtype && !widens))
        return FAIL(ERR_UNSUPPORTED, "%s: tensor %s: stored as %s, which cannot be read as %s",
                    file->path, entry->name, entry->dtype_name, dtype_name(dtype));
    if (first < 0 || count < 0 || first > entry->n_elements || count > entry->n_elements - first)
        return fail_tensor(file->path, entry->name,
                           "elements %" PRId64 " and %" PRId64 " more of %" PRId64 " do not exist",
                           first, count, entry->n_elements);
    const char *src = safetensors_bytes(file, entry);
    convert_array(dst, dtype, src + (size_t)first * dtype_bytes(entry->dtype), entry->dtype, count);
    return OK;
}
