#include "model/config_rope.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    RopeKind kind;
    const char *const keys[10]; /* those it reads besides rope_type, type and rope_theta */
} rope_kinds[] = {
    {"default", ROPE_DEFAULT, {NULL}},
    {"linear", ROPE_LINEAR, {"factor", NULL}},
    {"llama3",
     ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", NULL}},
    {"yarn",
     ROPE_YARN,
     {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
      "truncate", "original_max_position_embeddings", NULL}},
};

static Status check_keys(const json_t *object, const char *place, size_t kind)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        bool known = strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0 ||
                     strcmp(key, "rope_theta") == 0 ||
                     (strcmp(key, "partial_rotary_factor") == 0 && json_number_value(value) == 1);
        for (const char *const *own = rope_kinds[kind].keys; *own && !known; own++)
            known = strcmp(*own, key) == 0;
        if (!known && !json_is_null(value))
            return FAIL(ERR_UNSUPPORTED, "%s: key %s: unknown for rope_type %s", place, key,
                        rope_kinds[kind].name);
    }
    return OK;
}

static Status read_llama3(RopeConfig *rope, const json_t *object, const char *place)
{
    TRY(json_get_real(object, place, "low_freq_factor", &rope->low_freq_factor));
    TRY(json_get_real(object, place, "high_freq_factor", &rope->high_freq_factor));
    if (!(rope->low_freq_factor > 0 && rope->high_freq_factor > rope->low_freq_factor))
        return FAIL(ERR_FORMAT,
                    "%s: key high_freq_factor: must exceed low_freq_factor, both above 0 "
                    "(found %g and %g)",
                    place, rope->high_freq_factor, rope->low_freq_factor);
    return OK;
}

static Status read_yarn(RopeConfig *rope, const json_t *object, const char *place)
{
    TRY(json_get_real_or(object, place, "attention_factor", 0, &rope->attention_factor));
    TRY(json_get_real_or(object, place, "beta_fast", 32, &rope->beta_fast));
    TRY(json_get_real_or(object, place, "beta_slow", 1, &rope->beta_slow));
    TRY(json_get_real_or(object, place, "mscale", 0, &rope->mscale));
    TRY(json_get_real_or(object, place, "mscale_all_dim", 0, &rope->mscale_all_dim));
    TRY(json_get_bool_or(object, place, "truncate", true, &rope->truncate));
    /* As HuggingFace: 0 stands for absent. */
    if (rope->beta_fast == 0) rope->beta_fast = 32;
    if (rope->beta_slow == 0) rope->beta_slow = 1;
    if (!(rope->beta_fast > 0 && rope->beta_slow > 0 && rope->attention_factor >= 0 &&
          rope->mscale >= 0 && rope->mscale_all_dim >= 0))
        return FAIL(
            ERR_FORMAT,
            "%s: yarn: beta_fast, beta_slow, attention_factor and mscale must not be negative",
            place);
    return OK;
}

/* One object of rope settings, rope_scaling or rope_parameters. */
static Status read_rope_object(RopeConfig *rope, const json_t *object, const char *place,
                               int64_t max_positions)
{
    const char *name, *legacy;
    TRY(json_get_string_or(object, place, "type", "default", &legacy));
    TRY(json_get_string_or(object, place, "rope_type", legacy, &name));
    size_t k = 0, n_kinds = sizeof rope_kinds / sizeof *rope_kinds;
    while (k < n_kinds && strcmp(rope_kinds[k].name, name) != 0) k++;
    if (k == n_kinds)
        return FAIL(
            ERR_UNSUPPORTED,
            "%s: key rope_type: not available (found %s, expected default, linear, llama3 or yarn)",
            place, name);
    rope->kind = rope_kinds[k].kind;
    TRY(check_keys(object, place, k));
    TRY(json_get_real_or(object, place, "rope_theta", rope->theta, &rope->theta));
    if (rope->kind == ROPE_DEFAULT) return OK;
    TRY(json_get_real(object, place, "factor", &rope->factor));
    if (!(rope->factor >= 1 && rope->factor < 1e9))
        return FAIL(ERR_FORMAT, "%s: key factor: out of range (found %g, expected at least 1)",
                    place, rope->factor);
    TRY(json_get_int_or(object, place, "original_max_position_embeddings",
                        rope->kind == ROPE_LLAMA3 ? 0 : max_positions,
                        &rope->original_max_positions));
    if (rope->kind != ROPE_LINEAR && rope->original_max_positions < 1)
        return FAIL(ERR_FORMAT, "%s: key original_max_position_embeddings: missing or below 1",
                    place);
    if (rope->kind == ROPE_LLAMA3) return read_llama3(rope, object, place);
    if (rope->kind == ROPE_YARN) return read_yarn(rope, object, place);
    return OK;
}

static bool rope_equal(const RopeConfig *a, const RopeConfig *b)
{
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->attention_factor == b->attention_factor && a->mscale == b->mscale &&
           a->mscale_all_dim == b->mscale_all_dim && a->truncate == b->truncate &&
           a->original_max_positions == b->original_max_positions;
}

Status config_read_rope(ModelConfig *config, const json_t *root, const char *path, Arena *arena)
{
    json_t *scaling, *parameters;
    TRY(json_get_object_or_null(root, path, "rope_scaling", &scaling));
    TRY(json_get_object_or_null(root, path, "rope_parameters", &parameters));
    bool has_theta = json_is_number(json_object_get(root, "rope_theta"));
    RopeConfig old = {.theta = 10000};
    TRY(json_get_real_or(root, path, "rope_theta", 10000, &old.theta));
    if (scaling)
        TRY(read_rope_object(&old, scaling, text_format(arena, "%s: rope_scaling", path),
                             config->max_positions));
    config->rope = old;
    if (parameters) {
        RopeConfig new = {
            .theta = old.theta}; /* as HuggingFace: one without a theta takes the other's */
        TRY(read_rope_object(&new, parameters, text_format(arena, "%s: rope_parameters", path),
                             config->max_positions));
        if (has_theta && old.theta != new.theta)
            return FAIL(ERR_FORMAT, "%s: rope_theta and rope_parameters differ (found %g and %g)",
                        path, old.theta, new.theta);
        old.theta = new.theta;
        if (scaling && !rope_equal(&old, &new))
            return FAIL(ERR_FORMAT, "%s: rope_scaling and rope_parameters differ", path);
        config->rope = new;
    }
    if (!(config->rope.theta > 0 && isfinite(config->rope.theta)))
        return FAIL(ERR_FORMAT, "%s: key rope_theta: out of range (found %g, expected above 0)",
                    path, config->rope.theta);
    if (config->rope.kind == ROPE_YARN && !(config->rope.theta > 1))
        return FAIL(ERR_FORMAT,
                    "%s: key rope_theta: yarn takes its logarithm (found %g, expected above 1)",
                    path, config->rope.theta);
    return OK;
}
