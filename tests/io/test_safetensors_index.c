#include "temp_dir.h"
#include "io/safetensors_index.h"

#include <fcntl.h>
#include <unistd.h>

enum { MAX_NAMES = 4 };
static const int64_t dim2[] = {2};

/* A shard with f32 tensors [2] of these names (single letters); the values are the letter and its shard. */
static void write_shard(Temp *temp, const char *file, const char *letters)
{
    TensorDecl decl[MAX_NAMES];
    char name[MAX_NAMES][2] = {0};
    int n = (int)strlen(letters);
    for (int i = 0; i < n; i++) {
        name[i][0] = letters[i];
        decl[i] = (TensorDecl){.name = name[i], .dtype = DTYPE_F32, .n_dims = 1, .dim = dim2};
    }
    SafetensorsWriter *w;
    assert_ok(safetensors_writer_create(&w, temp_path(temp, file), decl, n, &temp->arena));
    assert_ok(safetensors_writer_begin(w));
    for (int i = 0; i < n; i++) {
        float value[2] = {(float)letters[i], (float)file[0]};
        assert_ok(safetensors_write_f32(w, name[i], 0, 2, value));
    }
    assert_ok(safetensors_writer_finish(&w));
}

typedef struct Row {
    const char *index;    /* text of the index; NULL: none */
    const char *shard[2]; /* letters in 1.safetensors, 2.safetensors; NULL: no such file */
    const char *single;   /* letters in model.safetensors */
    Status status;
    const char *message; /* of the error, or of the warning; NULL: no warning */
    const char *listed, *unlisted;
} Row;

#define MAP(total, map) "{\"metadata\":{\"total_size\":" total "},\"weight_map\":{" map "}}"
#define IN1(name) "\"" name "\":\"1.safetensors\""
#define IN2(name) "\"" name "\":\"2.safetensors\""

