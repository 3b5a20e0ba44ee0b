/* Bytes as a checkpoint's state.json, and as the list of tensors in its manifest.json, laid over a small model. */
#include "fuzz_document.h"
#include "model/stage.h"
#include "train/checkpoint.h"

static const char model[] =
    "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"hidden_size\": 8, \"vocab_size\": "
    "9, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"intermediate_size\": 6, "
    "\"num_experts\": 2, "
    "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": 4, \"mlp_only_layers\": [0], "
    "\"tie_word_embeddings\": true}";

static void as_list(const json_t *root, Arena *arena)
{
    HfSource source;
    Status status = hf_source_of_json(&source, root, PLACE, arena);
    must_name_place(status);
    if (status != OK) return;
    ModelConfig *config;
    ParamSet whole;
    HfLayout *layout;
    must(model_config_parse(
             &config,
             &(ConfigText){
                 .dir = "m", .path = "m", .config = model, .config_bytes = sizeof model - 1},
             arena, NULL) == OK);
    paramset_init(&whole, arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(&whole, config);
    for (int carry = 0; carry < 2; carry++) {
        status = hf_layout_create(&layout, config, &whole, &source, DTYPE_F32, carry, arena);
        must_name_place(status);
        if (status != OK) continue;
        /* every tensor of the list has its place, and the list comes back */
        must(layout->n == source.n);
        json_t *back = hf_layout_to_json(layout);
        must(json_equal(json_object_get(back, "sharded"), json_object_get(root, "sharded")));
        must(json_object_size(json_object_get(back, "tensors")) == (size_t)source.n);
        json_decref(back);
    }
}

static void use(const json_t *root, Arena *arena)
{
    CheckpointInfo info;
    Status status = checkpoint_state_of_json(&info, root, PLACE, arena);
    must_name_place(status);
    if (status == OK) must(info.state.step >= 0 && info.config && info.kernel_path);
    as_list(root, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return fuzz_document(data, n, use);
}
