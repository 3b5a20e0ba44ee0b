#include "cases/fixtures.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, MOE_FFN = 32, FFN = 128, MAX_TENSORS = 1024 };
enum { E = FIXTURE_EXPERTS };

typedef struct Entry {
    char name[96];
    int64_t dim[3];
    int n_dims;
    float *value;
} Entry;

typedef struct Model {
    const Fixture *fixture;
    int n_layers, hidden, vocab;
    unsigned mlp_only;
    bool tied;
    Entry entry[MAX_TENSORS];
    int n;
} Model;

_Noreturn static void stop(const char *what, const char *path)
{
    fprintf(stderr, "fixture: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

static FILE *open_for_writing(const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file) stop("cannot write", path);
    return file;
}

static void close_written(FILE *file, const char *path)
{
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) stop("cannot write", path);
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* splitmix64's output function: a good hash of a counter. */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t key_of(uint64_t seed, const char *name)
{
    uint64_t key = mix(seed ? seed : FIXTURE_SEED);
    for (; *name; name++) key = mix(key ^ (uint64_t)(unsigned char)*name);
    return key;
}

static double uniform(uint64_t key, uint64_t counter)
{
    return ((double)(mix(key + mix(counter)) >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t key, uint64_t counter)
{
    const double two_pi = 6.283185307179586;
    double radius = sqrt(-2 * log(uniform(key, 2 * counter)));
    return radius * cos(two_pi * uniform(key, 2 * counter + 1));
}

/* Rounded to nearest, ties to even; the values here are finite and small. */
static uint16_t to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static uint16_t to_f16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double size = fabs((double)x);
    if (size < 0x1p-14) return (uint16_t)(sign | (uint16_t)nearbyint(size * 0x1p24));
    int exponent;
    double fraction = frexp(size, &exponent); /* size = fraction 2^exponent, fraction in [0.5, 1) */
    /* A fraction that rounds up to 2048 carries into the exponent by itself. */
    return (uint16_t)(sign | (((exponent + 13) << 10) + (int)nearbyint(fraction * 2048)));
}

/* ---- tensors ------------------------------------------------------------------------------- */

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

static bool is_norm(const char *name)
{
    return has(name, "norm.weight");
}

/* The draw of a plain tensor, before what the kind changes. */
static void draw(const Model *m, const char *name, float *value, int64_t n)
{
    uint64_t key = key_of(m->fixture->seed, name);
    for (int64_t i = 0; i < n; i++)
        value[i] = is_norm(name) ? (float)(0.9 + 0.2 * uniform(key, (uint64_t)i))
                                 : (float)(0.02 * normal(key, (uint64_t)i));
}

static void change_for_router(const char *name, float *value, int64_t rows, int64_t cols)
{
    static const float gate[E] = {0.2f, 0.1f, 0, 0};
    bool embedding = has(name, "embed_tokens"), router = has(name, "mlp.gate.weight");
    bool silent = router || has(name, "o_proj") || has(name, "down_proj");
    for (int64_t i = 0; i < rows * cols; i++)
        if (is_norm(name))
            value[i] = 1;
        else if (silent)
            value[i] = 0;
    for (int64_t r = 0; r < rows; r++)
        if (embedding)
            value[r * cols] = 8;
        else if (router && r < E)
            value[r * cols] = gate[r];
}

static void change_for_margin(const char *name, float *value, int64_t rows, int64_t cols,
                              uint64_t key)
{
    static const float level[4] = {0.15f, 0.075f, -0.075f, -0.15f};
    if (has(name, "embed_tokens")) {
        for (int64_t r = 0; r < rows; r++) {
            int order[4] = {0, 1, 2, 3};
            for (int i = 3; i > 0; i--) {
                int j = (int)(uniform(key, (uint64_t)(rows * cols + r * 4 + i)) * (i + 1));
                int swap = order[i];
                order[i] = order[j], order[j] = swap;
            }
            for (int i = 0; i < 4; i++) value[r * cols + i] = level[order[i]];
        }
    } else if (has(name, "mlp.gate.weight")) {
        for (int e = 0; e < E; e++) value[e * cols + e] += 0.3f;
    } else if (has(name, "o_proj") || has(name, "down_proj")) {
        memset(value, 0, (size_t)(4 * cols) * sizeof *value);
    } else if (has(name, "post_attention_layernorm")) {
        for (int i = 0; i < 4; i++) value[i] = 1;
    }
}

static void fill(const Model *m, const char *name, float *value, int64_t rows, int64_t cols)
{
    draw(m, name, value, rows * cols);
    if (m->fixture->kind == FIXTURE_ROUTER) change_for_router(name, value, rows, cols);
    if (m->fixture->kind == FIXTURE_MARGIN)
        change_for_margin(name, value, rows, cols, key_of(m->fixture->seed, name));
}

static Entry *add_entry(Model *m, const char *name, int n_dims, int64_t d0, int64_t d1, int64_t d2)
{
    if (m->n == MAX_TENSORS) {
        fprintf(stderr, "fixture: more than %d tensors\n", MAX_TENSORS);
        exit(1);
    }
    Entry *entry = &m->entry[m->n++];
    *entry = (Entry){.dim = {d0, d1, d2}, .n_dims = n_dims};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->value = malloc((size_t)(d0 * d1 * d2) * sizeof(float));
    if (!entry->value) stop("no memory for", name);
    return entry;
}

/* One tensor; cols 0: a vector. */
static void add(Model *m, const char *name, int64_t rows, int64_t cols)
{
    Entry *entry = add_entry(m, name, cols ? 2 : 1, rows, cols ? cols : 1, 1);
    fill(m, name, entry->value, rows, cols ? cols : 1);
}

static void add_in_layer(Model *m, int layer, const char *rest, int64_t rows, int64_t cols)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, rest);
    add(m, name, rows, cols);
}

