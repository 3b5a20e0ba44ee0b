// Import, no step, export: the folder that comes out is the one that went in.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/runs.h"

/* ---- helpers ------------------------------------------------------------------------------- */

/* Files that a folder may hold beside its weights, with bytes that a rewriting would not keep. */
static const struct {
    const char *name, *text;
} side_files[] = {
    {"generation_config.json", "{ \"eos_token_id\" :[3,  4] }\r\n"},
    {"tokenizer_config.json", "{\"chat_template\": \"{{ x }}\\u00e9\"}"},
    {"special_tokens_map.json", "{\n\t\"eos_token\": \"é\"\n}"},
    {"chat_template.jinja", "{% for m in messages %}{{ m }}{% endfor %}\n\n"},
    {"vocab.json", "{}"},
    {"merges.txt", "#version: 0.2\n"},
    {"LICENSE", "all of it\n"},
    {"README.md", ""},
};

static void write_side_files(const char *model_path)
{
    char model[512]; /* path_in's are gone a few calls later */
    snprintf(model, sizeof model, "%s", model_path);
    for (size_t i = 0; i < COUNT(side_files); i++)
        write_text(path_in(model, "%s", side_files[i].name), side_files[i].text);
}

static bool same_side_files(const char *folder_path, const char *model_path)
{
    char folder[512], model[512];
    snprintf(folder, sizeof folder, "%s", folder_path);
    snprintf(model, sizeof model, "%s", model_path);
    bool ok = files_equal(path_in(folder, "config.json"), path_in(model, "config.json"));
    if (!ok) fprintf(stderr, "  %s: config.json is not the source's\n", folder);
    for (size_t i = 0; i < COUNT(side_files); i++) {
        if (files_equal(path_in(folder, "%s", side_files[i].name),
                        path_in(model, "%s", side_files[i].name)))
            continue;
        fprintf(stderr, "  %s: %s is not the source's\n", folder, side_files[i].name);
        ok = false;
    }
    return ok;
}

static bool is_safetensors(const char *name)
{
    const char *end = strstr(name, ".safetensors");
    return end && strcmp(end, ".safetensors") == 0;
}

/*
 * The index lists exactly the tensors of each shard, and total_size is the sum of their bytes; without
 * an index there is one file.
 */
static bool index_fits(const char *folder_path)
{
    char folder[512];
    snprintf(folder, sizeof folder, "%s", folder_path);
    json_t *index = json_load_file(path_in(folder, "model.safetensors.index.json"), 0, NULL);
    char **names = folder_names(folder);
    bool ok = true;
    int64_t bytes = 0;
    size_t n_tensors = 0;
    int n_files = 0;
    for (char **name = names; *name; name++) {
        if (!is_safetensors(*name)) continue;
        n_files++;
        TensorFile file;
        if (!tensor_file_read(&file, path_in(folder, "%s", *name))) return false;
        for (int i = 0; i < file.n; i++) {
            const json_t *map = json_object_get(index, "weight_map");
            const char *shard = json_string_value(json_object_get(map, file.at[i].name));
            bytes += file.at[i].n * (strcmp(file.at[i].dtype, "F32") == 0 ? 4 : 2);
            n_tensors++;
            if (!index || (shard && strcmp(shard, *name) == 0)) continue;
            fprintf(stderr, "  %s: %s is in %s, the index says %s\n", folder, file.at[i].name,
                    *name, shard ? shard : "nothing");
            ok = false;
        }
        tensor_file_free(&file);
    }
    names_free(names);
    if (!index) {
        if (n_files != 1) fprintf(stderr, "  %s: %d files and no index\n", folder, n_files);
        return ok && n_files == 1;
    }
    const json_t *size = json_object_get(json_object_get(index, "metadata"), "total_size");
    if (json_integer_value(size) != bytes ||
        json_object_size(json_object_get(index, "weight_map")) != n_tensors) {
        fprintf(stderr, "  %s: index of %lld bytes and %zu tensors, expected %lld and %zu\n",
                folder, (long long)json_integer_value(size),
                json_object_size(json_object_get(index, "weight_map")), (long long)bytes,
                n_tensors);
        ok = false;
    }
    json_decref(index);
    return ok;
}

