#include "model/config.h"
#include "io/file.h"
#include "io/hash.h"
#include "model/config_rope.h"
#include "model/families/qwen3.h"

#include <stdlib.h>
#include <string.h>

static const Family *const families[] = {&family_qwen3_moe, &family_qwen3, NULL};

/* Keys that change the maths in a way that we do not compute, with the value that leaves them out. */
static const ConfigFixed fixed_keys[] = {
    {"hidden_act", "\"silu\""},
    {"use_sliding_window", "false"},
    {"attention_dropout", "0.0"},
    {"partial_rotary_factor", "1.0"},
    {"quantization_config", "null"},
    {"pretraining_tp", "1"},
    {"shared_expert_intermediate_size", "0"},
    {"n_shared_experts", "0"},
    {"num_nextn_predict_layers", "0"},
    {"add_cross_attention", "false"},
    {"is_encoder_decoder", "false"},
    {"is_decoder", "false"},
    {"attn_logit_softcapping", "null"},
    {"final_logit_softcapping", "null"},
    {"mlp_bias", "false"},
    {"use_bidirectional_attention", "false"},
    {NULL, NULL},
};

/* Keys that change nothing here, and those read by name below. */
static const char *const neutral_keys[] = {
    "architectures",
    "model_type",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "max_window_layers",
    "sliding_window",
    "layer_types",
    "mlp_only_layers",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "_name_or_path",
    "name_or_path",
    "return_dict",
    "output_hidden_states",
    "output_attentions",
    "auto_map",
    "unsloth_fixed",
    "unsloth_version",
    "torchscript",
    "tokenizer_class",
    "use_mm_proj",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "problem_type",
    "router_jitter_noise",
    NULL,
};

/* Absent, null, or the same value (numbers: the same number). */
static bool equals_text(const json_t *value, const char *text)
{
    if (!value || json_is_null(value)) return true;
    json_t *wanted = json_loads(text, JSON_DECODE_ANY, NULL);
    bool equal = json_is_number(value) && json_is_number(wanted)
                     ? json_number_value(value) == json_number_value(wanted)
                     : json_equal(value, wanted) == 1;
    json_decref(wanted);
    return equal;
}

static char *value_text(Arena *arena, const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    char *copy = text_copy_n(arena, text ? text : "?", text ? strnlen(text, 80) : 1);
    free(text);
    return copy;
}

static Status read_field(ModelConfig *config, const ConfigField *f, const json_t *root,
                         const char *path)
{
    void *out = (char *)config + f->offset;
    json_t *value = json_object_get(root, f->key);
    bool absent = !value || json_is_null(value);
    if (absent && !f->fallback) return FAIL(ERR_FORMAT, "%s: key %s: missing", path, f->key);
    if (f->type == CONFIG_BOOL) {
        bool fallback = f->fallback && strcmp(f->fallback, "true") == 0;
        return json_get_bool_or(root, path, f->key, fallback, out);
    }
    double number;
    if (f->type == CONFIG_INT) {
        int64_t *integer = out;
        if (absent)
            *integer = strtoll(f->fallback, NULL, 10);
        else
            TRY(json_get_int(root, path, f->key, integer));
        number = (double)*integer;
    } else {
        double *real = out;
        if (absent)
            *real = strtod(f->fallback, NULL);
        else
            TRY(json_get_real(root, path, f->key, real));
        number = *real;
    }
    if (!(number >= f->min && number <= f->max))
        return FAIL(ERR_FORMAT, "%s: key %s: out of range (found %.17g, expected %g to %g)", path,
                    f->key, number, f->min, f->max);
    return OK;
}

static Status read_dtype(ModelConfig *config, const json_t *root, const char *path)
{
    static const struct {
        const char *name;
        DType dtype;
    } names[] = {{"float32", DTYPE_F32}, {"bfloat16", DTYPE_BF16}, {"float16", DTYPE_F16}};
    const char *old, *name;
    TRY(json_get_string_or(root, path, "torch_dtype", "float32", &old));
    TRY(json_get_string_or(root, path, "dtype", old, &name));
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i].name) == 0) return config->dtype = names[i].dtype, OK;
    return FAIL(ERR_UNSUPPORTED,
                "%s: key dtype: not available (found %s, expected float32, bfloat16 or float16)",
                path, name);
}