/* The values of the three matrices of each expert, wherever they are put. */
static void add_fused_experts(Model *m, int layer)
{
    char name[96];
    const int64_t n = MOE_FFN * m->hidden;
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", layer);
    float *gate_up = add_entry(m, name, 3, E, 2 * MOE_FFN, m->hidden)->value;
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", layer);
    float *down = add_entry(m, name, 3, E, m->hidden, MOE_FFN)->value;
    for (int e = 0; e < E; e++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.gate_proj.weight", layer, e);
        fill(m, name, gate_up + 2 * e * n, MOE_FFN, m->hidden);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up_proj.weight", layer, e);
        fill(m, name, gate_up + (2 * e + 1) * n, MOE_FFN, m->hidden);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.down_proj.weight", layer, e);
        fill(m, name, down + e * n, m->hidden, MOE_FFN);
    }
}

static void add_layer(Model *m, int l)
{
    add_in_layer(m, l, "self_attn.q_proj.weight", HEADS * HEAD_DIM, m->hidden);
    add_in_layer(m, l, "self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, m->hidden);
    add_in_layer(m, l, "self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, m->hidden);
    add_in_layer(m, l, "self_attn.o_proj.weight", m->hidden, HEADS * HEAD_DIM);
    add_in_layer(m, l, "self_attn.q_norm.weight", HEAD_DIM, 0);
    add_in_layer(m, l, "self_attn.k_norm.weight", HEAD_DIM, 0);
    if (m->fixture->kind == FIXTURE_DENSE || (m->mlp_only >> l & 1)) {
        add_in_layer(m, l, "mlp.gate_proj.weight", FFN, m->hidden);
        add_in_layer(m, l, "mlp.up_proj.weight", FFN, m->hidden);
        add_in_layer(m, l, "mlp.down_proj.weight", m->hidden, FFN);
    } else {
        add_in_layer(m, l, "mlp.gate.weight", E, m->hidden);
        if (m->fixture->fused) {
            add_fused_experts(m, l);
        } else {
            for (int e = 0; e < E; e++) {
                char rest[64];
                snprintf(rest, sizeof rest, "mlp.experts.%d.gate_proj.weight", e);
                add_in_layer(m, l, rest, MOE_FFN, m->hidden);
                snprintf(rest, sizeof rest, "mlp.experts.%d.up_proj.weight", e);
                add_in_layer(m, l, rest, MOE_FFN, m->hidden);
                snprintf(rest, sizeof rest, "mlp.experts.%d.down_proj.weight", e);
                add_in_layer(m, l, rest, m->hidden, MOE_FFN);
            }
        }
    }
    add_in_layer(m, l, "input_layernorm.weight", m->hidden, 0);
    add_in_layer(m, l, "post_attention_layernorm.weight", m->hidden, 0);
}

/* ---- files --------------------------------------------------------------------------------- */

static const struct {
    const char *safetensors, *torch;
    int bytes;
} dtypes[] = {
    [FIXTURE_F32] = {"F32", "float32", 4},
    [FIXTURE_BF16] = {"BF16", "bfloat16", 2},
    [FIXTURE_F16] = {"F16", "float16", 2},
};

static int64_t entry_elements(const Entry *entry)
{
    return entry->dim[0] * entry->dim[1] * entry->dim[2];
}

static void write_values(FILE *file, const Entry *entry, FixtureDtype dtype)
{
    for (int64_t i = 0; i < entry_elements(entry); i++) {
        float x = entry->value[i];
        uint16_t half = dtype == FIXTURE_BF16 ? to_bf16(x) : dtype == FIXTURE_F16 ? to_f16(x) : 0;
        fwrite(dtype == FIXTURE_F32 ? (const void *)&x : &half, (size_t)dtypes[dtype].bytes, 1,
               file);
    }
}

/* A shard: 8 bytes of header length, the header, padded with spaces to 8, the tensors in order. */
static void write_shard(const char *path, const Entry *entry, int n, FixtureDtype dtype)
{
    char *header = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&header, &length);
    if (!text) stop("no memory for", path);
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", text);
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", entry[i].name,
                dtypes[dtype].safetensors);
        for (int d = 0; d < entry[i].n_dims; d++)
            fprintf(text, "%s%lld", d ? "," : "", (long long)entry[i].dim[d]);
        int64_t end = at + entry_elements(&entry[i]) * dtypes[dtype].bytes;
        fprintf(text, "],\"data_offsets\":[%lld,%lld]}", (long long)at, (long long)end);
        at = end;
    }
    fputc('}', text);
    while (fflush(text) == 0 && length % 8) fputc(' ', text);
    fclose(text);

    FILE *file = open_for_writing(path);
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)length >> (8 * i) & 255), file);
    fwrite(header, 1, length, file);
    for (int i = 0; i < n; i++) write_values(file, &entry[i], dtype);
    close_written(file, path);
    free(header);
}