/* The same number of safetensors files, under the same names. */
static bool same_files(const char *folder_path, const char *want_path)
{
    char folder[512], want[512];
    snprintf(folder, sizeof folder, "%s", folder_path);
    snprintf(want, sizeof want, "%s", want_path);
    char **own = folder_names(folder), **other = folder_names(want);
    bool ok = true;
    for (char **name = other; *name; name++) {
        bool found = false;
        for (char **o = own; *o; o++) found = found || strcmp(*o, *name) == 0;
        if (!found) fprintf(stderr, "  %s: no %s\n", folder, *name);
        ok = ok && found;
    }
    for (char **o = own; *o; o++) {
        bool found = false;
        for (char **name = other; *name; name++) found = found || strcmp(*o, *name) == 0;
        if (!found) fprintf(stderr, "  %s: %s is not in the source\n", folder, *o);
        ok = ok && found;
    }
    names_free(own);
    names_free(other);
    return ok;
}

/* `train` of folder/MODEL for no step into folder/OUT. Runs with nothing to read its data from: no step
 * needs none. */
static void import_arguments(Arguments *args, const char *folder, const char *model,
                             const char *out, int pp)
{
    write_text(path_in(folder, "config.yaml"), "train: {steps: 0, threads: 1}\n");
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "model.path=%s/%s", folder, model);
    add_set(args, "model.dtype=f32");
    add_set(args, "train.output=%s/%s", folder, out);
    add_set(args, "parallel.pp_size=%d", pp);
}

static bool import(const char *folder, const char *model, const char *out, int pp, const char *set)
{
    Arguments args = {0};
    import_arguments(&args, folder, model, out, pp);
    if (set) add_set(&args, "%s", set);
    return command_runs(&command_train, &args);
}

/* Everything about an exported folder is as in its source. */
static bool same_folder(const char *folder_path, const char *model_path)
{
    char folder[512], model[512];
    snprintf(folder, sizeof folder, "%s", folder_path);
    snprintf(model, sizeof model, "%s", model_path);
    bool ok = same_tensors(folder, model);
    ok = index_fits(folder) && ok;
    return same_files(folder, model) && same_side_files(folder, model) && ok;
}

/* A json file of the folder is read, changed by the caller, and written. */
static json_t *read_json(const char *path)
{
    json_t *value = json_load_file(path, 0, NULL);
    if (!value) fail_msg("no JSON in %s", path);
    return value;
}

static void write_json(const char *path, json_t *value)
{
    if (json_dump_file(value, path, JSON_INDENT(2)) != 0) fail_msg("cannot write %s", path);
    json_decref(value);
}

/* A safetensors file of one f32 tensor of n elements. */
static void write_tensor(const char *path, const char *name, int n)
{
    char header[256];
    int length = snprintf(header, sizeof header,
                          "{\"%s\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[0,%d]}}",
                          name, n, 4 * n);
    while (length % 8) header[length++] = ' ';
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)length >> (8 * i) & 255), file);
    fwrite(header, 1, (size_t)length, file);
    for (int i = 0; i < n; i++) {
        float x = 0.5f + (float)i;
        fwrite(&x, sizeof x, 1, file);
    }
    fclose(file);
}

/* ---- the same tensors ---------------------------------------------------------------------- */

