// What is wrong is said in one line with file, line or key, exit status 2, before anything
// starts and with nothing half written, on one rank and on two.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/bad_input.h"
#include "train/config.h"

/* ---- config.json --------------------------------------------------------------------------- */

static void bad_input__config_json(void **state)
{
    (void)state;
    // clang-format off
    static const struct {
        const char *key, *value; /* value NULL: the key is taken out */
        const char *words[3];
    } rows[] = {
        {"use_sliding_window", "true", {"use_sliding_window", "true", NULL}},
        {"layer_types", "[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]", {"layer_types", "sliding_attention", NULL}},
        {"rope_scaling", "{\"rope_type\":\"dynamic\",\"factor\":2.0}", {"rope_type", "dynamic", NULL}},
        {"rope_scaling", "{\"type\":\"ntk\",\"factor\":2.0}", {"ntk", NULL}},
        {"rope_scaling", "{\"rope_type\":\"yarn\"}", {"factor", NULL}},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":2.0,\"wave\":1}", {"wave", NULL}},
        {"rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":1000000.0}", {"rope_theta", "rope_parameters", NULL}},
        {"hidden_act", "\"gelu\"", {"hidden_act", "gelu", NULL}},
        {"model_type", "\"mamba\"", {"model_type", "mamba", NULL}},
        {"model_type", NULL, {"model_type", NULL}},
        {"hidden_size", NULL, {"hidden_size", NULL}},
        {"vocab_size", NULL, {"vocab_size", NULL}},
        {"num_hidden_layers", NULL, {"num_hidden_layers", NULL}},
        {"num_attention_heads", NULL, {"num_attention_heads", NULL}},
        {"num_experts", NULL, {"num_experts", NULL}},
        {"num_experts_per_tok", NULL, {"num_experts_per_tok", NULL}},
        {"moe_intermediate_size", NULL, {"moe_intermediate_size", NULL}},
        {"num_hidden_layers", "\"4\"", {"num_hidden_layers", "string", NULL}},
        {"num_hidden_layers", "0", {"num_hidden_layers", "0", NULL}},
        {"num_hidden_layers", "-4", {"num_hidden_layers", "-4", NULL}},
        {"num_hidden_layers", "4.5", {"num_hidden_layers", NULL}},
        {"num_hidden_layers", "9223372036854775807", {"num_hidden_layers", NULL}},
        {"num_experts_per_tok", "5", {"num_experts_per_tok", "5", NULL}},
        {"num_key_value_heads", "3", {"num_key_value_heads", "3", NULL}},
        {"head_dim", "15", {"head_dim", "15", NULL}},
        {"rms_norm_eps", "-1", {"rms_norm_eps", NULL}},
        {"rope_theta", "0", {"rope_theta", NULL}},
        {"mlp_only_layers", "[4]", {"mlp_only_layers", "4", NULL}},
        {"mlp_only_layers", "{}", {"mlp_only_layers", NULL}},
        {"eos_token_id", "512", {"eos_token_id", "512", NULL}},
        {"torch_dtype", "\"float8\"", {"dtype", "float8", NULL}},
        {"quantization_config", "{\"bits\":4}", {"quantization_config", NULL}},
        {"attention_dropout", "0.1", {"attention_dropout", NULL}},
        {"vocab_size", "600", {"model.embed_tokens.weight", "[512, 64]", NULL}}, /* and now the weights */
        {"hidden_size", "32", {"[512, 64]", NULL}},
        {"num_hidden_layers", "5", {"model.layers.4.", NULL}},
        {"num_hidden_layers", "3", {"model.layers.3.", NULL}},
        {"num_experts", "8", {"experts.4.", NULL}},
        {"tie_word_embeddings", "true", {"lm_head.weight", NULL}},
        {"attention_bias", "true", {"bias", NULL}},
    };
    // clang-format on
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}), path[512];
    snprintf(path, sizeof path, "%s/model/config.json", folder);
    char *sound = read_text(path, NULL);
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        json_t *root = json_loads(sound, 0, NULL);
        if (rows[i].value)
            json_object_set_new(root, rows[i].key,
                                json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(root, rows[i].key);
        json_dump_file(root, path, 0);
        json_decref(root);
        bool ok = train_refuses(folder, 1 + (int)(i % 2), NULL, rows[i].words);
        if (!ok)
            fprintf(stderr, "  row: %s %s\n", rows[i].key, rows[i].value ? rows[i].value : "out");
        failed += !ok;
    }
    static const char *const texts[] = {"", "{", "[]", "\"x\"",
                                        "{\"hidden_size\": 1, \"hidden_size\": 2}"};
    for (size_t i = 0; i < COUNT(texts); i++) {
        write_text(path, texts[i]);
        failed += !train_refuses(folder, 2, NULL, WORDS("config.json"));
    }
    unlink(path);
    failed += !train_refuses(folder, 2, NULL, WORDS("config.json"));

    /* Both forms of rope settings, the same: accepted. */
    json_t *root = json_loads(sound, 0, NULL);
    json_object_set_new(root, "rope_parameters",
                        json_pack("{s:s,s:f}", "rope_type", "default", "rope_theta", 10000.0));
    json_dump_file(root, path, 0);
    json_decref(root);
    failed += !train_runs(folder, 2, NULL);
    free(sound);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* ---- data ---------------------------------------------------------------------------------- */

