#include "temp_dir.h"
#include "io/safetensors.h"

#include <math.h>
#include <unistd.h>

/* length of the header (-1: as it is), header, then so many bytes of data (counting up from 1). */
static char *write_raw_file(Temp *temp, int64_t length, const char *header, size_t header_bytes,
                            size_t data_bytes)
{
    size_t n = 8 + header_bytes + data_bytes;
    char *bytes = arena_take(&temp->arena, n);
    uint64_t said = length < 0 ? header_bytes : (uint64_t)length;
    for (int i = 0; i < 8; i++) bytes[i] = (char)(said >> 8 * i & 0xff);
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + header_bytes + i] = (char)(i + 1);
    return temp_file(temp, "x.safetensors", bytes, n);
}

#define ENTRY(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"
#define A(shape, begin, end) ENTRY("layer.a", "F32", shape, begin, end)
#define B(shape, begin, end) ENTRY("layer.b", "F32", shape, begin, end)

typedef struct Broken {
    const char *header;
    size_t data_bytes;
    const char *tensor; /* "" when none is to blame */
    const char *reason;
} Broken;

// clang-format off
static const Broken broken[] = {
    {"",                                       0, "header",  "does not start with {"},
    {"[]",                                     0, "header",  "does not start with {"},
    {" {}",                                    0, "header",  "does not start with {"},
    {"{",                                      0, "header",  "expected near end of file"},
    {"{\"a\xff\":1}",                          0, "header",  "decode byte 0xff"},
    {"{} x",                                   0, "header",  "end of file expected"},
    {"{" A("[1]", 0, 4) "," A("[1]", 0, 4) "}", 4, "layer.a", "duplicate object key"},
    {"{\"layer.a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0, "header", "duplicate object key"},
    {"{" ENTRY("layer.a", "F31", "[1]", 0, 4) "}", 4, "layer.a", "dtype: unknown (F31)"},
    {"{" ENTRY("layer.a", "f32", "[1]", 0, 4) "}", 4, "layer.a", "dtype: unknown (f32)"},
    {"{\"layer.a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,0]}}", 0, "layer.a", "dtype: expected a string (found an integer)"},
    {"{\"layer.a\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0, "layer.a", "dtype: expected a string (found nothing)"},
    {"{\"layer.a\":{\"dtype\":\"F32\",\"data_offsets\":[0,0]}}", 0, "layer.a", "shape: expected a list (found nothing)"},
    {"{\"layer.a\":{\"dtype\":\"F32\",\"shape\":[0]}}", 0, "layer.a", "data_offsets: expected two integers"},
    {"{\"layer.a\":[]}",                       0, "layer.a", "expected an object (found a list)"},
    {"{" A("[-1]", 0, 4) "}",                  4, "layer.a", "shape[0]: -1 is negative"},
    {"{" A("[2,-1]", 0, 4) "}",                4, "layer.a", "shape[1]: -1 is negative"},
    {"{" A("[1.5]", 0, 4) "}",                 4, "layer.a", "shape[0]: expected an integer (found a real)"},
    {"{" A("[1.0]", 0, 4) "}",                 4, "layer.a", "shape[0]: expected an integer (found a real)"},
    {"{" A("[\"1\"]", 0, 4) "}",               4, "layer.a", "shape[0]: expected an integer (found a string)"},
    {"{" A("[9223372036854775808]", 0, 4) "}", 4, "header",  "too big integer"},
    {"{" A("[4294967296,4294967296]", 0, 4) "}", 4, "layer.a", "overflows at dim 1"},
    {"{" A("[4294967296,4294967296,0]", 0, 0) "}", 0, "layer.a", "overflows at dim 1"},
    {"{" A("[4611686018427387904]", 0, 4) "}", 4, "layer.a", "overflow"},
    {"{" A("[1]", 4, 0) "}",                   4, "layer.a", "begin is after end"},
    {"{" A("[1]", -4, 0) "}",                  4, "layer.a", "begin is negative"},
    {"{" A("[1]", 0, 4.0) "}",                 4, "layer.a", "expected two integers"},
    {"{" A("[2]", 0, 8) "}",                   4, "layer.a", "end beyond the file (found 4 bytes of data)"},
    {"{" A("[1]", 9223372036854775800, 9223372036854775804) "}", 4, "layer.a", "end beyond the file"},
    {"{" A("[1]", 0, 8) "}",                   8, "layer.a", "8 bytes of data, expected 4 for 1 elements of F32"},
    {"{" A("[]", 0, 0) "}",                    0, "layer.a", "0 bytes of data, expected 4"},
    {"{" A("[0]", 0, 4) "}",                   4, "layer.a", "4 bytes of data, expected 0"},
    {"{" ENTRY("layer.a", "F4", "[1]", 0, 1) "}", 1, "layer.a", "expected"}, /* half a byte */
    {"{" A("[2]", 0, 8) "," B("[2]", 4, 12) "}", 12, "layer.b", "overlaps tensor layer.a by 4 bytes"},
    {"{" A("[1]", 0, 4) "," B("[1]", 0, 4) "}", 4, "layer.b", "overlaps tensor layer.a by 4 bytes"},
    {"{" A("[2]", 0, 8) "," B("[0]", 4, 4) "}", 8, "layer.b", "overlaps tensor layer.a by 4 bytes"},
    {"{" A("[1]", 0, 4) "," B("[1]", 8, 12) "}", 12, "layer.b", "a hole of 4 bytes before its data"},
    {"{" A("[1]", 4, 8) "}",                   8, "layer.a", "a hole of 4 bytes before its data"},
    {"{" A("[1]", 0, 4) "}",                  12, "layer.a", "8 bytes after the last tensor"},
    {"{}",                                     1, "",        "1 bytes after the last tensor"},
    {"{" A("[1]", 0, 4) "," B("[1]", 4, 8) "}", 7, "layer.b", "end beyond the file (found 7 bytes of data)"},
    {"{\"__metadata__\":{\"format\":1}}",      0, "__metadata__", "key format: expected a string (found an integer)"},
    {"{\"__metadata__\":\"pt\"}",              0, "__metadata__", "expected an object (found a string)"},
};
// clang-format on

static void safetensors__broken_files_are_refused_by_file_tensor_and_reason(void **state)
{
    Temp *temp = *state;
    for (size_t r = 0; r < sizeof broken / sizeof broken[0]; r++) {
        char *path = write_raw_file(temp, -1, broken[r].header, strlen(broken[r].header),
                                    broken[r].data_bytes);
        SafetensorsFile *file = NULL;
        if (safetensors_open(&file, path, &temp->arena) != ERR_FORMAT)
            fail_msg("row %zu (%s) was not refused", r, broken[r].header);
        assert_null(file);
        assert_message(path);
        assert_message(broken[r].tensor);
        assert_message(broken[r].reason);
    }
}

static void safetensors__lying_header_lengths_are_refused_without_allocating(void **state)
{
    Temp *temp = *state;
    // clang-format off
    static const struct { int64_t length; const char *reason; } rows[] = {
        {INT64_MIN,         "length 9223372036854775808 is above the limit"}, /* 2^63 */
        {INT64_MAX,         "above the limit"},
        {100000001,         "above the limit"},
        {100000000,         "length 100000000, but only 2 bytes follow"},
        {3,                 "length 3, but only 2 bytes follow"},
        {1,                 "expected near end of file"}, /* the header is cut */
        {0,                 "does not start with {"},
    };
    // clang-format on
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        size_t before = temp->arena.reserved;
        char bytes[10] = {0};
        for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)rows[r].length >> 8 * i & 0xff);
        memcpy(bytes + 8, "{}", 2);
        char *path = temp_file(temp, "x.safetensors", bytes, sizeof bytes);
        SafetensorsFile *file;
        assert_int_equal(safetensors_open(&file, path, &temp->arena), ERR_FORMAT);
        assert_message(path);
        assert_message(rows[r].reason);
        assert_true(temp->arena.reserved - before <= 4 << 20);
    }
}

