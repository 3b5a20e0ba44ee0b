#pragma once
/**
 * What the tests of model share: a folder that goes away, an arena, a small configuration that can be changed key by
 * key, and models read from folders.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/text.h"
#include "io/file.h"
#include "model/stage.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Bench {
    Arena arena;
    char dir[64];
} Bench;

static inline int bench_setup(void **state)
{
    Bench *b = calloc(1, sizeof *b);
    if (!b) return -1;
    arena_init(&b->arena, "test");
    strcpy(b->dir, "/tmp/sw-model-XXXXXX");
    if (!mkdtemp(b->dir)) return -1;
    *state = b;
    return 0;
}

static inline int bench_teardown(void **state)
{
    Bench *b = *state;
    Status status = dir_remove_tree(b->dir);
    arena_free(&b->arena);
    free(b);
    return status == OK ? 0 : -1;
}

#define BENCH_TEST(function) cmocka_unit_test_setup_teardown(function, bench_setup, bench_teardown)

static inline void assert_ok(Status status)
{
    if (status != OK) fail_msg("failed: %s", status_message());
}

/** Fails with this code, and the message holds the word. */
static inline void assert_fails(Status status, Status code, const char *word)
{
    if (status != code || !strstr(status_message(), word))
        fail_msg("status %d, message \"%s\"; expected status %d and \"%s\"", (int)status,
                 status == OK ? "" : status_message(), (int)code, word);
}

static inline const char *bench_path(Bench *b, const char *name)
{
    return path_join(&b->arena, b->dir, name);
}

/** A family of four layers, small enough for everything: layer 1 dense, experts elsewhere. */
#define MOE_JSON \
    "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 4, \"hidden_size\": 16, " \
    "\"vocab_size\": 50, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": " \
    "8, " \
    "\"intermediate_size\": 24, \"num_experts\": 4, \"num_experts_per_tok\": 2, " \
    "\"moe_intermediate_size\": 12, \"mlp_only_layers\": [1], \"norm_topk_prob\": true, " \
    "\"initializer_range\": 0.3}"
#define DENSE_JSON \
    "{\"model_type\": \"qwen3\", \"num_hidden_layers\": 2, \"hidden_size\": 16, " \
    "\"vocab_size\": 50, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
    "\"intermediate_size\": 24}"

/** base with the keys of patch (an object; NULL: none) set, as text. A key whose value is "-" is taken out. */
static inline char *json_patched(Arena *arena, const char *base, const char *patch)
{
    if (!patch) patch = "{}";
    json_t *object = json_loads(base, 0, NULL), *change = json_loads(patch, 0, NULL);
    assert_non_null(object);
    if (!change) fail_msg("the test's own patch is no JSON: %s", patch);
    const char *key;
    json_t *value;
    json_object_foreach(change, key, value)
    {
        if (json_is_string(value) && !strcmp(json_string_value(value), "-"))
            json_object_del(object, key);
        else
            json_object_set(object, key, value);
    }
    char *text = json_dumps(object, JSON_INDENT(1)), *copy = text_copy(arena, text);
    free(text);
    json_decref(object);
    json_decref(change);
    return copy;
}

/** generation: text of generation_config.json; NULL: none. */
static inline Status config_of(ModelConfig **out, Arena *arena, const char *base, const char *patch,
                               const char *generation)
{
    char *text = json_patched(arena, base, patch);
    ConfigText files = {.dir = "DIR",
                        .path = "DIR/config.json",
                        .config = text,
                        .config_bytes = strlen(text),
                        .generation = generation,
                        .generation_bytes = generation ? strlen(generation) : 0};
    return model_config_parse(out, &files, arena, NULL);
}
