// What is wrong is said in one line with file, line, tensor or key, exit status 2, before anything
// starts and with nothing half written, on one rank and on two.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/runs.h"
#include "train/config.h"

/* ---- helpers ------------------------------------------------------------------------------- */

static char *make_folder(const Fixture *fixture)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), fixture);
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_EQ, 1, 1);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], format: ids}\n"
             "train: {output: %s/run, steps: 1}\n",
             folder, folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

/* No step, no folder of weights and no temporary name is in the run's folder. */
static bool nothing_half_written(const char *folder)
{
    char run[512];
    snprintf(run, sizeof run, "%s/run", folder);
    if (!path_exists(run)) return true;
    char **names = folder_names(run);
    bool ok = true;
    for (char **name = names; *name; name++)
        if (strcmp(*name, "config.yaml") != 0 && strcmp(*name, "log.txt") != 0) {
            fprintf(stderr, "  refused, but %s/%s is there\n", run, *name);
            ok = false;
        }
    names_free(names);
    return ok;
}

/* `train` is refused with these words, with `pp` ranks and one more key set (NULL: none). */
static bool train_refuses(const char *folder, int pp, const char *set, const char *const *words)
{
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "parallel.pp_size=%d", pp);
    if (set) add_set(&args, "%s", set);
    bool ok = program_refuses(&args, folder, words);
    return nothing_half_written(folder) && ok;
}

static bool train_runs(const char *folder, int pp, const char *set)
{
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "parallel.pp_size=%d", pp);
    if (set) add_set(&args, "%s", set);
    bool ok = program_ends(&args, folder, 0);
    if (ok) folder_remove(strdup(path_in(folder, "run")));
    return ok;
}

/* ---- safetensors files --------------------------------------------------------------------- */

#define FIRST "model-00001-of-00002.safetensors"
#define SHARD "model-00002-of-00002.safetensors"
#define LAST "lm_head.weight"    /* the tensor at the end of SHARD */
#define NORM "model.norm.weight" /* the one before it: [64] */

/* A shard taken apart; what is written is length, header text, data. */
typedef struct Shard {
    json_t *header;
    char *text;      /* not NULL: written in place of the header */
    uint64_t length; /* not 0: written in place of the header's own */
    char *data;
    size_t n_data;
    size_t n_file; /* not 0: the file ends here */
} Shard;

static json_t *entry(const Shard *s, const char *tensor)
{
    json_t *value = json_object_get(s->header, tensor);
    if (!value) fail_msg("no %s in the shard", tensor);
    return value;
}

static void move_offsets(const Shard *s, const char *tensor, int begin, int end)
{
    json_t *offsets = json_object_get(entry(s, tensor), "data_offsets");
    const int by[2] = {begin, end};
    for (size_t i = 0; i < 2; i++) {
        json_t *offset = json_array_get(offsets, i);
        json_integer_set(offset, json_integer_value(offset) + by[i]);
    }
}

static void set_entry(const Shard *s, const char *tensor, const char *key, json_t *value)
{
    json_object_set_new(entry(s, tensor), key, value);
}

static void take_text(Shard *s)
{
    s->text = json_dumps(s->header, JSON_COMPACT);
}

// clang-format off
static void longest_length(Shard *s) { s->length = (uint64_t)1 << 63; }
static void length_beyond_file(Shard *s) { s->length = s->n_data * 2; }
static void length_of_all_ones(Shard *s) { s->length = UINT64_MAX; }
static void header_cut(Shard *s) { s->n_file = 100; }
static void length_cut(Shard *s) { s->n_file = 5; }
static void empty_file(Shard *s) { s->n_file = SIZE_MAX; }
static void bad_utf8(Shard *s) { take_text(s); *strchr(strstr(s->text, "lm_head"), '_') = (char)0xff; }
static void bad_json(Shard *s) { take_text(s); s->text[strlen(s->text) - 1] = ' '; }
static void no_object(Shard *s) { s->text = strdup("[]"); }
static void twice(Shard *s) { take_text(s); memcpy(strstr(s->text, "model.layers.3.self_attn.k_norm"), "model.layers.3.self_attn.q_norm", 31); }
static void strange_dtype(Shard *s) { set_entry(s, LAST, "dtype", json_string("F33")); }
static void dtype_missing(Shard *s) { json_object_del(entry(s, LAST), "dtype"); }
static void negative_dim(Shard *s) { set_entry(s, LAST, "shape", json_pack("[i,i]", -512, -64)); }
static void fractional_dim(Shard *s) { set_entry(s, LAST, "shape", json_pack("[f,i]", 512.5, 64)); }
static void shape_no_list(Shard *s) { set_entry(s, LAST, "shape", json_integer(32768)); }
static void huge_shape(Shard *s) { set_entry(s, LAST, "shape", json_pack("[I,I]", (json_int_t)1 << 62, (json_int_t)1 << 62)); }
static void begin_behind_end(Shard *s) { move_offsets(s, NORM, 512, 0); }
static void negative_begin(Shard *s) { set_entry(s, NORM, "data_offsets", json_pack("[i,i]", -256, 0)); }
static void end_beyond_data(Shard *s) { move_offsets(s, LAST, 0, 256); }
static void wrong_bytes(Shard *s) { set_entry(s, NORM, "shape", json_pack("[i]", 63)); }
static void wrong_dtype(Shard *s) { set_entry(s, NORM, "dtype", json_string("F64")); }
static void overlap(Shard *s) { move_offsets(s, NORM, -4, -4); }
static void hole(Shard *s) { json_object_del(s->header, NORM); }
static void extra_bytes(Shard *s) { s->n_data += 8; }
static void byte_short(Shard *s) { s->n_data -= 1; }
static void metadata_number(Shard *s) { json_object_set_new(s->header, "__metadata__", json_pack("{s:i}", "format", 1)); }
static void entry_no_object(Shard *s) { json_object_set_new(s->header, NORM, json_integer(3)); }