static void shard_name(char *name, size_t size, int shard, int n_shards)
{
    snprintf(name, size, "model-%05d-of-%05d.safetensors", shard + 1, n_shards);
}

static void write_index(const char *dir, const Model *m, int n_shards)
{
    char path[1024], shard[64];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    FILE *file = open_for_writing(path);
    int64_t bytes = 0;
    for (int i = 0; i < m->n; i++)
        bytes += entry_elements(&m->entry[i]) * dtypes[m->fixture->dtype].bytes;
    fprintf(file, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {",
            (long long)bytes);
    for (int s = 0; s < n_shards; s++) {
        shard_name(shard, sizeof shard, s, n_shards);
        for (int i = s * m->n / n_shards; i < (s + 1) * m->n / n_shards; i++)
            fprintf(file, "%s\n    \"%s\": \"%s\"", i ? "," : "", m->entry[i].name, shard);
    }
    fprintf(file, "\n  }\n}\n");
    close_written(file, path);
}

static void write_config(const char *dir, const Model *m)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *file = open_for_writing(path);
    bool dense = m->fixture->kind == FIXTURE_DENSE;
    fprintf(file, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
            dense ? "Qwen3ForCausalLM" : "Qwen3MoeForCausalLM", dense ? "qwen3" : "qwen3_moe");
    fprintf(file,
            "  \"vocab_size\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
            "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n"
            "  \"num_key_value_heads\": %d,\n  \"head_dim\": %d,\n",
            m->vocab, m->hidden, FFN, m->n_layers, HEADS, KV_HEADS, HEAD_DIM);
    if (!dense) {
        fprintf(file,
                "  \"num_experts\": %d,\n  \"num_experts_per_tok\": 2,\n"
                "  \"moe_intermediate_size\": %d,\n  \"norm_topk_prob\": true,\n"
                "  \"decoder_sparse_step\": 1,\n  \"router_aux_loss_coef\": 0.001,\n"
                "  \"output_router_logits\": false,\n  \"mlp_only_layers\": [",
                E, MOE_FFN);
        const char *comma = "";
        for (int l = 0; l < m->n_layers; l++)
            if (m->mlp_only >> l & 1) fprintf(file, "%s%d", comma, l), comma = ", ";
        fprintf(file, "],\n");
    }
    fprintf(file,
            "  \"hidden_act\": \"silu\",\n  \"attention_bias\": false,\n"
            "  \"max_position_embeddings\": 2048,\n  \"rms_norm_eps\": 1e-06,\n"
            "  \"rope_theta\": 10000.0,\n  \"rope_scaling\": null,\n"
            "  \"initializer_range\": 0.02,\n  \"tie_word_embeddings\": %s,\n"
            "  \"torch_dtype\": \"%s\",\n  \"use_cache\": true\n}\n",
            m->tied ? "true" : "false", dtypes[m->fixture->dtype].torch);
    close_written(file, path);
}

