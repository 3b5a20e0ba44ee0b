/*
 * Bytes as config.json and, behind the first form feed, generation_config.json. What is accepted is a model whose
 * parameters can be declared, listed as tensors of a folder and dealt to stages.
 */
#include "fuzz_target.h"
#include "model/stage.h"
#include "model/weights.h"

#include <string.h>

/* Models small enough to be listed. */
static void use(const ModelConfig *config, Arena *arena)
{
    must(config->n_layers >= 1 && config->head_dim >= 2 && config->head_dim % 2 == 0);
    must(config->n_heads % config->n_kv_heads == 0);
    must(config->experts_per_token <= config->n_experts);
    must(config->rope.theta > 0);
    if (config->n_layers > 16 || config->n_experts > 64 || config->n_dense_layers > 100) return;
    ParamSet whole;
    paramset_init(&whole, arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(&whole, config);
    HfLayout *layout;
    must(hf_layout_create(&layout, config, &whole, NULL, config->dtype, false, arena) == OK);
    int64_t n = 0;
    for (int i = 0; i < layout->n; i++) n += layout->at[i].count;
    for (int i = 0; i < whole.n; i++)
        if (!whole.at[i]->tied_copy) n -= tensor_size(whole.at[i]->value);
    must(n == 0);
    LayerRange range[16];
    for (int stages = 1; stages <= config->n_layers; stages++)
        must(partition_layers(
                 range,
                 &(PartitionRequest){.n_stages = stages, .cost = {config, 4096, DTYPE_F32, 0}},
                 arena) == OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    Arena arena;
    arena_init(&arena, "fuzz");
    const char *text = n ? (const char *)data : "";
    const char *cut = n ? memchr(text, '\f', n) : NULL;
    ConfigText files = {.dir = "fuzz",
                        .path = "fuzz/config.json",
                        .config = text,
                        .config_bytes = cut ? (size_t)(cut - text) : n};
    if (cut) {
        files.generation = cut + 1;
        files.generation_bytes = n - files.config_bytes - 1;
    }
    ModelConfig *config;
    if (model_config_parse(&config, &files, &arena, NULL) == OK)
        use(config, &arena);
    else
        must(strstr(status_message(), "fuzz/") != NULL);
    arena_free(&arena);
    return 0;
}