// clang-format off
static const Row rows[] = {
    /* sound folders */
    {NULL, {0}, "ab", OK, NULL, "ab", ""},
    {NULL, {0}, "", OK, NULL, "", ""},
    {MAP("24", IN2("c") "," IN1("a") "," IN2("b")), {"a", "bc"}, NULL, OK, NULL, "abc", ""},
    {MAP("2.4e1", IN2("c") "," IN1("a") "," IN2("b")), {"a", "bc"}, NULL, OK, NULL, "abc", ""},
    {"{\"weight_map\":{" IN1("a") "}}", {"a"}, NULL, OK, NULL, "a", ""},
    {MAP("8", "\"a\":\"model.safetensors\""), {0}, "a", OK, NULL, "a", ""},
    /* warnings */
    {MAP("25", IN2("c") "," IN1("a") "," IN2("b")), {"a", "bc"}, NULL, OK, "total_size: 25, but the listed tensors have 24", "abc", ""},
    {MAP("-8", IN1("a")), {"a"}, NULL, OK, "total_size: -8", "a", ""},
    {MAP("8", IN1("a")), {"ab"}, NULL, OK, NULL, "a", "b"},
    {MAP("16", IN1("a")), {"ab"}, NULL, OK, NULL, "a", "b"},
    {MAP("17", IN1("a")), {"ab"}, NULL, OK, "total_size", "a", "b"},
    {MAP("8", IN1("a")), {"a"}, "xy", OK, "does not name model.safetensors", "xy", ""},
    /* refusals: the index's path is in all messages but those of a shard */
    {NULL, {"a"}, NULL, ERR_IO, "holds neither model.safetensors nor", "", ""},
    {MAP("8", IN1("a") "," IN2("b")), {"a"}, NULL, ERR_IO, "tensor b: shard 2.safetensors is missing", "", ""},
    {MAP("8", IN1("a") "," IN1("b")), {"a"}, NULL, ERR_FORMAT, "tensor b: not in the shard it is listed for, 1.safetensors", "", ""},
    {MAP("8", IN1("a") "," IN1("b") "," IN2("c")), {"a", "bc"}, NULL, ERR_FORMAT, "2.safetensors)", "", ""},
    {MAP("8", IN1("a") "," IN2("b")), {"a", "ab"}, NULL, ERR_FORMAT, "tensor a: also in", "", ""},
    {MAP("8", IN1("a") "," IN2("b")), {"ac", "bc"}, NULL, ERR_FORMAT, "tensor c: also in", "", ""},
    {MAP("8", "\"a\":\"../1.safetensors\""), {"a"}, NULL, ERR_FORMAT, "tensor a: shard ../1.safetensors: expected", "", ""},
    {MAP("8", "\"a\":\"/tmp/1.safetensors\""), {"a"}, NULL, ERR_FORMAT, "tensor a: shard /tmp/1.safetensors: expected", "", ""},
    {MAP("8", "\"a\":\"..\""), {"a"}, NULL, ERR_FORMAT, "shard ..: expected", "", ""},
    {MAP("8", "\"a\":\"\""), {"a"}, NULL, ERR_FORMAT, "tensor a: shard : expected", "", ""},
    {MAP("8", "\"a\":\".1.safetensors\""), {"a"}, NULL, ERR_FORMAT, "tensor a: shard .1.safetensors: expected", "", ""},
    {MAP("8", "\"a\":\"config.json\""), {"a"}, NULL, ERR_FORMAT, "tensor a: shard config.json: expected", "", ""},
    {MAP("8", "\"a\":1"), {"a"}, NULL, ERR_FORMAT, "tensor a: expected the name of a shard (found an integer)", "", ""},
    {MAP("8", ""), {"a"}, NULL, ERR_FORMAT, "weight_map: no tensors", "", ""},
    {MAP("\"8\"", IN1("a")), {"a"}, NULL, ERR_FORMAT, "total_size: expected a number", "", ""},
    {MAP("8", IN1("a") "," IN1("a")), {"a"}, NULL, ERR_FORMAT, "duplicate object key near '\"a\"'", "", ""},
    {"{\"metadata\":[],\"weight_map\":{" IN1("a") "}}", {"a"}, NULL, ERR_FORMAT, "metadata: expected an object", "", ""},
    {"{}", {"a"}, NULL, ERR_FORMAT, "weight_map: missing", "", ""},
    {"{\"weight_map\":[]}", {"a"}, NULL, ERR_FORMAT, "weight_map: expected an object (found a list)", "", ""},
    {"[]", {"a"}, NULL, ERR_FORMAT, "expected an object (found a list)", "", ""},
    {"{", {"a"}, NULL, ERR_FORMAT, "model.safetensors.index.json:1:", "", ""},
    {"", {"a"}, NULL, ERR_FORMAT, "model.safetensors.index.json:1:", "", ""},
};
// clang-format on

static void check_tensors(const Row *row, const ShardIndex *index)
{
    int n = (int)strlen(row->listed), n_unlisted = (int)strlen(row->unlisted);
    assert_int_equal(index->n, n + n_unlisted);
    assert_int_equal(index->n_unlisted, n_unlisted);
    assert_int_equal(index->total_size, 8 * (n + n_unlisted));
    for (int i = 0; i < index->n; i++) {
        const ShardTensor *tensor = &index->tensor[i];
        if (i > 0) assert_true(strcmp(index->tensor[i - 1].name, tensor->name) < 0);
        assert_ptr_equal(shard_index_find(index, tensor->name), tensor);
        assert_non_null(strchr(tensor->unlisted ? row->unlisted : row->listed, tensor->name[0]));
        /* The values say whether this is the right tensor of the right file. */
        float value[2];
        assert_ok(shard_tensor_read(tensor, 0, 2, DTYPE_F32, value));
        assert_true(value[0] == (float)tensor->name[0]);
        assert_true(value[1] == (float)(strrchr(tensor->file->path, '/')[1]));
    }
    assert_null(shard_index_find(index, "not there"));
}

