# What the benchmarks share; read by them with `.`.

moe_model() # FOLDER HIDDEN LAYERS HEADS EXPERTS TOP_K WIDTH: a Qwen3-MoE config.json of heads of 64 in it, 1024 ids
{
    mkdir "$1"
    cat >"$1/config.json" <<JSON
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 1024, "hidden_size": $2,
 "intermediate_size": $((2 * $2)), "num_hidden_layers": $3, "num_attention_heads": $4, "num_key_value_heads": 2, "head_dim": 64,
 "num_experts": $5, "num_experts_per_tok": $6, "moe_intermediate_size": $7, "norm_topk_prob": true, "decoder_sparse_step": 1,
 "mlp_only_layers": [], "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
 "attention_bias": false, "max_position_embeddings": 4096, "initializer_range": 0.02, "router_aux_loss_coef": 0.001}
JSON
}

rows() # ROWS TOKENS IDS: lines of ids that look like no pattern
{
    awk -v rows="$1" -v n="$2" -v ids="$3" 'BEGIN { for (r = 0; r < rows; r++) {
        printf "{\"input_ids\": ["; for (t = 0; t < n; t++) printf "%s%d", t ? ", " : "", (r * 7919 + t * t * 31 + t * 17) % ids
        print "]}" } }'
}

median() # of the lines
{
    sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}
