#include "temp_dir.h"
#include "io/convert.h"
#include "io/safetensors.h"

static const int64_t dim23[] = {2, 3}, dim5[] = {5}, dim0[] = {0, 4}, dim_large[] = {3, 20000};

// clang-format off
static const TensorDecl decls[] = {
    {"w.bf16",  DTYPE_BF16, 2, dim23}, {"w.f32", DTYPE_F32, 2, dim23}, {"w.f16", DTYPE_F16, 1, dim5},
    {"ids",     DTYPE_I64,  1, dim5},  {"none",  DTYPE_F32, 2, dim0},  {"one",   DTYPE_F64, 0, NULL},
    {"a\"\xc3\xa9", DTYPE_U8, 1, dim5}, {"large", DTYPE_BF16, 2, dim_large},
};
// clang-format on
enum { N_DECLS = sizeof decls / sizeof decls[0], N_LARGE = 60000 };

static float large[N_LARGE];

static const float f32[] = {0.1f, -2.5f, 1e30f, 3, 65504, -0.0f};
static const int64_t ids[] = {1, -2, 3, INT64_MAX, 5};
static const double one = 0.1;
static const unsigned char bytes[] = {1, 2, 3, 4, 255};

/* What is written, in this order; begun says how many of the pieces (the rest are left out). */
static void write_pieces(SafetensorsWriter *w, int from, int to)
{
    for (int i = from; i < to; i++) {
        switch (i) {
        case 0: assert_ok(safetensors_write_f32(w, "w.f32", 4, 2, f32 + 4)); break;
        case 1: assert_ok(safetensors_write_raw(w, "ids", 0, 5, ids)); break;
        case 2: assert_ok(safetensors_write_f32(w, "w.f32", 0, 4, f32)); break;
        case 3: assert_ok(safetensors_write_f32(w, "w.bf16", 0, 6, f32)); break;
        case 4: assert_ok(safetensors_write_raw(w, "one", 0, 1, &one)); break;
        case 5: assert_ok(safetensors_write_f32(w, "w.f16", 0, 5, f32)); break;
        case 6: assert_ok(safetensors_write_raw(w, "a\"\xc3\xa9", 0, 5, bytes)); break;
        case 7:
            assert_ok(safetensors_write_f32(w, "large", 100, N_LARGE - 100, large + 100));
            break;
        case 8: assert_ok(safetensors_write_f32(w, "large", 0, 100, large)); break;
        default: assert_ok(safetensors_write_f32(w, "none", 0, 0, NULL)); break;
        }
    }
}
enum { N_PIECES = 10 };

static void check_file(Temp *temp, const char *path)
{
    SafetensorsFile *file;
    assert_ok(safetensors_open(&file, path, &temp->arena));
    assert_int_equal(file->n, N_DECLS);
    for (int i = 0; i < N_DECLS; i++) {
        const SafetensorsEntry *entry = safetensors_find(file, decls[i].name);
        assert_non_null(entry);
        assert_int_equal(entry->dtype, decls[i].dtype);
        assert_int_equal(entry->n_dims, decls[i].n_dims);
        for (int d = 0; d < entry->n_dims; d++) assert_int_equal(entry->dim[d], decls[i].dim[d]);
        assert_int_equal(entry->offset % dtype_bytes(entry->dtype), 0);
    }
    float got[6];
    assert_ok(safetensors_read(file, safetensors_find(file, "w.f32"), 0, 6, DTYPE_F32, got));
    assert_memory_equal(got, f32, sizeof f32);
    assert_ok(safetensors_read(file, safetensors_find(file, "w.bf16"), 0, 6, DTYPE_F32, got));
    for (int i = 0; i < 6; i++) assert_true(got[i] == bf16_to_f32(f32_to_bf16(f32[i])));
    assert_ok(safetensors_read(file, safetensors_find(file, "w.f16"), 0, 5, DTYPE_F32, got));
    for (int i = 0; i < 5; i++) assert_true(got[i] == f16_to_f32(f32_to_f16(f32[i])));
    assert_memory_equal(safetensors_bytes(file, safetensors_find(file, "ids")), ids, sizeof ids);
    assert_memory_equal(safetensors_bytes(file, safetensors_find(file, "one")), &one, sizeof one);
    assert_memory_equal(safetensors_bytes(file, safetensors_find(file, decls[6].name)), bytes, 5);
    const uint16_t *half = safetensors_bytes(file, safetensors_find(file, "large"));
    for (int i = 0; i < N_LARGE; i++) assert_int_equal(half[i], f32_to_bf16(large[i]));
    safetensors_close(&file);
}