static void safetensors__every_cut_of_a_good_file_is_refused(void **state)
{
    Temp *temp = *state;
    const char *header = "{" A("[1]", 0, 4) "," B("[1]", 4, 8) "}";
    char *path = write_raw_file(temp, -1, header, strlen(header), 8), *bytes;
    size_t n;
    SafetensorsFile *file;
    assert_ok(file_read(&temp->arena, path, &bytes, &n));
    assert_ok(safetensors_open(&file, path, &temp->arena));
    safetensors_close(&file);
    assert_null(file);
    for (size_t cut = 0; cut < n; cut++) {
        path = temp_file(temp, "cut.safetensors", bytes, cut);
        assert_int_equal(safetensors_open(&file, path, &temp->arena), ERR_FORMAT);
        assert_message(path);
    }
}

static void safetensors__missing_file_is_an_error(void **state)
{
    Temp *temp = *state;
    SafetensorsFile *file;
    char *path = temp_path(temp, "none.safetensors");
    assert_int_equal(safetensors_open(&file, path, &temp->arena), ERR_IO);
    assert_message(path);
}

static void safetensors__sound_files_are_accepted(void **state)
{
    Temp *temp = *state;
    // clang-format off
    static const struct { const char *header; size_t data_bytes; int n; } rows[] = {
        {"{}",                                                       0, 0},
        {"{\"__metadata__\":{}}",                                    0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}," A("[1]", 0, 4) "}   \n ", 4, 1},
        {"{" B("[1]", 4, 8) "," A("[1]", 0, 4) "}",                  8, 2}, /* any order */
        {"{" B("[1]", 0, 4) "," A("[1]", 4, 8) "}",                  8, 2},
        {"{" A("[0,7]", 0, 0) "," B("[1]", 0, 4) "}",                4, 2}, /* no elements: start, */
        {"{" A("[1]", 0, 4) "," B("[0]", 4, 4) "}",                  4, 2}, /* end */
        {"{" A("[0]", 0, 0) "," B("[3,0]", 0, 0) "}",                0, 2},
        {"{" A("[]", 0, 4) "}",                                      4, 1},
        {"{" A("[1,1,1,1,1,1,1]", 0, 4) "}",                         4, 1},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, 1},
        {"{" ENTRY("layer.a", "F8_E4M3", "[3]", 0, 3) "}",           3, 1},
        {"{" ENTRY("layer.a", "F4", "[2,3]", 0, 3) "}",              3, 1},
        {"{" ENTRY("layer.a", "BOOL", "[3]", 0, 3) "}",              3, 1},
    };
    // clang-format on
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char *path =
            write_raw_file(temp, -1, rows[r].header, strlen(rows[r].header), rows[r].data_bytes);
        SafetensorsFile *file;
        assert_ok(safetensors_open(&file, path, &temp->arena));
        assert_int_equal(file->n, rows[r].n);
        safetensors_close(&file);
    }
}

