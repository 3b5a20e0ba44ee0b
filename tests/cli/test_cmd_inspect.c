#include "program.h"

#include "io/hash.h"
#include "io/json.h"
#include "io/safetensors.h"

#define GOLDEN SW_SOURCE_DIR "/tests/golden/"

static json_t *inspect(Temp *temp, const char *arguments, int status)
{
    Ran ran = run_program(temp, text_format(&temp->arena, "inspect --json %s", arguments));
    if (ran.status != status) fail_msg("%s: exit %d: %s", arguments, ran.status, ran.err);
    JsonDoc doc;
    assert_ok(json_doc_parse(&doc, arguments, ran.out, strlen(ran.out)));
    return doc.root;
}

static const char *text_at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) ? json_string_value(value) : "";
}

static const json_t *tensor_named(const json_t *root, const char *name)
{
    size_t i;
    const json_t *tensor;
    json_array_foreach(json_object_get(root, "tensors"), i,
                       tensor) if (!strcmp(text_at(tensor, "name"), name)) return tensor;
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Counted by hand from config.json: V 64, D 32, L 2; attention q, k, v, o and their norms; E experts of 3 D F. */
static void cmd_inspect__counts_parameters(void **state)
{
    static const struct {
        const char *model;
        int total, active;
    } rows[] = {
        /* all but experts 22976 - 12288; of 4 experts 1 and 2 */
        {"moe_top1_sharded", 22976, 10688 + 12288 / 4},
        {"moe_fused", 22976, 10688 + 12288 / 2},
        /* the stored tensors of a tied folder have no head; of 8 experts 2 */
        {"moe_tied", 37600, 13024 + 24576 / 4},
        {"dense_llama3_f16", 23776, 23776},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Temp *temp = *state;
        const char *path = text_format(&temp->arena, GOLDEN "%s/model", rows[i].model);
        json_t *root = inspect(temp, path, 0);
        const json_t *count = json_object_get(root, "parameters");
        assert_string_equal(text_at(root, "kind"), "model");
        assert_true(json_is_true(json_object_get(root, "valid")));
        assert_int_equal(json_integer_value(json_object_get(count, "total")), rows[i].total);
        assert_int_equal(json_integer_value(json_object_get(count, "active")), rows[i].active);
        json_decref(root);
    }
}

static void cmd_inspect__lists_tensors_with_hash_and_check(void **state)
{
    Temp *temp = *state;
    json_t *root = inspect(temp, GOLDEN "moe_top1_sharded/model --hash --verify", 0);
    assert_int_equal(json_integer_value(json_object_get(root, "files")), 3);
    assert_int_equal(json_integer_value(json_object_get(root, "bytes")), 4 * 22976);
    assert_int_equal(json_array_size(json_object_get(root, "tensors")), 45);
    const json_t *tensor = tensor_named(root, "model.norm.weight");
    assert_string_equal(text_at(tensor, "dtype"), "F32");
    assert_int_equal(json_integer_value(json_object_get(tensor, "bytes")), 128);
    assert_int_equal(json_integer_value(json_object_get(tensor, "nonfinite")), 0);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(tensor, "shape"), 0)), 32);

    const char *shard =
        text_format(&temp->arena, GOLDEN "moe_top1_sharded/model/%s", text_at(tensor, "file"));
    SafetensorsFile *file;
    assert_ok(safetensors_open(&file, shard, &temp->arena));
    char hash[HASH_HEX_BYTES];
    hash_hex(hash, safetensors_bytes(file, safetensors_find(file, "model.norm.weight")), 128);
    assert_string_equal(text_at(tensor, "hash"), hash);
    safetensors_close(&file);
    json_decref(root);
}

static void cmd_inspect__table_groups_layers_and_experts(void **state)
{
    Ran ran = assert_runs(*state, "inspect " GOLDEN "moe_top1_sharded/model");
    assert_says("inspect", ran.out,
                WORDS("model (qwen3_moe)", "22976", "model.layers.*.mlp.experts.*.up_proj.weight ",
                      "[16, 32]", "nothing wrong"));
    assert_null(strstr(ran.out, "layers.0"));
}

static void write_tensors(Temp *temp, const char *path, const char *const *names, int n,
                          const float *values, int64_t per_tensor)
{
    TensorDecl decl[8];
    for (int i = 0; i < n; i++)
        decl[i] =
            (TensorDecl){.name = names[i], .dtype = DTYPE_F32, .n_dims = 1, .dim = &per_tensor};
    SafetensorsWriter *writer;
    assert_ok(safetensors_writer_create(&writer, path, decl, n, &temp->arena));
    assert_ok(safetensors_writer_begin(writer));
    for (int i = 0; i < n; i++)
        assert_ok(safetensors_write_f32(writer, names[i], 0, per_tensor, values));
    assert_ok(safetensors_writer_finish(&writer));
}