void fixture_write_model(const char *dir, const Fixture *fixture)
{
    Model *m = calloc(1, sizeof *m);
    if (!m) stop("no memory for", dir);
    m->fixture = fixture;
    bool deep = fixture->kind == FIXTURE_DEEP;
    m->n_layers = fixture->n_layers ? fixture->n_layers : deep ? 24 : 4;
    m->hidden = deep ? 32 : FIXTURE_HIDDEN;
    m->vocab = deep ? 128 : FIXTURE_VOCAB;
    m->mlp_only = fixture->mlp_only | (fixture->kind == FIXTURE_DENSE_FIRST ? 3u : 0u);
    m->tied = fixture->tied || fixture->kind == FIXTURE_TIED;
    if (m->n_layers > FIXTURE_MAX_LAYERS) {
        fprintf(stderr, "fixture: %d layers\n", m->n_layers);
        exit(1);
    }
    add(m, "model.embed_tokens.weight", m->vocab, m->hidden);
    for (int l = 0; l < m->n_layers; l++) add_layer(m, l);
    add(m, "model.norm.weight", m->hidden, 0);
    if (!m->tied) add(m, "lm_head.weight", m->vocab, m->hidden);

    char path[1024], shard[64];
    int n_shards = fixture->n_shards ? fixture->n_shards : 2;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) stop("cannot make", dir);
    write_config(dir, m);
    for (int s = 0; s < n_shards; s++) {
        int first = s * m->n / n_shards, end = (s + 1) * m->n / n_shards;
        shard_name(shard, sizeof shard, s, n_shards);
        snprintf(path, sizeof path, "%s/%s", dir, n_shards > 1 ? shard : "model.safetensors");
        write_shard(path, &m->entry[first], end - first, fixture->dtype);
    }
    if (n_shards > 1) write_index(dir, m, n_shards);
    for (int i = 0; i < m->n; i++) free(m->entry[i].value);
    free(m);
}

/* ---- rows ---------------------------------------------------------------------------------- */

typedef struct RowSpec {
    int tokens, trained; /* trained 0: all, and no labels are written */
} RowSpec;

static const RowSpec rows_eq[] = {{33, 0}, {33, 0}, {33, 0}, {33, 0},
                                  {33, 0}, {33, 0}, {33, 0}, {33, 0}};
static const RowSpec rows_var[] = {{5, 0},  {37, 0}, {128, 0}, {9, 0},
                                   {64, 0}, {2, 0},  {90, 0},  {17, 0}};
static const RowSpec rows_short[] = {{5, 0},  {24, 0}, {12, 5}, {2, 0},
                                     {31, 7}, {9, 0},  {17, 0}, {1, 0}};
static const RowSpec rows_mask[] = {{12, 2}, {9, 2}, {70, 60}, {16, 4}};

static const struct {
    const char *name;
    const RowSpec *row;
    int n, vocab;
} row_sets[] = {
    [FIXTURE_EQ] = {"eq", rows_eq, 8, FIXTURE_VOCAB},
    [FIXTURE_VAR] = {"var", rows_var, 8, FIXTURE_VOCAB},
    [FIXTURE_MASK] = {"mask", rows_mask, 4, FIXTURE_VOCAB},
    [FIXTURE_SHORT] = {"short", rows_short, 8, 128},
};

void fixture_write_rows(const char *path, FixtureRows rows, int times, uint64_t seed)
{
    FILE *file = open_for_writing(path);
    uint64_t key = key_of(seed, row_sets[rows].name), counter = 0;
    for (int i = 0; i < times * row_sets[rows].n; i++) {
        RowSpec spec = row_sets[rows].row[i % row_sets[rows].n];
        int ids[128];
        fputs("{\"input_ids\": [", file);
        for (int t = 0; t < spec.tokens; t++) {
            ids[t] = (int)(uniform(key, counter++) * row_sets[rows].vocab);
            fprintf(file, "%s%d", t ? ", " : "", ids[t]);
        }
        fputc(']', file);
        if (spec.trained) {
            /* The answer: the last tokens of the row, as in a conversation of one turn. */
            fputs(", \"labels\": [", file);
            for (int t = 0; t < spec.tokens; t++)
                fprintf(file, "%s%d", t ? ", " : "",
                        t < spec.tokens - spec.trained ? -100 : ids[t]);
            fputc(']', file);
        }
        fputs("}\n", file);
    }
    close_written(file, path);
}
