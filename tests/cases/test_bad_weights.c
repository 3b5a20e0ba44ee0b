// Files of weights that are damaged, of another model, or only unusual; on one rank and on two.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/bad_input.h"

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

static void write_bytes(const char *path, const char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fwrite(bytes, 1, n, file);
    fclose(file);
}

static void bad_weights__broken_files(void **state)
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
        failed += row_failed(ok, broken[i].what);
        write_bytes(shard, sound, n);
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
    write_bytes(to, text, n);
    free(text);
}

/* The index says that the tensor is in this shard. */
static void map_tensor(const char *index, const char *tensor, const char *shard)
{
    json_t *root = json_load_file(index, 0, NULL);
    json_object_set_new(json_object_get(root, "weight_map"), tensor, json_string(shard));
    json_dump_file(root, index, 0);
    json_decref(root);
}

static void bad_weights__broken_indexes(void **state)
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
        if (rows[i].tensor)
            map_tensor(index, rows[i].tensor, rows[i].shard);
        else
            write_text(index, rows[i].text);
        bool ok = train_refuses(folder, 1, NULL, rows[i].words);
        ok = train_refuses(folder, 2, NULL, rows[i].words) && ok;
        ok = inspect_refuses(folder, model, rows[i].words) && ok;
        failed += row_failed(ok, rows[i].what);
        write_text(index, sound);
    }
    free(sound);

    /* A tensor in two shards: the second one gets a whole copy of the first. */
    Shard s = read_shard(path_in(folder, "model/" FIRST));
    map_tensor(index, "extra", "model-extra.safetensors");
    write_shard(path_in(folder, "model/model-extra.safetensors"), &s);
    failed += !train_refuses(folder, 2, NULL, WORDS("model-extra.safetensors"));
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Unusual, but as the format allows. */
static void bad_weights__unusual_files_are_accepted(void **state)
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
static void bad_weights__tensors_of_another_model(void **state)
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
        write_bytes(path, sound, n);
    }
    free(sound);
    unlink(path);
    failed += !train_refuses(folder, 2, NULL, WORDS("model"));
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_weights__broken_files),
        cmocka_unit_test(bad_weights__broken_indexes),
        cmocka_unit_test(bad_weights__unusual_files_are_accepted),
        cmocka_unit_test(bad_weights__tensors_of_another_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