static void cmd_inspect__verify_finds_numbers_that_are_not_finite(void **state)
{
    Temp *temp = *state;
    const char *path = temp_path(temp, "x.safetensors");
    static const float values[5] = {1, 0.0f / 0.0f, 2, 1.0f / 0.0f, 3};
    write_tensors(temp, path, WORDS("w"), 1, values, 5);
    json_t *root = inspect(temp, path, 0);
    assert_string_equal(text_at(root, "kind"), "safetensors");
    assert_true(json_is_null(json_object_get(tensor_named(root, "w"), "nonfinite")));
    assert_true(json_is_null(json_object_get(json_object_get(root, "parameters"), "active")));
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(root, "parameters"), "total")), 5);
    json_decref(root);
    root = inspect(temp, text_format(&temp->arena, "%s --verify", path), 2);
    assert_int_equal(json_integer_value(json_object_get(tensor_named(root, "w"), "nonfinite")), 2);
    assert_true(json_is_false(json_object_get(root, "valid")));
    json_decref(root);
    Ran ran = run_program(temp, text_format(&temp->arena, "inspect --verify %s", path));
    assert_int_equal(ran.status, 2);
    assert_says(path, ran.out, WORDS("wrong: ", "tensor w: 2 of 5"));
    assert_says(path, ran.err, WORDS("stagewright: error: ", "tensor w: 2 of 5"));
}

static void copy_model(Temp *temp, const char *name, char **dir)
{
    *dir = temp_path(temp, name);
    assert_ok(dir_create(*dir));
    const char *from = GOLDEN "moe_plain/model";
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++)
        assert_ok(file_copy(path_join(&temp->arena, *dir, files[i]),
                            path_join(&temp->arena, from, files[i])));
}

static void cmd_inspect__says_what_is_wrong(void **state)
{
    Temp *temp = *state;
    Arena *arena = &temp->arena;
    char *dir, *bytes;
    size_t n;
    /* One byte short. */
    copy_model(temp, "short", &dir);
    const char *weights = path_join(arena, dir, "model.safetensors");
    assert_ok(file_read(arena, weights, &bytes, &n));
    assert_ok(file_write_atomic(weights, bytes, n - 1));
    json_t *root = inspect(temp, dir, 2);
    const char *error = json_string_value(json_array_get(json_object_get(root, "errors"), 0));
    assert_non_null(error);
    assert_says(dir, error, WORDS("model.safetensors"));
    /* What config.json alone says is there all the same. */
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(root, "parameters"), "total")), 29152);
    json_decref(root);

    /* A tensor missing, and one of another shape. */
    copy_model(temp, "other", &dir);
    const char *path = path_join(arena, dir, "model.safetensors");
    static const float zeros[3] = {0};
    write_tensors(temp, path, WORDS("model.norm.weight"), 1, zeros, 3);
    root = inspect(temp, dir, 2);
    assert_true(json_array_size(json_object_get(root, "errors")) >= 1);
    json_decref(root);

    /* A vocabulary that the embedding does not have. */
    copy_model(temp, "vocab", &dir);
    const char *config = path_join(arena, dir, "config.json");
    assert_ok(file_read(arena, config, &bytes, &n));
    char *vocab = strstr(bytes, "\"vocab_size\": 64");
    assert_non_null(vocab);
    vocab[strlen("\"vocab_size\": ")] = '7';
    assert_ok(file_write_atomic(config, bytes, n));
    Ran ran = run_program(temp, text_format(arena, "inspect %s", dir));
    assert_int_equal(ran.status, 2);
    assert_says(dir, ran.out,
                WORDS("wrong: ", "model.embed_tokens.weight", "[64, 32]", "[74, 32]"));

    assert_refused(temp, text_format(arena, "inspect %s/none", temp->dir), WORDS("none"));
}

static void cmd_inspect__unknown_tensors_are_a_note(void **state)
{
    Temp *temp = *state;
    char *dir;
    copy_model(temp, "more", &dir);
    static const float zeros[3] = {0};
    write_tensors(temp, path_join(&temp->arena, dir, "extra.safetensors"), WORDS("strange.weight"),
                  1, zeros, 3);
    /* An index over both files. */
    SafetensorsFile *file;
    assert_ok(
        safetensors_open(&file, path_join(&temp->arena, dir, "model.safetensors"), &temp->arena));
    assert_ok(file_rename(path_join(&temp->arena, dir, "most.safetensors"),
                          path_join(&temp->arena, dir, "model.safetensors")));
    TextBuffer index;
    text_buffer_init(&index, &temp->arena);
    text_append_format(&index, "{\"metadata\": {}, \"weight_map\": {\"strange.weight\": "
                               "\"extra.safetensors\"");
    for (int i = 0; i < file->n; i++)
        text_append_format(&index, ", \"%s\": \"most.safetensors\"", file->entry[i].name);
    text_append_format(&index, "}}");
    safetensors_close(&file);
    assert_ok(file_write_atomic(path_join(&temp->arena, dir, "model.safetensors.index.json"),
                                index.text, index.length));
    json_t *root = inspect(temp, dir, 0);
    const char *note = json_string_value(json_array_get(json_object_get(root, "warnings"), 0));
    assert_non_null(note);
    assert_says(dir, note, WORDS("strange.weight", "model.extra_tensors"));
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(cmd_inspect__counts_parameters),
        TEMP_TEST(cmd_inspect__lists_tensors_with_hash_and_check),
        TEMP_TEST(cmd_inspect__table_groups_layers_and_experts),
        TEMP_TEST(cmd_inspect__verify_finds_numbers_that_are_not_finite),
        TEMP_TEST(cmd_inspect__says_what_is_wrong),
        TEMP_TEST(cmd_inspect__unknown_tensors_are_a_note),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