static void export__holds_what_the_source_holds(void **state)
{
    (void)state;
    static const Fixture fixtures[] = {
        {.kind = FIXTURE_MOE},
        {.kind = FIXTURE_MOE, .n_shards = 1},
        {.kind = FIXTURE_MOE, .n_shards = 3},
        {.kind = FIXTURE_MOE, .fused = true},
        {.kind = FIXTURE_MOE, .fused = true, .n_shards = 1, .dtype = FIXTURE_BF16},
        {.kind = FIXTURE_MOE, .fused = true, .n_shards = 3, .tied = true},
        {.kind = FIXTURE_MOE, .dtype = FIXTURE_BF16},
        {.kind = FIXTURE_MOE, .dtype = FIXTURE_F16},
        {.kind = FIXTURE_TIED},
        {.kind = FIXTURE_TIED, .dtype = FIXTURE_BF16, .n_shards = 1},
        {.kind = FIXTURE_DENSE_FIRST, .n_shards = 3},
        {.kind = FIXTURE_DENSE, .dtype = FIXTURE_BF16},
    };
    static const int sizes[] = {1, 2, 4};
    int failed = 0;
    for (size_t i = 0; i < COUNT(fixtures); i++) {
        char *folder = folder_make();
        fixture_write_model(path_in(folder, "model"), &fixtures[i]);
        write_side_files(path_in(folder, "model"));
        for (size_t k = 0; k < COUNT(sizes); k++) {
            char out[16];
            snprintf(out, sizeof out, "run%d", sizes[k]);
            bool ok = import(folder, "model", out, sizes[k], NULL) &&
                      same_folder(path_in(folder, "%s/hf/final", out), path_in(folder, "model"));
            if (k > 0)
                ok = same_weights(path_in(folder, "%s/hf/final", out),
                                  path_in(folder, "run1/hf/final")) &&
                     ok;
            if (!ok) fprintf(stderr, "  fixture %zu, pp %d\n", i, sizes[k]);
            failed += !ok;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* lm_head.weight stored beside a tied embedding comes out again, equal to it. */
static void export__keeps_a_tied_head_that_the_source_stores(void **state)
{
    (void)state;
    char *folder = folder_make();
    fixture_write_model(path_in(folder, "untied"), &(Fixture){.kind = FIXTURE_MOE, .n_shards = 1});
    fixture_write_model(path_in(folder, "model"), &(Fixture){.kind = FIXTURE_TIED, .n_shards = 1});
    /* Both from one seed: the same but for the head. Give the embedding's bytes to it by name. */
    size_t n;
    char *text = read_text(path_in(folder, "untied/model.safetensors"), &n);
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)(unsigned char)text[i] << (8 * i);
    json_t *header = json_loadb(text + 8, length, 0, NULL);
    int64_t at[2];
    static const char *const names[] = {"model.embed_tokens.weight", "lm_head.weight"};
    for (int i = 0; i < 2; i++)
        at[i] = json_integer_value(
            json_array_get(json_object_get(json_object_get(header, names[i]), "data_offsets"), 0));
    json_decref(header);
    memcpy(text + 8 + length + at[1], text + 8 + length + at[0],
           (size_t)FIXTURE_VOCAB * FIXTURE_HIDDEN * 4);
    FILE *file = fopen(path_in(folder, "model/model.safetensors"), "wb");
    assert_non_null(file);
    fwrite(text, 1, n, file);
    fclose(file);
    free(text);
    for (int pp = 1; pp <= 2; pp++) {
        char out[16];
        snprintf(out, sizeof out, "run%d", pp);
        assert_true(import(folder, "model", out, pp, NULL));
        assert_true(same_tensors(path_in(folder, "%s/hf/final", out), path_in(folder, "model")));
    }
    folder_remove(folder);
}

/* ---- indexes that are not right ------------------------------------------------------------ */

static void export__a_stale_index(void **state)
{
    (void)state;
    static const char *const tensor = "model.layers.3.mlp.experts.1.down_proj.weight";
    char *folder = folder_make();
    const Fixture fixture = {.kind = FIXTURE_MOE, .n_shards = 3};
    fixture_write_model(path_in(folder, "model"), &fixture);
    char path[512];
    snprintf(path, sizeof path, "%s/model/model.safetensors.index.json", folder);
    char *original = read_text(path, NULL);

    /* It misses a tensor that is there: loaded, warned of once, listed again. */
    json_t *index = read_json(path);
    assert_int_equal(json_object_del(json_object_get(index, "weight_map"), tensor), 0);
    write_json(path, index);
    Arguments args = {0}, more = {0};
    arguments_add(&args, "train");
    import_arguments(&more, folder, "model", "missing", 2);
    for (int i = 0; i < more.n; i++) arguments_add(&args, "%s", more.at[i]);
    arguments_free(&more);
    assert_true(program_ends(&args, folder, 0));
    char *log = read_text(path_in(folder, "err.txt"), NULL);
    const char *warning = strstr(log, "warning: ");
    assert_non_null(warning);
    assert_non_null(strstr(warning, tensor));
    assert_null(strstr(warning + 1, "warning: "));
    free(log);
    assert_true(same_tensors(path_in(folder, "missing/hf/final"), path_in(folder, "model")));
    assert_true(index_fits(path_in(folder, "missing/hf/final")));

    /* It names a tensor that is not there. */
    write_text(path, original);
    index = read_json(path);
    json_object_set_new(json_object_get(index, "weight_map"), "model.layers.9.mlp.gate.weight",
                        json_string("model-00001-of-00003.safetensors"));
    write_json(path, index);
    arguments_add(&args, "train");
    import_arguments(&more, folder, "model", "surplus", 2);
    for (int i = 0; i < more.n; i++) arguments_add(&args, "%s", more.at[i]);
    arguments_free(&more);
    assert_true(program_refuses(
        &args, folder,
        WORDS("model.layers.9.mlp.gate.weight", "model-00001-of-00003.safetensors")));
    assert_false(path_exists(path_in(folder, "surplus/hf")));

    /* Its total_size is wrong: a warning, and right on export. */
    write_text(path, original);
    index = read_json(path);
    json_object_set_new(json_object_get(index, "metadata"), "total_size", json_integer(17));
    write_json(path, index);
    arguments_add(&args, "train");
    import_arguments(&more, folder, "model", "total", 1);
    for (int i = 0; i < more.n; i++) arguments_add(&args, "%s", more.at[i]);
    arguments_free(&more);
    assert_true(program_ends(&args, folder, 0));
    log = read_text(path_in(folder, "err.txt"), NULL);
    assert_non_null(strstr(log, "warning: "));
    assert_non_null(strstr(log, "total_size"));
    free(log);
    assert_true(index_fits(path_in(folder, "total/hf/final")));
    free(original);
    folder_remove(folder);
}

/* ---- tensors the family does not know ------------------------------------------------------ */

static void export__extra_tensors_are_refused_or_carried(void **state)
{
    (void)state;
    char *folder = folder_make();
    fixture_write_model(path_in(folder, "model"), &(Fixture){.kind = FIXTURE_MOE});
    write_tensor(path_in(folder, "model/model-extra.safetensors"), "visual.patch_embed.bias", 7);
    char path[512];
    snprintf(path, sizeof path, "%s/model/model.safetensors.index.json", folder);
    json_t *index = read_json(path);
    json_object_set_new(json_object_get(index, "weight_map"), "visual.patch_embed.bias",
                        json_string("model-extra.safetensors"));
    json_t *size = json_object_get(json_object_get(index, "metadata"), "total_size");
    json_integer_set(size, json_integer_value(size) + 28);
    write_json(path, index);

    Arguments args = {0}, more = {0};
    arguments_add(&args, "train");
    import_arguments(&more, folder, "model", "refused", 2);
    for (int i = 0; i < more.n; i++) arguments_add(&args, "%s", more.at[i]);
    arguments_free(&more);
    assert_true(program_refuses(&args, folder, WORDS("visual.patch_embed.bias", "extra_tensors")));

    for (int pp = 1; pp <= 2; pp++) {
        char out[16];
        snprintf(out, sizeof out, "run%d", pp);
        assert_true(import(folder, "model", out, pp, "model.extra_tensors=carry"));
        assert_true(same_tensors(path_in(folder, "%s/hf/final", out), path_in(folder, "model")));
        assert_true(index_fits(path_in(folder, "%s/hf/final", out)));
    }

    /* Through a checkpoint too, and a run resumed from it. */
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_EQ, 1, 1);
    for (int resumed = 0; resumed < 2; resumed++) {
        import_arguments(&args, folder, "model", "trained", 2);
        add_set(&args, "model.extra_tensors=carry");
        add_set(&args, "train.steps=%d", resumed + 1);
        add_set(&args, "lr_schedule.type=constant");
        add_set(&args, "data.train=[%s/rows.jsonl]", folder);
        if (resumed) arguments_add(&args, "--resume");
        assert_true(command_runs(&command_train, &args));
        TensorFile file;
        assert_true(tensor_folder_read(&file, path_in(folder, "trained/hf/final")));
        const FileTensor *extra = tensor_file_find(&file, "visual.patch_embed.bias");
        assert_non_null(extra);
        assert_int_equal(extra->n, 7);
        for (int i = 0; i < 7; i++) assert_true(extra->value[i] == 0.5f + (float)i);
        tensor_file_free(&file);
    }
    folder_remove(folder);
}

/* ---- checkpoints --------------------------------------------------------------------------- */

static void export__of_a_checkpoint_is_the_runs_own(void **state)
{
    (void)state;
    static const Fixture fixtures[] = {
        {.kind = FIXTURE_MOE, .n_shards = 3},
        {.kind = FIXTURE_TIED, .fused = true, .dtype = FIXTURE_BF16},
        {.kind = FIXTURE_DENSE_FIRST, .n_shards = 1, .dtype = FIXTURE_F16},
    };
    for (size_t i = 0; i < COUNT(fixtures); i++) {
        char *folder = folder_make();
        fixture_write_model(path_in(folder, "model"), &fixtures[i]);
        write_side_files(path_in(folder, "model"));
        fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_EQ, 1, 1);
        Arguments args = {0};
        import_arguments(&args, folder, "model", "run", 3);
        add_set(&args, "train.steps=2");
        add_set(&args, "optimizer.lr=0.01");
        add_set(&args, "data.train=[%s/rows.jsonl]", folder);
        assert_true(command_runs(&command_train, &args));
        /* The checkpoint needs no other folder. */
        char *model = strdup(path_in(folder, "model"));
        char *moved = strdup(path_in(folder, "moved"));
        assert_int_equal(rename(model, moved), 0);
        arguments_add(&args, "%s/run/checkpoints/step-000002", folder);
        arguments_add(&args, "%s/out", folder);
        assert_true(command_runs(&command_export, &args));
        assert_true(same_weights(path_in(folder, "out"), path_in(folder, "run/hf/final")));
        assert_true(same_side_files(path_in(folder, "out"), moved));
        assert_true(same_files(path_in(folder, "out"), moved));
        assert_true(index_fits(path_in(folder, "out")));
        /* A run's folder stands for its newest checkpoint; a slash at the end changes nothing. */
        arguments_add(&args, "%s/run/", folder);
        arguments_add(&args, "%s/again/", folder);
        assert_true(command_runs(&command_export, &args));
        assert_true(same_weights(path_in(folder, "again"), path_in(folder, "run/hf/final")));
        /* What is there is not written over. */
        arguments_add(&args, "export");
        arguments_add(&args, "%s/run", folder);
        arguments_add(&args, "%s/out", folder);
        assert_true(program_refuses(&args, folder, WORDS("out")));
        free(model);
        free(moved);
        folder_remove(folder);
    }
}

