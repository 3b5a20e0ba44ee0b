#include "model/families/qwen3.h"

#include <stddef.h>

// clang-format off
#define FIELD(member) offsetof(ModelConfig, member)
#define SIZE_FIELDS                                                                                      \
    {"num_hidden_layers",       CONFIG_INT,  FIELD(n_layers),          NULL,     1,    1e5},             \
    {"hidden_size",             CONFIG_INT,  FIELD(hidden),            NULL,     1,    1e6},             \
    {"vocab_size",              CONFIG_INT,  FIELD(vocab),             NULL,     1,    2e9},             \
    {"num_attention_heads",     CONFIG_INT,  FIELD(n_heads),           NULL,     1,    1e5},             \
    {"num_key_value_heads",     CONFIG_INT,  FIELD(n_kv_heads),        NULL,     1,    1e5},             \
    {"intermediate_size",       CONFIG_INT,  FIELD(ffn_dense),         "0",      0,    1e7},             \
    {"max_position_embeddings", CONFIG_INT,  FIELD(max_positions),     "32768",  1,    1e9},             \
    {"rms_norm_eps",            CONFIG_REAL, FIELD(norm_eps),          "1e-6",   0,    1},               \
    {"initializer_range",       CONFIG_REAL, FIELD(init_range),        "0.02",   0,    1e3},             \
    {"attention_bias",          CONFIG_BOOL, FIELD(attention_bias),    "false",  0,    0},               \
    {"tie_word_embeddings",     CONFIG_BOOL, FIELD(tied),              "false",  0,    0}

static const ConfigField dense_fields[] = {
    SIZE_FIELDS,
    {"head_dim",                CONFIG_INT,  FIELD(head_dim),          "128",    0,    1e5},
    {NULL, 0, 0, NULL, 0, 0},
};

static const ConfigField moe_fields[] = {
    SIZE_FIELDS,
    /* 0: hidden_size / num_attention_heads, HuggingFace's default for this family alone */
    {"head_dim",                CONFIG_INT,  FIELD(head_dim),          "0",      0,    1e5},
    {"num_experts",             CONFIG_INT,  FIELD(n_experts),         NULL,     1,    1e5},
    {"num_experts_per_tok",     CONFIG_INT,  FIELD(experts_per_token), NULL,     1,    1e5},
    {"moe_intermediate_size",   CONFIG_INT,  FIELD(ffn_expert),        NULL,     1,    1e7},
    {"decoder_sparse_step",     CONFIG_INT,  FIELD(sparse_step),       "1",      1,    1e5},
    {"norm_topk_prob",          CONFIG_BOOL, FIELD(normalise),         "false",  0,    0},
    {"output_router_logits",    CONFIG_BOOL, FIELD(output_router_logits), "false", 0,  0},
    {"router_aux_loss_coef",    CONFIG_REAL, FIELD(aux_coef),          "0.001",  0,    1e6},
    {NULL, 0, 0, NULL, 0, 0},
};

#define L "model.layers.{l}."
#define COMMON_WEIGHTS                                                                                                        \
    {"model.embed_tokens.weight",               "model.embed_tokens.weight",               PART_WHOLE,             false},     \
    {L "input_layernorm.weight",                L "input_layernorm.weight",                PART_WHOLE,             false},     \
    {L "self_attn.q_proj.weight",               L "self_attn.q_proj.weight",               PART_WHOLE,             false},     \
    {L "self_attn.q_proj.bias",                 L "self_attn.q_proj.bias",                 PART_WHOLE,             false},     \
    {L "self_attn.k_proj.weight",               L "self_attn.k_proj.weight",               PART_WHOLE,             false},     \
    {L "self_attn.k_proj.bias",                 L "self_attn.k_proj.bias",                 PART_WHOLE,             false},     \
    {L "self_attn.v_proj.weight",               L "self_attn.v_proj.weight",               PART_WHOLE,             false},     \
    {L "self_attn.v_proj.bias",                 L "self_attn.v_proj.bias",                 PART_WHOLE,             false},     \
    {L "self_attn.o_proj.weight",               L "self_attn.o_proj.weight",               PART_WHOLE,             false},     \
    {L "self_attn.o_proj.bias",                 L "self_attn.o_proj.bias",                 PART_WHOLE,             false},     \
    {L "self_attn.q_norm.weight",               L "self_attn.q_norm.weight",               PART_WHOLE,             false},     \
    {L "self_attn.k_norm.weight",               L "self_attn.k_norm.weight",               PART_WHOLE,             false},     \
    {L "post_attention_layernorm.weight",       L "post_attention_layernorm.weight",       PART_WHOLE,             false},     \
    {L "mlp.gate_proj.weight",                  L "mlp.gate_up_proj.weight",               PART_UPPER_ROWS,        false},     \
    {L "mlp.up_proj.weight",                    L "mlp.gate_up_proj.weight",               PART_LOWER_ROWS,        false},     \
    {L "mlp.down_proj.weight",                  L "mlp.down_proj.weight",                  PART_WHOLE,             false},     \
    {"model.norm.weight",                       "model.norm.weight",                       PART_WHOLE,             false},     \
    {"lm_head.weight",                          "lm_head.weight",                          PART_WHOLE,             false}

static const WeightSpec dense_weights[] = {
    COMMON_WEIGHTS,
    {NULL, NULL, 0, false},
};

static const WeightSpec moe_weights[] = {
    COMMON_WEIGHTS,
    {L "mlp.gate.weight",                       L "mlp.gate.weight",                       PART_WHOLE,             false},
    {L "mlp.experts.{e}.gate_proj.weight",      L "mlp.experts.gate_up_proj",              PART_EXPERT_UPPER_ROWS, false},
    {L "mlp.experts.{e}.up_proj.weight",        L "mlp.experts.gate_up_proj",              PART_EXPERT_LOWER_ROWS, false},
    {L "mlp.experts.{e}.down_proj.weight",      L "mlp.experts.down_proj",                 PART_EXPERT,            false},
    {L "mlp.experts.gate_up_proj",              L "mlp.experts.gate_up_proj",              PART_WHOLE,             true},
    {L "mlp.experts.down_proj",                 L "mlp.experts.down_proj",                 PART_WHOLE,             true},
    {NULL, NULL, 0, false},
};
#undef L
// clang-format on

const Family family_qwen3 = {
    .model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .fields = dense_fields,
    .weights = dense_weights,
    .qk_norm = true,
};

const Family family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .fields = moe_fields,
    .weights = moe_weights,
    .qk_norm = true,
};