static const struct {
    const char *what, *says; /* besides the file */
    void (*spoil)(Shard *shard);
} broken[] = {
    {"header length 2^63",           "header",          longest_length},
    {"header length of all ones",    "header",          length_of_all_ones},
    {"header longer than the file",  "header",          length_beyond_file},
    {"file ends in the header",      "header",          header_cut},
    {"file ends in the length",      "header",          length_cut},
    {"empty file",                   "header",          empty_file},
    {"header is no UTF-8",           "header",          bad_utf8},
    {"header is no JSON",            "header",          bad_json},
    {"header is no object",          "header",          no_object},
    {"a name twice",                 "duplicate",       twice},
    {"unknown dtype",                LAST,              strange_dtype},
    {"no dtype",                     LAST,              dtype_missing},
    {"negative shape",               LAST,              negative_dim},
    {"fractional shape",             LAST,              fractional_dim},
    {"shape is no list",             LAST,              shape_no_list},
    {"shape overflows",              LAST,              huge_shape},
    {"begin behind end",             NORM,              begin_behind_end},
    {"negative offset",              NORM,              negative_begin},
    {"end beyond the data",          LAST,              end_beyond_data},
    {"bytes do not fit the shape",   NORM,              wrong_bytes},
    {"bytes do not fit the dtype",   NORM,              wrong_dtype},
    {"two tensors overlap",          NORM,              overlap},
    {"a hole between tensors",       "",                hole},
    {"bytes behind the last tensor", "",                extra_bytes},
    {"one byte short",               LAST,              byte_short},
    {"metadata is no string",        "__metadata__",    metadata_number},
    {"an entry is no object",        NORM,              entry_no_object},
};
// clang-format on

static Shard read_shard(const char *path)
{
    Shard s = {0};
    size_t n;
    char *file = read_text(path, &n);
    uint64_t length = 0;
    for (int i = 0; i < 8; i++) length |= (uint64_t)(unsigned char)file[i] << (8 * i);
    s.header = json_loadb(file + 8, length, 0, NULL);
    if (!s.header) fail_msg("no header in %s", path);
    s.n_data = n - 8 - length;
    s.data = calloc(1, s.n_data + 64);
    memcpy(s.data, file + 8 + length, s.n_data);
    free(file);
    return s;
}

static void write_shard(const char *path, Shard *s)
{
    char *text = s->text ? s->text : json_dumps(s->header, JSON_COMPACT);
    size_t n_text = strlen(text);
    uint64_t length = s->length ? s->length : n_text;
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (int i = 0; i < 8; i++) fputc((int)(length >> (8 * i) & 255), file);
    fwrite(text, 1, n_text, file);
    fwrite(s->data, 1, s->n_data, file);
    fclose(file);
    if (s->n_file)
        assert_int_equal(truncate(path, s->n_file == SIZE_MAX ? 0 : (off_t)s->n_file), 0);
    free(text);
    free(s->data);
    json_decref(s->header);
}

static bool inspect_refuses(const char *folder, const char *path, const char *const *words)
{
    Arguments args = {0};
    arguments_add(&args, "inspect");
    arguments_add(&args, "%s", path);
    return program_refuses(&args, folder, words);
}