static int setup(void **state)
{
    for (int i = 0; i < N_LARGE; i++) large[i] = (float)i * 0.37f - 1000;
    return temp_setup(state);
}

static void writer__what_is_written_is_read_again(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "out.safetensors"),
         *partial = temp_path(temp, "out.safetensors.tmp");
    SafetensorsWriter *w;
    assert_ok(safetensors_writer_create(&w, path, decls, N_DECLS, &temp->arena));
    assert_ok(safetensors_writer_begin(w));
    write_pieces(w, 0, N_PIECES);
    assert_false(file_exists(path));
    assert_true(file_exists(partial));
    assert_ok(safetensors_writer_finish(&w));
    assert_null(w);
    assert_false(file_exists(partial));
    check_file(temp, path);
}

static void writer__header_is_aligned_and_names_the_format(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "out.safetensors"), *text;
    size_t n;
    SafetensorsWriter *w;
    static const TensorDecl two[] = {{"b", DTYPE_U8, 1, dim5}, {"a", DTYPE_F32, 2, dim23}};
    assert_ok(safetensors_writer_create(&w, path, two, 2, &temp->arena));
    assert_ok(safetensors_writer_begin(w));
    assert_ok(safetensors_write_raw(w, "b", 0, 5, "hello"));
    assert_ok(safetensors_write_f32(w, "a", 0, 6, f32));
    assert_ok(safetensors_writer_finish(&w));
    assert_ok(file_read(&temp->arena, path, &text, &n));
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"a\":{\"dtype\":\"F32\",\"shape\":[2, 3],\"data_offsets\":[0,24]},"
                         "\"b\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[24,29]}}";
    size_t length = (strlen(header) + 7) / 8 * 8;
    assert_int_equal((unsigned char)text[0], length);
    assert_memory_equal(text + 1, "\0\0\0\0\0\0", 7);
    assert_memory_equal(text + 8, header, strlen(header));
    for (size_t i = strlen(header); i < length; i++) assert_int_equal(text[8 + i], ' ');
    assert_int_equal(n, 8 + length + 29);
    assert_memory_equal(text + 8 + length, f32, 24);
    assert_memory_equal(text + 8 + length + 24, "hello", 5);
}

static void writer__no_tensors_make_a_sound_file(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "out.safetensors");
    SafetensorsWriter *w;
    SafetensorsFile *file;
    assert_ok(safetensors_writer_create(&w, path, NULL, 0, &temp->arena));
    assert_ok(safetensors_writer_begin(w));
    assert_ok(safetensors_writer_finish(&w));
    assert_ok(safetensors_open(&file, path, &temp->arena));
    assert_int_equal(file->n, 0);
    safetensors_close(&file);
}

static void writer__several_fill_one_file(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "out.safetensors");
    SafetensorsWriter *first, *other;
    assert_ok(safetensors_writer_create(&first, path, decls, N_DECLS, &temp->arena));
    /* The order of declaration does not matter. */
    TensorDecl reversed[N_DECLS];
    for (int i = 0; i < N_DECLS; i++) reversed[i] = decls[N_DECLS - 1 - i];
    assert_ok(safetensors_writer_create(&other, path, reversed, N_DECLS, &temp->arena));
    assert_ok(safetensors_writer_begin(first));
    assert_ok(safetensors_writer_leave(first)); /* and is back for its own part */
    assert_ok(safetensors_writer_join(first));
    assert_ok(safetensors_writer_join(other));
    write_pieces(first, 0, 2);
    write_pieces(other, 2, N_PIECES);
    int n, n_other;
    int64_t *count = safetensors_writer_counts(first, &n);
    const int64_t *count_other = safetensors_writer_counts(other, &n_other);
    assert_int_equal(n, N_DECLS);
    assert_int_equal(n_other, N_DECLS);
    for (int i = 0; i < n; i++) count[i] += count_other[i];
    assert_ok(safetensors_writer_leave(other));
    assert_ok(safetensors_writer_finish(&first));
    check_file(temp, path);
}

static void writer__missing_and_repeated_elements_are_refused_and_removed(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "out.safetensors"), **names;
    int n;
    for (int repeat = 0; repeat < 2; repeat++) {
        SafetensorsWriter *w;
        assert_ok(safetensors_writer_create(&w, path, decls, N_DECLS, &temp->arena));
        assert_ok(safetensors_writer_begin(w));
        write_pieces(w, repeat ? 0 : 1, N_PIECES);
        if (repeat) write_pieces(w, 0, 1);
        assert_int_equal(safetensors_writer_finish(&w), ERR_IO);
        assert_null(w);
        assert_message(path);
        assert_message(repeat ? "tensor w.f32: 8 elements were written, expected 6"
                              : "tensor w.f32: 4 elements were written, expected 6");
        assert_ok(dir_list(&temp->arena, temp->dir, &names, &n));
        assert_int_equal(n, 0);
    }
}

