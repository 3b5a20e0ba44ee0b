#include "checkpoint_test.h"

/* The first text after a tensor's name in a file's header, changed in place. */
static void change_entry(Bench *b, const char *path, const char *tensor, const char *from,
                         const char *to)
{
    char *bytes;
    size_t n;
    assert_ok(file_read(&b->arena, path, &bytes, &n));
    assert_int_equal(strlen(from), strlen(to));
    char *at = strstr(bytes + 8, tensor);
    assert_non_null(at);
    at = strstr(at, from);
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    assert_ok(file_write_atomic(path, bytes, n));
}

static void checkpoint__moments_of_another_kind_are_refused(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *from, *to, *word;
    } rows[] = {
        {"\"F32\"", "\"I32\"", "dtype I32, expected F32"},
        {"[50, 16]", "[16, 50]", "shape [16, 50], expected [50, 16]"},
        {"embed", "ember", "missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *dir = save(b, "a", NULL, 1, NULL);
        change_entry(b, path_join(&b->arena, dir, "exp_avg_sq/model.safetensors"),
                     "model.embed_tokens.weight", rows[i].from, rows[i].to);
        Job job = {.model = model_with(b, NULL), .weights = dir, .moments_of = dir};
        job.config = CONFIG(b, "parallel.pp_size=1");
        Status status = world_run_threads(1, body, &job);
        assert_fails(status, ERR_FORMAT, rows[i].word);
        assert_fails(status, ERR_FORMAT, "model.embed_tokens.weight");
    }
}

static void expect_named(Bench *b, const char *dir, const char *file)
{
    CheckpointInfo info;
    Status status = checkpoint_read(&info, dir, &b->arena);
    if (status == OK || status_exit_code(status) != 2 || !strstr(status_message(), file))
        fail_msg("%s damaged: status %d, \"%s\"", file, (int)status,
                 status == OK ? "" : status_message());
}

static void checkpoint__damaged_files_are_named(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL);
    static const char *const files[] = {"model.safetensors", "exp_avg/model.safetensors",
                                        "exp_avg_sq/model.safetensors", "config.json",
                                        "state.json"};
    CheckpointInfo info;
    for (int i = 0; i < 5; i++) {
        const char *path = path_join(&b->arena, dir, files[i]);
        char *bytes;
        size_t n;
        assert_ok(file_read(&b->arena, path, &bytes, &n));
        for (size_t at = 0; at < n; at += n / 3 + 1) {
            bytes[at] ^= 0x10;
            assert_ok(file_write_atomic(path, bytes, n));
            expect_named(b, dir, files[i]);
            bytes[at] ^= 0x10;
        }
        assert_ok(file_write_atomic(path, bytes, n - 1));
        expect_named(b, dir, files[i]);
        assert_int_equal(unlink(path), 0);
        expect_named(b, dir, files[i]);
        assert_ok(file_write_atomic(path, bytes, n));
        assert_ok(checkpoint_read(&info, dir, &b->arena));
    }
}

/* Change manifest.json by a patch of its top keys. */
static void patch_manifest(Bench *b, const char *dir, const char *original, const char *patch)
{
    char *text = json_patched(&b->arena, original, patch);
    assert_ok(file_write_atomic(path_join(&b->arena, dir, "manifest.json"), text, strlen(text)));
}

/* What is not listed would be read without a checksum, and what a link leads to may be anybody's. */
static void checkpoint__other_files_and_links_are_refused(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL), *file = path_join(&b->arena, dir, "config.json"),
               *folder = path_join(&b->arena, dir, "exp_avg"), *away = bench_path(b, "away");
    const char *extra[] = {"model-00001-of-00002.safetensors", "exp_avg/more.safetensors"};
    CheckpointInfo info;
    for (int i = 0; i < 2; i++) {
        const char *path = path_join(&b->arena, dir, extra[i]);
        assert_ok(file_write_atomic(path, "x", 1));
        expect_named(b, dir, text_format(&b->arena, "%s: not in", extra[i]));
        assert_int_equal(unlink(path), 0);
    }
    assert_ok(file_rename(away, file));
    assert_int_equal(symlink(away, file), 0);
    expect_named(b, dir, "config.json: expected a file (found a link)");
    assert_ok(file_rename(file, away));
    assert_ok(file_rename(away, folder));
    assert_int_equal(symlink(away, folder), 0);
    expect_named(b, dir, "its folder is a link");
    assert_ok(file_rename(path_join(&b->arena, dir, "x"), folder));
    expect_named(b, dir, "exp_avg/model.safetensors");
    assert_int_equal(unlink(path_join(&b->arena, dir, "x")), 0);
    assert_ok(file_rename(folder, away));
    assert_ok(checkpoint_read(&info, dir, &b->arena));
}