static void safetensors__long_padded_headers_are_accepted(void **state)
{
    Temp *temp = *state;
    /* Just within the limit, and one above. A sparse file: the spaces after it are what costs time. */
    size_t n = 100 * 1000 * 1000;
    char *header = malloc(n + 1);
    assert_non_null(header);
    memset(header, ' ', n + 1);
    memcpy(header, "{}", 2);
    char length[8];
    SafetensorsFile *file;
    for (size_t extra = 0; extra < 2; extra++) {
        for (int i = 0; i < 8; i++) length[i] = (char)((n + extra) >> 8 * i & 0xff);
        char *whole = malloc(8 + n + extra);
        assert_non_null(whole);
        memcpy(whole, length, 8);
        memcpy(whole + 8, header, n + extra);
        Status st = safetensors_open_memory(&file, "long", whole, 8 + n + extra, &temp->arena);
        assert_int_equal(st, extra ? ERR_FORMAT : OK);
        free(whole);
    }
    free(header);
}

static void safetensors__entries_say_what_the_header_says(void **state)
{
    Temp *temp = *state;
    const char *header =
        "{" ENTRY("z", "F8_E5M2", "[3]", 0, 3) "," ENTRY("b", "BF16", "[2,1]", 3, 7) "," ENTRY(
            "a.long", "I64", "[]", 7, 15) "," ENTRY("a", "U8", "[0]", 15, 15) "}";
    char *path = write_raw_file(temp, -1, header, strlen(header), 15);
    SafetensorsFile *file;
    assert_ok(safetensors_open(&file, path, &temp->arena));
    // clang-format off
    static const struct {
        const char *name, *dtype_name, *shape; DType dtype; int n_dims; int64_t n_elements; size_t bytes, offset;
    } want[] = {
        {"a",      "U8",      "[0]",    DTYPE_U8,    1, 0, 0, 15},
        {"a.long", "I64",     "[]",     DTYPE_I64,   0, 1, 8, 7},
        {"b",      "BF16",    "[2, 1]", DTYPE_BF16,  2, 2, 4, 3},
        {"z",      "F8_E5M2", "[3]",    DTYPE_COUNT, 1, 3, 3, 0},
    };
    // clang-format on
    assert_int_equal(file->n, 4);
    for (int i = 0; i < 4; i++) {
        const SafetensorsEntry *entry = safetensors_find(file, want[i].name);
        assert_ptr_equal(entry, &file->entry[i]);
        assert_string_equal(entry->name, want[i].name);
        assert_string_equal(entry->dtype_name, want[i].dtype_name);
        assert_int_equal(entry->dtype, want[i].dtype);
        assert_string_equal(shape_text(&temp->arena, entry->n_dims, entry->dim), want[i].shape);
        assert_int_equal(entry->n_dims, want[i].n_dims);
        assert_int_equal(entry->n_elements, want[i].n_elements);
        assert_int_equal(entry->bytes, want[i].bytes);
        assert_int_equal(entry->offset, 8 + strlen(header) + want[i].offset);
        const unsigned char *bytes = safetensors_bytes(file, entry);
        for (size_t b = 0; b < entry->bytes; b++)
            assert_int_equal(bytes[b], want[i].offset + b + 1);
    }
    static const char *const absent[] = {"", "a.", "c", "zz"};
    for (int i = 0; i < 4; i++) assert_null(safetensors_find(file, absent[i]));
    safetensors_close(&file);
    safetensors_close(&file);
}