static void index__folders_are_accepted_warned_about_or_refused(void **state)
{
    Temp *temp = *state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const Row *row = &rows[r];
        assert_ok(dir_remove_tree(temp->dir));
        assert_ok(dir_create(temp->dir));
        if (row->single) write_shard(temp, "model.safetensors", row->single);
        if (row->shard[0]) write_shard(temp, "1.safetensors", row->shard[0]);
        if (row->shard[1]) write_shard(temp, "2.safetensors", row->shard[1]);
        if (row->index)
            temp_file(temp, "model.safetensors.index.json", row->index, strlen(row->index));
        Log log;
        char *log_path = temp_path(temp, "log.txt"), *text;
        assert_ok(log_open(&log, log_path, 0, false));
        ShardIndex *index = NULL;
        Status st = shard_index_open(&index, temp->dir, &temp->arena, &log);
        log_close(&log);
        if (st != row->status)
            fail_msg("row %zu: status %d (%s), expected %d", r, st, status_message(), row->status);
        assert_ok(file_read(&temp->arena, log_path, &text, NULL));
        if (st != OK) {
            assert_null(index);
            assert_message(temp->dir);
            assert_message(row->message);
            assert_string_equal(text, "");
            continue;
        }
        if (!row->message) assert_string_equal(text, "");
        if (row->message && !strstr(text, row->message))
            fail_msg("row %zu: log \"%s\" does not hold \"%s\"", r, text, row->message);
        check_tensors(row, index);
        shard_index_close(&index);
        assert_null(index);
    }
}

static void index__broken_shards_are_refused_by_their_own_name(void **state)
{
    Temp *temp = *state;
    const char *text = MAP("16", IN1("a") "," IN2("b"));
    temp_file(temp, "model.safetensors.index.json", text, strlen(text));
    write_shard(temp, "1.safetensors", "a");
    write_shard(temp, "2.safetensors", "b");
    char *bytes, *path = temp_path(temp, "2.safetensors");
    size_t n;
    assert_ok(file_read(&temp->arena, path, &bytes, &n));
    assert_ok(file_write_atomic(path, bytes, n - 1));
    ShardIndex *index;
    assert_int_equal(shard_index_open(&index, temp->dir, &temp->arena, NULL), ERR_FORMAT);
    assert_message(path);
    assert_message("tensor b: ");
}

static void index__one_file_is_a_folder_of_one(void **state)
{
    Temp *temp = *state;
    write_shard(temp, "any.safetensors", "ab");
    ShardIndex *index;
    char *path = temp_path(temp, "any.safetensors");
    assert_ok(shard_index_open(&index, path, &temp->arena, NULL));
    assert_int_equal(index->n, 2);
    assert_false(index->has_index);
    assert_string_equal(index->path, path);
    assert_false(index->tensor[0].unlisted);
    shard_index_close(&index);
    shard_index_close(&index);
    path = temp_path(temp, "none.safetensors");
    assert_int_equal(shard_index_open(&index, path, &temp->arena, NULL), ERR_IO);
    assert_message(path);
}

static int open_descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) != -1;
    return n;
}

static void index__nothing_stays_open_or_mapped(void **state)
{
    Temp *temp = *state;
    const char *text = MAP("8", IN1("a") "," IN2("b"));
    temp_file(temp, "model.safetensors.index.json", text, strlen(text));
    write_shard(temp, "1.safetensors", "a");
    write_shard(temp, "2.safetensors", "c");
    int before = open_descriptors();
    ShardIndex *index;
    for (int i = 0; i < 10; i++)
        assert_int_equal(shard_index_open(&index, temp->dir, &temp->arena, NULL), ERR_FORMAT);
    assert_int_equal(open_descriptors(), before);
    char *maps;
    assert_ok(file_read(&temp->arena, "/proc/self/maps", &maps, NULL));
    assert_null(strstr(maps, temp->dir));
}

/* ---------------------------------------------------------------- planning */