static void bad_input__broken_safetensors(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}), shard[512], model[512];
    snprintf(model, sizeof model, "%s/model", folder);
    snprintf(shard, sizeof shard, "%s/model/" SHARD, folder);
    size_t n;
    char *sound = read_text(shard, &n);
    int failed = 0;
    for (size_t i = 0; i < COUNT(broken); i++) {
        Shard s = read_shard(shard);
        broken[i].spoil(&s);
        write_shard(shard, &s);
        const char *const *words = WORDS(SHARD, broken[i].says);
        bool ok = train_refuses(folder, 1, NULL, words);
        ok = train_refuses(folder, 2, NULL, words) && ok;
        ok = inspect_refuses(folder, model, words) && ok;
        ok = inspect_refuses(folder, shard, words) && ok;
        if (!ok) fprintf(stderr, "  row: %s\n", broken[i].what);
        failed += !ok;
        FILE *file = fopen(shard, "wb");
        assert_non_null(file);
        fwrite(sound, 1, n, file);
        fclose(file);
    }
    free(sound);
    assert_true(train_runs(folder, 2, NULL)); /* it was the damage each time */
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void copy_file(const char *from, const char *to)
{
    size_t n;
    char *text = read_text(from, &n);
    FILE *file = fopen(to, "wb");
    assert_non_null(file);
    fwrite(text, 1, n, file);
    fclose(file);
    free(text);
}

static void bad_input__broken_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *what, *tensor, *shard; /* the entry that is set; tensor NULL: the whole text */
        const char *text;
        const char *words[3];
    } rows[] = {
        {"shard missing",
         NORM,
         "model-00003-of-00003.safetensors",
         NULL,
         {NORM, "model-00003-of-00003.safetensors", NULL}},
        {"wrong shard", NORM, FIRST, NULL, {NORM, FIRST, NULL}},
        {"outside the folder", NORM, "../x.safetensors", NULL, {NORM, "../x.safetensors", NULL}},
        {"absolute path", NORM, "/etc/passwd", NULL, {NORM, "/etc/passwd", NULL}},
        {"no JSON", NULL, NULL, "{\"weight_map\": {", {"index.json:1", NULL}},
        {"no object", NULL, NULL, "[]", {"index.json", NULL}},
        {"no map", NULL, NULL, "{\"metadata\": {}}", {"index.json", "weight_map", NULL}},
        {"map of numbers",
         NULL,
         NULL,
         "{\"weight_map\": {\"" NORM "\": 1}}",
         {"index.json", NORM, NULL}},
        {"empty map", NULL, NULL, "{\"weight_map\": {}}", {"index.json", NULL}},
    };
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}), index[512], model[512];
    snprintf(model, sizeof model, "%s/model", folder);
    snprintf(index, sizeof index, "%s/model/model.safetensors.index.json", folder);
    copy_file(path_in(folder, "model/" FIRST), path_in(folder, "x.safetensors"));
    char *sound = read_text(index, NULL);
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (rows[i].tensor) {
            json_t *root = json_loads(sound, 0, NULL);
            json_object_set_new(json_object_get(root, "weight_map"), rows[i].tensor,
                                json_string(rows[i].shard));
            json_dump_file(root, index, 0);
            json_decref(root);
        } else {
            write_text(index, rows[i].text);
        }
        bool ok = train_refuses(folder, 1, NULL, rows[i].words);
        ok = train_refuses(folder, 2, NULL, rows[i].words) && ok;
        ok = inspect_refuses(folder, model, rows[i].words) && ok;
        if (!ok) fprintf(stderr, "  row: %s\n", rows[i].what);
        failed += !ok;
        write_text(index, sound);
    }
    free(sound);

    /* A tensor in two shards: the second one gets a whole copy of the first. */
    Shard s = read_shard(path_in(folder, "model/" FIRST));
    json_t *root = json_load_file(index, 0, NULL);
    json_object_set_new(json_object_get(root, "weight_map"), "extra",
                        json_string("model-extra.safetensors"));
    json_dump_file(root, index, 0);
    json_decref(root);
    write_shard(path_in(folder, "model/model-extra.safetensors"), &s);
    failed += !train_refuses(folder, 2, NULL, WORDS("model-extra.safetensors"));
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Unusual, but as the format allows. */
static void bad_input__unusual_safetensors_are_accepted(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE, .n_shards = 1}), path[512];
    snprintf(path, sizeof path, "%s/model/model.safetensors", folder);
    for (int i = 0; i < 4; i++) {
        Shard s = read_shard(path);
        const char *set = NULL;
        char *text;
        switch (i) {
        case 0: json_object_del(s.header, "__metadata__"); break;
        case 1: /* a header padded with many spaces */
            take_text(&s);
            text = malloc(strlen(s.text) + 1001);
            assert_non_null(text);
            sprintf(text, "%s%1000s", s.text, "");
            free(s.text);
            s.text = text;
            break;
        case 2: /* sorted by name, so in another order than the data */
            s.text = json_dumps(s.header, JSON_SORT_KEYS);
            break;
        default: /* no elements */
            json_object_set_new(s.header, "nothing",
                                json_pack("{s:s,s:[i,i],s:[i,i]}", "dtype", "F32", "shape", 0, 64,
                                          "data_offsets", 0, 0));
            set = "model.extra_tensors=carry";
        }
        write_shard(path, &s);
        assert_true(train_runs(folder, 2, set));
    }
    folder_remove(folder);
}