static void writer__wrong_calls_are_refused(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "out.safetensors"), **names;
    int n;
    SafetensorsWriter *w;
    assert_ok(safetensors_writer_create(&w, path, decls, N_DECLS, &temp->arena));
    assert_int_equal(safetensors_write_f32(w, "w.f32", 0, 1, f32), ERR_IO);
    assert_message("not begun");
    assert_ok(safetensors_writer_begin(w));
    assert_int_equal(safetensors_write_f32(w, "w", 0, 1, f32), ERR_FORMAT);
    assert_message("tensor w: not declared");
    static const int64_t ranges[][2] = {{-1, 1}, {0, 7}, {6, 1}, {0, -1}, {1, INT64_MAX}};
    for (int i = 0; i < 5; i++) {
        Status st = safetensors_write_raw(w, "w.f32", ranges[i][0], ranges[i][1], f32);
        assert_int_equal(st, ERR_FORMAT);
        assert_message("tensor w.f32: elements");
    }
    assert_int_equal(safetensors_write_f32(w, "ids", 0, 5, f32), ERR_UNSUPPORTED);
    assert_message("tensor ids: f32 values cannot be written as i64");
    safetensors_writer_abort(&w);
    assert_null(w);
    safetensors_writer_abort(&w);
    assert_ok(dir_list(&temp->arena, temp->dir, &names, &n));
    assert_int_equal(n, 0);
}

static void writer__bad_declarations_are_refused(void **state)
{
    Temp *temp = *state;
    static const int64_t negative[] = {2, -1}, huge[] = {INT64_MAX, 2}, half[] = {INT64_MAX / 8};
    // clang-format off
    static const struct { int n; TensorDecl decl[3]; const char *tensor, *reason; } rows[] = {
        {2, {{"a", DTYPE_F32, 1, dim5}, {"a", DTYPE_F32, 1, dim5}},      "tensor a:", "declared twice"},
        {1, {{"__metadata__", DTYPE_F32, 1, dim5}},           "tensor __metadata__:", "reserved"},
        {1, {{"a", DTYPE_F32, 2, negative}},                             "tensor a:", "negative"},
        {1, {{"a", DTYPE_F32, 2, huge}},                                 "tensor a:", "overflows"},
        {3, {{"a", DTYPE_F32, 1, half}, {"b", DTYPE_F32, 1, half}, {"c", DTYPE_F32, 1, half}},
                                                                         "tensor b:", "overflows"},
    };
    // clang-format on
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        SafetensorsWriter *w = NULL;
        assert_int_equal(
            safetensors_writer_create(&w, "out.safetensors", rows[r].decl, rows[r].n, &temp->arena),
            ERR_FORMAT);
        assert_null(w);
        assert_message("out.safetensors: ");
        assert_message(rows[r].tensor);
        assert_message(rows[r].reason);
    }
}

static void writer__unwritable_places_are_errors(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "none/out.safetensors");
    SafetensorsWriter *w;
    assert_ok(safetensors_writer_create(&w, path, decls, N_DECLS, &temp->arena));
    assert_int_equal(safetensors_writer_begin(w), ERR_IO);
    assert_message(path);
    assert_int_equal(safetensors_writer_join(w), ERR_IO);
    safetensors_writer_abort(&w);
    /* A folder in the file's place: the rename fails, and the temporary file goes. */
    char *taken = temp_path(temp, "taken"), **names;
    int n;
    assert_ok(dir_create(taken));
    temp_file(temp, "taken/x", "x", 1);
    assert_ok(safetensors_writer_create(&w, taken, NULL, 0, &temp->arena));
    assert_ok(safetensors_writer_begin(w));
    assert_int_equal(safetensors_writer_finish(&w), ERR_IO);
    assert_ok(dir_list(&temp->arena, temp->dir, &names, &n));
    assert_int_equal(n, 1);
}

#define WRITER_TEST(function) cmocka_unit_test_setup_teardown(function, setup, temp_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WRITER_TEST(writer__what_is_written_is_read_again),
        WRITER_TEST(writer__header_is_aligned_and_names_the_format),
        WRITER_TEST(writer__no_tensors_make_a_sound_file),
        WRITER_TEST(writer__several_fill_one_file),
        WRITER_TEST(writer__missing_and_repeated_elements_are_refused_and_removed),
        WRITER_TEST(writer__wrong_calls_are_refused),
        WRITER_TEST(writer__bad_declarations_are_refused),
        WRITER_TEST(writer__unwritable_places_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