static void bad_input__data_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        const char *word;
    } rows[] = {
        {"{", ""},
        {"[1, 2]", ""},
        {"7", ""},
        {"{\"ids\": [1, 2]}", "input_ids"},
        {"{\"input_ids\": []}", "input_ids"},
        {"{\"input_ids\": 5}", "input_ids"},
        {"{\"input_ids\": [1, 512]}", "512"},
        {"{\"input_ids\": [1, -1]}", "-1"},
        {"{\"input_ids\": [1, \"2\"]}", "input_ids"},
        {"{\"input_ids\": [1, 2.5]}", "input_ids"},
        {"{\"input_ids\": [1, 99999999999999999999]}", ""},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}", "labels"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, 512]}", "512"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, -99]}", "-99"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0]}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": []}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [1, 3]}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0, 4]}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0, 2]}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0, 2, 2, 3]}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0, 2, 1, 3]}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0, \"3\"]}", "cu_seqlens"},
        {"{\"input_ids\": [1, 2], \"x\": \"\xff\"}", ""},
        {"{\"input_ids\": [1, 2], \"input_ids\": [3, 4]}", "input_ids"},
        {"{\"input_ids\": [1, 2]} more", ""},
    };
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}), path[512], text[1024], eval[512];
    snprintf(path, sizeof path, "%s/bad.jsonl", folder);
    snprintf(eval, sizeof eval, "data.eval=[%s/bad.jsonl]", folder);
    snprintf(text, sizeof text, "data.train=[%s/bad.jsonl]", folder);
    char *train = strdup(text);
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        /* Line 3: lines are counted from 1, blank ones too. */
        snprintf(text, sizeof text, "{\"input_ids\": [1, 2]}\n\n%s\n{\"input_ids\": [3, 4]}\n",
                 rows[i].line);
        write_text(path, text);
        const char *const *words = WORDS("bad.jsonl:3", rows[i].word);
        bool ok = train_refuses(folder, 1 + (int)(i % 2), train, words);
        ok = train_refuses(folder, 1, eval, words) && ok;
        Arguments args = {0};
        arguments_add(&args, "probe");
        arguments_add(&args, "%s/model", folder);
        arguments_add(&args, "--batch=%s", path);
        arguments_add(&args, "--out=%s/probe", folder);
        ok = program_refuses(&args, folder, words) && ok;
        ok = ok && !path_exists(path_in(folder, "probe"));
        arguments_add(&args, "eval");
        arguments_add(&args, "%s/model", folder);
        arguments_add(&args, "--data=%s", path);
        add_set(&args, "data.format=ids");
        ok = program_refuses(&args, folder, words) && ok;
        failed += row_failed(ok, rows[i].line);
    }
    /* No line at all, no file, a folder without files. */
    write_text(path, "\n\n");
    failed += !train_refuses(folder, 2, train, WORDS("bad.jsonl"));
    /* Nothing to learn: what is first in a row is predicted from nothing. */
    write_text(path, "{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n{\"input_ids\": [1]}\n");
    failed += !train_refuses(folder, 2, train, WORDS("data.train: no token to train in"));
    unlink(path);
    failed += !train_refuses(folder, 2, train, WORDS("bad.jsonl"));
    mkdir(path, 0777);
    failed += !train_refuses(folder, 2, train, WORDS("bad.jsonl"));
    /* Text without a tokenizer. */
    rmdir(path);
    write_text(path, "{\"text\": \"hello\"}\n");
    free(train);
    Arguments args = train_arguments(folder, "config.yaml", "data.format=text");
    add_set(&args, "data.train=[%s]", path);
    failed += !program_refuses(&args, folder, WORDS("bad.jsonl:1", "tokenizer"));
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void bad_input__skipped_lines_are_counted(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    char *rows = read_text(path_in(folder, "rows.jsonl"), NULL);
    FILE *file = fopen(path_in(folder, "mixed.jsonl"), "w");
    assert_non_null(file);
    fprintf(file, "{\"input_ids\": [600]}\n%snot JSON\n", rows);
    fclose(file);
    free(rows);
    char other[600];
    snprintf(other, sizeof other, "%s/mixed.jsonl", folder);
    for (int mixed = 0; mixed < 2; mixed++) {
        Arguments args = train_arguments(folder, "config.yaml", NULL);
        add_set(&args, "train.output=%s/run%d", folder, mixed);
        if (mixed) {
            add_set(&args, "data.train=[%s]", other);
            add_set(&args, "data.skip_bad_lines=true");
        }
        assert_true(program_ends(&args, folder, 0));
    }
    char *log = read_text(path_in(folder, "err.txt"), NULL);
    assert_non_null(strstr(log, "2 bad ones"));
    free(log);
    assert_true(same_run(path_in(folder, "run1"), path_in(folder, "run0"), 1));
    folder_remove(folder);
}