static void safetensors__values_are_converted_or_copied(void **state)
{
    Temp *temp = *state;
    /* -2, 0.5 and 3 (integers: -2, 0, 3), each type at an odd place in the file. */
    static const unsigned char f32[] = {0, 0, 0, 0xc0, 0, 0, 0, 0x3f, 0, 0, 0x40, 0x40};
    static const unsigned char f64[] = {0, 0, 0,    0,    0, 0, 0, 0xc0, 0, 0, 0, 0,
                                        0, 0, 0xe0, 0x3f, 0, 0, 0, 0,    0, 0, 8, 0x40};
    static const unsigned char bf16[] = {0, 0xc0, 0, 0x3f, 0x40, 0x40};
    static const unsigned char f16[] = {0, 0xc0, 0, 0x38, 0, 0x42};
    static const unsigned char i32[] = {0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0, 3, 0, 0, 0};
    static const unsigned char i64[] = {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
                                        0,    0,    0,    0,    3,    0,    0,    0,    0, 0, 0, 0};
    static const struct {
        const char *dtype_name;
        DType dtype;
        const unsigned char *bytes;
        size_t size;
        double half;
    } rows[] = {
        {"F32", DTYPE_F32, f32, 12, 0.5},   {"F64", DTYPE_F64, f64, 24, 0.5},
        {"BF16", DTYPE_BF16, bf16, 6, 0.5}, {"F16", DTYPE_F16, f16, 6, 0.5},
        {"I32", DTYPE_I32, i32, 12, 0},     {"I64", DTYPE_I64, i64, 24, 0},
    };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char header[256];
        int n = snprintf(header, sizeof header,
                         "{\"o\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[1,%zu]}}",
                         rows[r].dtype_name, 1 + rows[r].size);
        while ((8 + n) % 8) header[n++] = ' ';
        unsigned char bytes[512] = {(unsigned char)n};
        memcpy(bytes + 8, header, (size_t)n);
        memcpy(bytes + 8 + n + 1, rows[r].bytes, rows[r].size);
        SafetensorsFile *file;
        assert_ok(safetensors_open_memory(&file, "memory", bytes, 9 + (size_t)n + rows[r].size,
                                          &temp->arena));
        const SafetensorsEntry *entry = safetensors_find(file, "t");
        float f[4] = {7, 7, 7, 7};
        double d[4] = {7, 7, 7, 7};
        unsigned char raw[24];
        assert_ok(safetensors_read(file, entry, 0, 3, DTYPE_F32, f));
        assert_true(f[0] == -2 && f[1] == (float)rows[r].half && f[2] == 3 && f[3] == 7);
        assert_ok(safetensors_read(file, entry, 1, 2, DTYPE_F64, d));
        assert_true(d[0] == rows[r].half && d[1] == 3 && d[2] == 7);
        assert_ok(safetensors_read(file, entry, 0, 3, rows[r].dtype, raw));
        assert_memory_equal(raw, rows[r].bytes, rows[r].size);
        assert_ok(safetensors_read(file, entry, 3, 0, DTYPE_F32, f));
        static const int64_t ranges[][2] = {{-1, 1}, {0, 4}, {3, 1},
                                            {0, -1}, {4, 0}, {1, INT64_MAX}};
        for (int i = 0; i < 6; i++) {
            assert_int_equal(
                safetensors_read(file, entry, ranges[i][0], ranges[i][1], DTYPE_F32, f),
                ERR_FORMAT);
            assert_message("memory: tensor t:");
        }
        safetensors_close(&file);
    }
}