static Status read_eos(ModelConfig *config, const json_t *root, const char *path)
{
    json_t *value = json_object_get(root, "eos_token_id");
    if (!value || json_is_null(value)) return OK;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > EOS_MAX)
        return FAIL(ERR_FORMAT, "%s: key eos_token_id: too many (found %zu, expected at most %d)",
                    path, n, EOS_MAX);
    config->n_eos = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= config->vocab)
            return FAIL(ERR_FORMAT, "%s: key eos_token_id: expected token ids in [0, %lld)", path,
                        (long long)config->vocab);
        config->eos[config->n_eos++] = (int32_t)json_integer_value(id);
    }
    return OK;
}

static Status read_layer_kinds(ModelConfig *config, const json_t *root, const char *path,
                               Arena *arena)
{
    json_t *types, *dense;
    TRY(json_get_array_or_null(root, path, "layer_types", &types));
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, "full_attention") != 0)
            return FAIL(ERR_UNSUPPORTED,
                        "%s: key layer_types: entry %zu (found %s, expected full_attention)", path,
                        i, type ? type : "no string");
    }
    TRY(json_get_array_or_null(root, path, "mlp_only_layers", &dense));
    config->n_dense_layers = (int64_t)json_array_size(dense);
    config->dense_layer = ARENA_NEW(arena, int64_t, config->n_dense_layers);
    for (int64_t i = 0; i < config->n_dense_layers; i++) {
        json_t *layer = json_array_get(dense, (size_t)i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= config->n_layers)
            return FAIL(ERR_FORMAT,
                        "%s: key mlp_only_layers: entry %lld is not a layer in [0, %lld)", path,
                        (long long)i, (long long)config->n_layers);
        config->dense_layer[i] = json_integer_value(layer);
    }
    return OK;
}

static Status check_sizes(ModelConfig *config, const char *path)
{
    ModelConfig *c = config;
    if (c->head_dim == 0) {
        if (c->hidden % c->n_heads)
            return FAIL(
                ERR_FORMAT,
                "%s: hidden_size must be a multiple of num_attention_heads (found %lld and %lld)",
                path, (long long)c->hidden, (long long)c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }
    if (c->head_dim % 2)
        return FAIL(ERR_FORMAT, "%s: key head_dim: must be even (found %lld)", path,
                    (long long)c->head_dim);
    if (c->n_heads % c->n_kv_heads)
        return FAIL(ERR_FORMAT,
                    "%s: num_attention_heads must be a multiple of num_key_value_heads (found %lld "
                    "and %lld)",
                    path, (long long)c->n_heads, (long long)c->n_kv_heads);
    if (c->experts_per_token > c->n_experts)
        return FAIL(ERR_FORMAT, "%s: num_experts_per_tok exceeds num_experts (found %lld and %lld)",
                    path, (long long)c->experts_per_token, (long long)c->n_experts);
    if (model_config_n_moe_layers(c) < c->n_layers && c->ffn_dense < 1)
        return FAIL(ERR_FORMAT, "%s: key intermediate_size: missing, and there are dense layers",
                    path);
    return OK;
}

/* Keys that neither the family nor we know may change the maths: say so. */
static void warn_unknown(const ModelConfig *config, json_t *root, const char *path, Log *log,
                         Arena *arena)
{
    TextBuffer names;
    text_buffer_init(&names, arena);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        bool known = false;
        for (const ConfigField *f = config->family->fields; f->key && !known; f++)
            known = !strcmp(f->key, key);
        for (const ConfigFixed *f = fixed_keys; f->key && !known; f++) known = !strcmp(f->key, key);
        for (const char *const *name = neutral_keys; *name && !known; name++)
            known = !strcmp(*name, key);
        if (!known && !json_is_null(value))
            text_append_format(&names, "%s%s", names.length ? ", " : "", key);
    }
    if (names.length) log_warning(log, "%s: keys without a meaning here: %s", path, names.text);
}