static void checkpoint__broken_manifests_are_refused(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL);
    char *original = text_of(b, path_join(&b->arena, dir, "manifest.json"));
    static const struct {
        const char *patch, *word;
    } rows[] = {
        {"{\"format\": 2}", "format"},
        {"{\"format\": \"1\"}", "format"},
        {"{\"format\": \"-\"}", "format"},
        {"{\"files\": \"-\"}", "files"},
        {"{\"files\": []}", "files"},
        {"{\"files\": {\"config.json\": 1}}", "manifest.json"},
        {"{\"files\": {\"config.json\": {}}}", "bytes"},
        {"{\"files\": {\"config.json\": {\"bytes\": 1}}}", "xxh3_128"},
        {"{\"files\": {\"/etc/passwd\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}",
         "outside the folder"},
        {"{\"files\": {\"exp_avg/../../x\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}",
         "outside the folder"},
        {"{\"files\": {}}", "config.json: not in"},
        {"{\"files\": {\"gone.json\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}", "gone.json"},
        {"{\"files\": {\"../../latest\": {\"bytes\": 12, \"xxh3_128\": \"0\"}}}",
         "outside the folder"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        patch_manifest(b, dir, original, rows[i].patch);
        expect_named(b, dir, rows[i].word);
    }
    assert_ok(file_write_atomic(path_join(&b->arena, dir, "manifest.json"), "[]", 2));
    expect_named(b, dir, "manifest.json");
    assert_int_equal(unlink(path_join(&b->arena, dir, "manifest.json")), 0);
    expect_named(b, dir, "manifest.json: missing, so the checkpoint is incomplete");
    assert_false(checkpoint_is(dir));
}

/* manifest.json as it would be with another state.json. */
static void relist_state(Bench *b, const char *dir, const char *original, size_t bytes,
                         const char *hash)
{
    json_t *root = json_loads(original, 0, NULL), *files = json_object_get(root, "files");
    json_object_set_new(files, "state.json",
                        json_pack("{sI ss}", "bytes", (json_int_t)bytes, "xxh3_128", hash));
    assert_ok(json_write_file(path_join(&b->arena, dir, "manifest.json"), root));
    json_decref(root);
}

/* A state.json that is wrong although its checksum is right. */
static void checkpoint__broken_states_are_refused(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL), *path = path_join(&b->arena, dir, "state.json");
    char *manifest = text_of(b, path_join(&b->arena, dir, "manifest.json")),
         *original = text_of(b, path);
    static const struct {
        const char *patch, *word;
    } rows[] = {
        {"{\"format\": 2}", "format"},       {"{\"format\": \"-\"}", "format"},
        {"{\"step\": -1}", "step"},          {"{\"step\": \"-\"}", "step"},
        {"{\"step\": 6}", "step"}, /* of a folder that is called after step 7 */
        {"{\"position\": 1.5}", "position"}, {"{\"position\": 9223372036854775807}", "position"},
        {"{\"tokens\": null}", "tokens"},    {"{\"trained_tokens\": true}", "trained_tokens"},
        {"{\"updates\": -7}", "updates"},    {"{\"skipped\": []}", "skipped"},
        {"{\"rows\": -1}", "rows"},          {"{\"rows_hash\": \"12\"}", "rows or rows_hash"},
        {"{\"config\": 1}", "config"},       {"{\"kernel_path\": \"-\"}", "kernel_path"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = json_patched(&b->arena, original, rows[i].patch), hex[HASH_HEX_BYTES];
        assert_ok(file_write_atomic(path, text, strlen(text)));
        assert_ok(hash_file(hex, path));
        relist_state(b, dir, manifest, strlen(text), hex);
        expect_named(b, dir, text_format(&b->arena, "state.json: key %s", rows[i].word));
    }
    /* what earlier versions did not write may be missing */
    JsonDoc doc;
    CheckpointInfo info;
    assert_ok(json_doc_parse(&doc, "old", original, strlen(original)));
    assert_int_equal(json_object_del(doc.root, "rows"), 0);
    assert_int_equal(json_object_del(doc.root, "rows_hash"), 0);
    assert_int_equal(json_object_del(doc.root, "versions"), 0);
    assert_ok(checkpoint_state_of_json(&info, doc.root, "old", &b->arena));
    assert_int_equal(info.state.step, 7);
    assert_true(info.state.rows_hash == 0);
    json_doc_free(&doc);
}

/* The newest is known by its name. */
static void checkpoint__a_folder_is_called_after_its_step(void **state)
{
    Bench *b = *state;
    const char *dir = save(b, "a", NULL, 1, NULL), *copy = bench_path(b, "copy"),
               *renamed = bench_path(b, "a/checkpoints/step-000900");
    assert_ok(file_rename(renamed, dir));
    expect_named(b, renamed, "state.json: key step: not that of its folder's name (found 7");
    assert_ok(file_rename(copy, renamed)); /* a name that says nothing of steps */
    CheckpointInfo info;
    assert_ok(checkpoint_read(&info, copy, &b->arena));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(checkpoint__moments_of_another_kind_are_refused),
        BENCH_TEST(checkpoint__damaged_files_are_named),
        BENCH_TEST(checkpoint__other_files_and_links_are_refused),
        BENCH_TEST(checkpoint__broken_manifests_are_refused),
        BENCH_TEST(checkpoint__broken_states_are_refused),
        BENCH_TEST(checkpoint__a_folder_is_called_after_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