static void plan__fills_shards_in_order(void **state)
{
    Temp *temp = *state;
    static const int64_t one[] = {1}, three[] = {3}, none[] = {0};
    // clang-format off
    static const TensorDecl decls[] = { /* 12, 4, 4, 6, 0, 4 bytes */
        {"z", DTYPE_F32, 1, three}, {"y", DTYPE_F32, 1, one},  {"b\"", DTYPE_F32, 1, one},
        {"a", DTYPE_BF16, 1, three}, {"e", DTYPE_F32, 1, none}, {"c", DTYPE_F32, 1, one},
    };
    static const struct { int64_t max; int n_shards; int shard_of[6]; } wants[] = {
        {1000, 1, {0, 0, 0, 0, 0, 0}}, {30, 1, {0, 0, 0, 0, 0, 0}}, {29, 2, {0, 0, 0, 0, 0, 1}},
        {14, 3, {0, 1, 1, 1, 1, 2}}, {8, 4, {0, 1, 1, 2, 2, 3}}, {1, 5, {0, 1, 2, 3, 3, 4}},
    };
    // clang-format on
    for (size_t r = 0; r < sizeof wants / sizeof wants[0]; r++) {
        ShardPlan plan;
        assert_ok(shard_plan(&plan, decls, 6, wants[r].max, &temp->arena));
        assert_int_equal(plan.total_size, 30);
        assert_int_equal(plan.n_shards, wants[r].n_shards);
        for (int i = 0; i < 6; i++) assert_int_equal(plan.shard_of[i], wants[r].shard_of[i]);
        ShardMap map;
        assert_ok(shard_map_parse(&map, "plan", plan.index_text, plan.index_bytes, &temp->arena));
        assert_int_equal(map.n, 6);
        assert_true(map.has_total_size && map.total_size == 30);
        assert_string_equal(map.tensor[1], "b\"");
        assert_string_equal(map.shard[1], plan.file_name[plan.shard_of[2]]);
    }
    ShardPlan plan;
    assert_ok(shard_plan(&plan, decls, 6, 29, &temp->arena));
    assert_string_equal(plan.file_name[1], "model-00002-of-00002.safetensors");
    assert_string_equal(plan.index_text,
                        "{\n  \"metadata\": {\n    \"total_size\": 30\n  },\n  \"weight_map\": {\n"
                        "    \"a\": \"model-00001-of-00002.safetensors\",\n"
                        "    \"b\\\"\": \"model-00001-of-00002.safetensors\",\n"
                        "    \"c\": \"model-00002-of-00002.safetensors\",\n"
                        "    \"e\": \"model-00001-of-00002.safetensors\",\n"
                        "    \"y\": \"model-00001-of-00002.safetensors\",\n"
                        "    \"z\": \"model-00001-of-00002.safetensors\"\n  }\n}\n");
    assert_int_equal(plan.index_bytes, strlen(plan.index_text));
    assert_ok(shard_plan(&plan, decls, 6, 30, &temp->arena));
    assert_string_equal(plan.file_name[0], "model.safetensors");
}

static void plan__bad_lists_are_refused(void **state)
{
    Temp *temp = *state;
    static const int64_t negative[] = {-1};
    static const TensorDecl twice[] = {{"a", DTYPE_F32, 1, dim2}, {"a", DTYPE_F32, 1, dim2}};
    static const TensorDecl bad[] = {{"a", DTYPE_F32, 1, negative}};
    ShardPlan plan;
    assert_int_equal(shard_plan(&plan, twice, 2, 100, &temp->arena), ERR_FORMAT);
    assert_message("tensor a: listed twice");
    assert_int_equal(shard_plan(&plan, bad, 1, 100, &temp->arena), ERR_FORMAT);
    assert_message("tensor a: dim 0 is negative");
    assert_int_equal(shard_plan(&plan, twice, 1, 0, &temp->arena), ERR_USAGE);
    assert_message("found 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(index__folders_are_accepted_warned_about_or_refused),
        TEMP_TEST(index__broken_shards_are_refused_by_their_own_name),
        TEMP_TEST(index__one_file_is_a_folder_of_one),
        TEMP_TEST(index__nothing_stays_open_or_mapped),
        TEMP_TEST(plan__fills_shards_in_order),
        TEMP_TEST(plan__bad_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