static void safetensors__types_that_cannot_be_loaded_are_refused_by_name(void **state)
{
    Temp *temp = *state;
    const char *header =
        "{" ENTRY("q", "F8_E4M3", "[4]", 0, 4) "," ENTRY("w", "F32", "[1]", 4, 8) "}";
    char *path = write_raw_file(temp, -1, header, strlen(header), 8);
    SafetensorsFile *file;
    char dst[32];
    assert_ok(safetensors_open(&file, path, &temp->arena));
    assert_int_equal(safetensors_read(file, safetensors_find(file, "q"), 0, 1, DTYPE_F32, dst),
                     ERR_UNSUPPORTED);
    assert_message("tensor q: stored as F8_E4M3");
    assert_message(path);
    assert_int_equal(safetensors_read(file, safetensors_find(file, "w"), 0, 1, DTYPE_BF16, dst),
                     ERR_UNSUPPORTED);
    assert_message("tensor w: stored as F32, which cannot be read as bf16");
    safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(safetensors__broken_files_are_refused_by_file_tensor_and_reason),
        TEMP_TEST(safetensors__lying_header_lengths_are_refused_without_allocating),
        TEMP_TEST(safetensors__every_cut_of_a_good_file_is_refused),
        TEMP_TEST(safetensors__missing_file_is_an_error),
        TEMP_TEST(safetensors__sound_files_are_accepted),
        TEMP_TEST(safetensors__long_padded_headers_are_accepted),
        TEMP_TEST(safetensors__entries_say_what_the_header_says),
        TEMP_TEST(safetensors__values_are_converted_or_copied),
        TEMP_TEST(safetensors__types_that_cannot_be_loaded_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