static Status read_root(ModelConfig *config, json_t *root, const char *path, Arena *arena, Log *log)
{
    const char *type;
    TRY(json_get_string(root, path, "model_type", &type));
    const char *names[8] = {NULL};
    for (int i = 0; families[i]; i++) {
        names[i] = families[i]->model_type;
        if (strcmp(names[i], type) == 0) config->family = families[i];
    }
    if (!config->family) {
        const char *near = text_nearest(type, names);
        return FAIL(
            ERR_UNSUPPORTED,
            "%s: key model_type: not available yet (found %s, expected qwen3_moe or qwen3%s%s)",
            path, type, near ? "; nearest is " : "", near ? near : "");
    }
    for (const ConfigField *f = config->family->fields; f->key; f++)
        TRY(read_field(config, f, root, path));
    for (const ConfigFixed *f = fixed_keys; f->key; f++) {
        json_t *value = json_object_get(root, f->key);
        if (!equals_text(value, f->value))
            return FAIL(ERR_UNSUPPORTED, "%s: key %s: not available (found %s, expected %s)", path,
                        f->key, value_text(arena, value), f->value);
    }
    if (config->sparse_step < 1) config->sparse_step = 1;
    TRY(read_layer_kinds(config, root, path, arena));
    TRY(check_sizes(config, path));
    TRY(config_read_rope(config, root, path, arena));
    TRY(read_dtype(config, root, path));
    TRY(read_eos(config, root, path));
    warn_unknown(config, root, path, log, arena);
    return OK;
}

static Status parse_file(ModelConfig *config, const char *path, const char *text, size_t n,
                         Status (*read)(ModelConfig *, json_t *, const char *, Arena *, Log *),
                         Arena *arena, Log *log)
{
    JsonDoc doc;
    TRY(json_doc_parse(&doc, path, text, n));
    Status status = json_expect_object(doc.root, path);
    if (status == OK) status = read(config, doc.root, path, arena, log);
    json_doc_free(&doc);
    return status;
}

static Status read_generation(ModelConfig *config, json_t *root, const char *path, Arena *arena,
                              Log *log)
{
    (void)arena;
    (void)log;
    return read_eos(config, root, path);
}

Status model_config_parse(ModelConfig **out, const ConfigText *text, Arena *arena, Log *log)
{
    ModelConfig *config = ARENA_NEW(arena, ModelConfig, 1);
    config->dir = config->source = text_copy(arena, text->dir);
    config->hash = hash_bytes(text->config, text->config_bytes);
    TRY(parse_file(config, text->path, text->config, text->config_bytes, read_root, arena, log));
    if (text->generation)
        TRY(parse_file(config, path_join(arena, text->dir, "generation_config.json"),
                       text->generation, text->generation_bytes, read_generation, arena, log));
    *out = config;
    return OK;
}

Status model_config_read(ModelConfig **out, const char *path, Arena *arena, Log *log)
{
    ConfigText text = {.dir = path, .path = path};
    if (dir_exists(path)) {
        text.path = path_join(arena, path, "config.json");
    } else {
        const char *slash = strrchr(path, '/');
        text.dir = slash ? text_copy_n(arena, path, (size_t)(slash - path)) : ".";
    }
    char *bytes;
    TRY(file_read(arena, text.path, &bytes, &text.config_bytes));
    text.config = bytes;
    const char *generation = path_join(arena, text.dir, "generation_config.json");
    if (file_exists(generation)) {
        TRY(file_read(arena, generation, &bytes, &text.generation_bytes));
        text.generation = bytes;
    }
    TRY(model_config_parse(out, &text, arena, log));
    if (text.path == path) (*out)->source = text_copy(arena, path);
    return OK;
}

bool model_config_is_moe(const ModelConfig *config, int64_t layer)
{
    if (config->n_experts == 0 || (layer + 1) % config->sparse_step != 0) return false;
    for (int64_t i = 0; i < config->n_dense_layers; i++)
        if (config->dense_layer[i] == layer) return false;
    return true;
}

int64_t model_config_n_moe_layers(const ModelConfig *config)
{
    int64_t n = 0;
    for (int64_t l = 0; l < config->n_layers; l++) n += model_config_is_moe(config, l);
    return n;
}