/* Sound files that are not this model's. */
static void bad_input__tensors_of_another_model(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE, .n_shards = 1}), path[512];
    snprintf(path, sizeof path, "%s/model/model.safetensors", folder);
    static const struct {
        const char *tensor, *renamed; /* renamed NULL: another shape */
        const char *words[4];
    } rows[] = {
        {"model.layers.2.mlp.gate.weight",
         NULL,
         {"model.layers.2.mlp.gate.weight", "[64, 4]", "[4, 64]", NULL}},
        {"model.layers.2.mlp.gate.weight",
         "model.layers.2.mlp.gates.weight",
         {"model.layers.2.mlp.gate", "weight", NULL}},
        {"lm_head.weight", "lm_heat.weight", {"lm_hea", NULL}},
    };
    size_t n;
    char *sound = read_text(path, &n);
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        Shard s = read_shard(path);
        if (rows[i].renamed) {
            json_t *own = json_incref(entry(&s, rows[i].tensor));
            json_object_del(s.header, rows[i].tensor);
            json_object_set_new(s.header, rows[i].renamed, own);
        } else {
            set_entry(&s, rows[i].tensor, "shape", json_pack("[i,i]", 64, 4));
        }
        write_shard(path, &s);
        for (int pp = 1; pp <= 4; pp += 3)
            failed += !train_refuses(folder, pp, NULL, rows[i].words);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fwrite(sound, 1, n, file);
        fclose(file);
    }
    free(sound);
    unlink(path);
    failed += !train_refuses(folder, 2, NULL, WORDS("model"));
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

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
        if (!ok) fprintf(stderr, "  row: %s %s\n", rows[i].key, rows[i].value);
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
        if (!ok) fprintf(stderr, "  row: %s\n", rows[i].line);
        failed += !ok;
    }
    /* No line at all, no file, a folder without files. */
    write_text(path, "\n\n");
    failed += !train_refuses(folder, 2, train, WORDS("bad.jsonl"));
    unlink(path);
    failed += !train_refuses(folder, 2, train, WORDS("bad.jsonl"));
    mkdir(path, 0777);
    failed += !train_refuses(folder, 2, train, WORDS("bad.jsonl"));
    /* Text without a tokenizer. */
    rmdir(path);
    write_text(path, "{\"text\": \"hello\"}\n");
    free(train);
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "data.train=[%s]", path);
    add_set(&args, "data.format=text");
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
    Arguments args = {0};
    for (int mixed = 0; mixed < 2; mixed++) {
        arguments_add(&args, "train");
        arguments_add(&args, "%s/config.yaml", folder);
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
        Arguments args = {0};
        arguments_add(&args, "train");
        arguments_add(&args, "%s/config.yaml", folder);
        add_set(&args, "%s", rows[i].set);
        bool ok = program_refuses(&args, folder, rows[i].words);
        ok = nothing_half_written(folder) && ok;
        if (!ok) fprintf(stderr, "  row: %s\n", rows[i].set);
        failed += !ok;
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
        Arguments args = {0};
        arguments_add(&args, "train");
        arguments_add(&args, "%s/bad.yaml", folder);
        bool ok = program_refuses(&args, folder, files[i].words);
        if (!ok) fprintf(stderr, "  row: %s\n", files[i].yaml);
        failed += !ok;
    }
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/none.yaml", folder);
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
        cmocka_unit_test(bad_input__broken_safetensors),
        cmocka_unit_test(bad_input__broken_indexes),
        cmocka_unit_test(bad_input__unusual_safetensors_are_accepted),
        cmocka_unit_test(bad_input__tensors_of_another_model),
        cmocka_unit_test(bad_input__config_json),
        cmocka_unit_test(bad_input__data_lines),
        cmocka_unit_test(bad_input__skipped_lines_are_counted),
        cmocka_unit_test(bad_input__configuration),
        cmocka_unit_test(bad_input__what_is_not_built_says_so),
        cmocka_unit_test(bad_input__command_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