/* ---- configuration ------------------------------------------------------------------------- */

static void bad_input__configuration(void **state)
{
    (void)state;
    // clang-format off
    static const struct {
        const char *set;
        const char *words[4];
    } rows[] = {
        {"train.stepps=3", {"train.stepps", "train.steps", NULL}},
        {"trian.steps=3", {"trian", "train", NULL}},
        {"steps=3", {"steps", NULL}},
        {"train.steps", {"train.steps", NULL}},
        {"parallel.shedule=gpipe", {"shedule", "schedule", NULL}},
        {"parallel.schedule=1f1", {"parallel.schedule", "1f1", "1f1b", NULL}},
        {"model.dtype=fp32", {"model.dtype", "fp32", "f32", NULL}},
        {"train.steps=-1", {"train.steps", "-1", NULL}},
        {"train.steps=many", {"train.steps", "many", NULL}},
        {"train.steps=1.5", {"train.steps", "1.5", NULL}},
        {"train.steps=[1]", {"train.steps", NULL}},
        {"train.epochs=1", {"train.steps", "train.epochs", NULL}},
        {"train.epochs=0", {"train.epochs", "0", NULL}},
        {"train.global_batch_size=0", {"train.global_batch_size", "0", NULL}},
        {"train.recompute_ratio=1.5", {"train.recompute_ratio", "1.5", NULL}},
        {"train.recompute_ratio=nan", {"train.recompute_ratio", NULL}},
        {"train.max_grad_norm=-1", {"train.max_grad_norm", "-1", NULL}},
        {"train.threads=0", {"train.threads", "0", NULL}},
        {"parallel.pp_size=0", {"parallel.pp_size", "0", NULL}},
        {"parallel.pp_size=5", {"parallel.pp_size", "5", "4", NULL}},
        {"parallel.num_virtual_stages=2", {"parallel.num_virtual_stages", "2", NULL}},
        {"parallel.layer_split=[1,1]", {"parallel.layer_split", "2", "1", NULL}},
        {"parallel.dp_size=3", {"dp_size", "3", NULL}},
        {"parallel.zero_stage=2", {"parallel.zero_stage", "2", NULL}},
        {"optimizer.lr=-1", {"optimizer.lr", "-1", NULL}},
        {"optimizer.betas=[0.9]", {"optimizer.betas", NULL}},
        {"optimizer.betas=[0.9, 1.0]", {"optimizer.betas", "1", NULL}},
        {"optimizer.eps=0", {"optimizer.eps", "0", NULL}},
        {"optimizer.groups=[{lr_scale: 2}]", {"optimizer.groups", "match", NULL}},
        {"optimizer.groups=[{match: '*', lr: 2}]", {"optimizer.groups", "lr", NULL}},
        {"optimizer.groups=[{match: 'nothing.is.called.this'}]", {"optimizer.groups", "nothing.is.called.this", NULL}},
        {"lr_schedule.warmup=1.5", {"lr_schedule.warmup", "1.5", NULL}},
        {"lr_schedule.type=exponential", {"lr_schedule.type", "exponential", NULL}},
        {"checkpoint.keep=0", {"checkpoint.keep", "0", NULL}},
        {"loss.chunk_size=0", {"loss.chunk_size", "0", NULL}},
        {"loss.balancing_alpha=-0.1", {"loss.balancing_alpha", "-0.1", NULL}},
        {"data.max_length=0", {"data.max_length", "0", NULL}},
        {"data.train=[]", {"data.train", NULL}},
        {"data.train=[{path: x, ratio: 0}]", {"data.train", "ratio", NULL}},
        {"data.format=parquet", {"data.format", "parquet", NULL}},
        {"train.output=null", {"train.output", NULL}},
        {"model.path=/nonexistent/model", {"/nonexistent/model", NULL}},
        {"train.output=/proc/none/run", {"/proc/none", NULL}},
    };
    // clang-format on
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        Arguments args = train_arguments(folder, "config.yaml", rows[i].set);
        bool ok = program_refuses(&args, folder, rows[i].words);
        ok = nothing_half_written(folder) && ok;
        failed += row_failed(ok, rows[i].set);
    }
    static const struct {
        const char *yaml;
        const char *words[3];
    } files[] = {
        {"train: {steps: 1\n", {"bad.yaml:", NULL}},
        {"train: {stepps: 1}\n", {"bad.yaml:1:", "train.steps", NULL}},
        {"train:\n  steps: 1\n  steps: 2\n", {"bad.yaml:3:", "steps", NULL}},
        {"modell: {path: x}\n", {"bad.yaml:1:", "model", NULL}},
        {"- 1\n", {"bad.yaml", NULL}},
        {"train: 3\n", {"bad.yaml:1:", "train", NULL}},
        {"model: {path: &a x}\ntrain: {output: *b}\n", {"bad.yaml", NULL}},
        {"train: {steps: \"\xff\"}\n", {"bad.yaml", NULL}},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        write_text(path_in(folder, "bad.yaml"), files[i].yaml);
        Arguments args = train_arguments(folder, "bad.yaml", NULL);
        failed += row_failed(program_refuses(&args, folder, files[i].words), files[i].yaml);
    }
    Arguments args = train_arguments(folder, "none.yaml", NULL);
    failed += !program_refuses(&args, folder, WORDS("none.yaml"));
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Whether the tables of the configuration list the value as available. */
static bool is_built(const char *section, const char *key, const char *value)
{
    for (const OptionSection *s = config_sections(); s->name; s++)
        for (const OptionSpec *row = s->specs; row->name && !strcmp(s->name, section); row++) {
            if (strcmp(row->name, key) != 0) continue;
            if (!row->built) return true;
            size_t n = strlen(value);
            for (const char *at = row->built; (at = strstr(at, value)); at++)
                if ((at == row->built || at[-1] == ' ') && (at[n] == ' ' || !at[n])) return true;
            return false;
        }
    fail_msg("no key %s.%s", section, key);
    return false;
}