/* A checkpoint is a model folder: no step from it gives what the run exported, in f32. */
static void export__a_checkpoint_can_be_trained_on(void **state)
{
    (void)state;
    char *folder = folder_make();
    fixture_write_model(path_in(folder, "model"),
                        &(Fixture){.kind = FIXTURE_MOE, .fused = true, .n_shards = 3});
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_EQ, 1, 1);
    Arguments args = {0};
    import_arguments(&args, folder, "model", "run", 2);
    add_set(&args, "train.steps=2");
    add_set(&args, "optimizer.lr=0.01");
    add_set(&args, "data.train=[%s/rows.jsonl]", folder);
    assert_true(command_runs(&command_train, &args));
    assert_true(import(folder, "run/checkpoints/step-000002", "more", 4, NULL));
    assert_true(same_tensors(path_in(folder, "more/hf/final"), path_in(folder, "run/hf/final")));
    folder_remove(folder);
}

/* ---- dtypes -------------------------------------------------------------------------------- */

static void export__a_forced_dtype_rewrites_config_and_no_more(void **state)
{
    (void)state;
    static const struct {
        FixtureDtype source;
        const char *set, *dtype, *name, *was;
    } rows[] = {
        {FIXTURE_F32, "checkpoint.hf_dtype=bf16", "BF16", "bfloat16", "float32"},
        {FIXTURE_BF16, "checkpoint.hf_dtype=f32", "F32", "float32", "bfloat16"},
        {FIXTURE_F16, "checkpoint.hf_dtype=f32", "F32", "float32", "float16"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder = folder_make();
        fixture_write_model(path_in(folder, "model"),
                            &(Fixture){.kind = FIXTURE_MOE, .dtype = rows[i].source});
        write_side_files(path_in(folder, "model"));
        assert_true(import(folder, "model", "run", 2, rows[i].set));
        char *config = read_text(path_in(folder, "model/config.json"), NULL);
        char *written = read_text(path_in(folder, "run/hf/final/config.json"), NULL);
        char *at = strstr(config, rows[i].was);
        assert_non_null(at);
        size_t before = (size_t)(at - config);
        assert_int_equal(strncmp(written, config, before), 0);
        assert_int_equal(strncmp(written + before, rows[i].name, strlen(rows[i].name)), 0);
        assert_string_equal(written + before + strlen(rows[i].name), at + strlen(rows[i].was));
        free(config);
        free(written);
        for (size_t k = 0; k < COUNT(side_files); k++)
            assert_true(files_equal(path_in(folder, "model/%s", side_files[k].name),
                                    path_in(folder, "run/hf/final/%s", side_files[k].name)));
        TensorFile got, want;
        assert_true(tensor_folder_read(&got, path_in(folder, "run/hf/final")));
        assert_true(tensor_folder_read(&want, path_in(folder, "model")));
        assert_int_equal(got.n, want.n);
        for (int t = 0; t < want.n; t++) {
            const FileTensor *w = &want.at[t], *g = tensor_file_find(&got, w->name);
            assert_non_null(g);
            assert_string_equal(g->dtype, rows[i].dtype);
            TensorError e = tensor_error(g->value, w->value, w->n);
            /* bf16 keeps 8 bits; a wider type keeps all. */
            double allowed = rows[i].source == FIXTURE_F32 ? 0x1p-8 * e.largest : 0;
            assert_true(e.worst <= allowed);
        }
        tensor_file_free(&got);
        tensor_file_free(&want);
        assert_true(index_fits(path_in(folder, "run/hf/final")));
        folder_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(export__holds_what_the_source_holds),
        cmocka_unit_test(export__keeps_a_tied_head_that_the_source_stores),
        cmocka_unit_test(export__a_stale_index),
        cmocka_unit_test(export__extra_tensors_are_refused_or_carried),
        cmocka_unit_test(export__of_a_checkpoint_is_the_runs_own),
        cmocka_unit_test(export__a_checkpoint_can_be_trained_on),
        cmocka_unit_test(export__a_forced_dtype_rewrites_config_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