/* Whatever the documentation names is run or refused as not available yet, never ignored. */
static void bad_input__what_is_not_built_says_so(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"model", "chat_template", "llama3"},  {"model", "chat_template", "deepseek_v3"},
        {"model", "chat_template", "gpt_oss"}, {"parallel", "sp_size", "2"},
        {"parallel", "tp_size", "2"},          {"parallel", "activation_limit", "1000000"},
        {"train", "stop_before", "1h"},        {"optimizer", "type", "muon"},
        {"checkpoint", "async", "true"},       {"log", "trackers", "tensorboard"},
    };
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE});
    int failed = 0, asked = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (is_built(rows[i][0], rows[i][1], rows[i][2])) continue;
        char key[64], set[128];
        snprintf(key, sizeof key, "%s.%s", rows[i][0], rows[i][1]);
        snprintf(set, sizeof set, "%s=%s", key, rows[i][2]);
        failed += !train_refuses(folder, 2, set, WORDS(rows[i][1], "not available yet"));
        asked++;
    }
    printf("  %d values that are not available yet\n", asked);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void bad_input__command_lines(void **state)
{
    (void)state;
    static const struct {
        const char *words[7];
        const char *says[3];
    } rows[] = {
        {{"trian", NULL}, {"trian", "train", NULL}},
        {{"train", NULL}, {"CONFIG.yaml", NULL}},
        {{"train", "a.yaml", "b.yaml", NULL}, {"b.yaml", NULL}},
        {{"train", "a.yaml", "--resum", NULL}, {"--resum", "--resume", NULL}},
        {{"train", "a.yaml", "--set", NULL}, {"--set", NULL}},
        {{"probe", "m", NULL}, {"--batch", NULL}},
        {{"probe", "m", "--batch", "b", "--out", "o", NULL}, {"m", NULL}},
        {{"export", "nowhere", "out", NULL}, {"nowhere", NULL}},
        {{"init", "out", NULL}, {"--config", NULL}},
        {{"init", "out", "--config", "nowhere", NULL}, {"nowhere", NULL}},
        {{"generate", NULL}, {"MODEL", NULL}},
        {{"generate", "nowhere", "--prompt", "x", NULL}, {"nowhere", NULL}},
        {{"eval", "nowhere", "--data", "x", NULL}, {"nowhere", NULL}},
        {{"inspect", "nowhere", NULL}, {"nowhere", NULL}},
    };
    char *folder = folder_make();
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        Arguments args = {0};
        for (const char *const *word = rows[i].words; *word; word++)
            arguments_add(&args, "%s", *word);
        failed += !program_refuses(&args, folder, rows[i].says);
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_input__config_json),
        cmocka_unit_test(bad_input__data_lines),
        cmocka_unit_test(bad_input__skipped_lines_are_counted),
        cmocka_unit_test(bad_input__configuration),
        cmocka_unit_test(bad_input__what_is_not_built_says_so),
        cmocka_unit_test(bad_input__command_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
