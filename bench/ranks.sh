#!/usr/bin/env bash
# More ranks than cores: the time of a step on 8 pipeline ranks against 2, the same work, as threads and as processes.
set -u
usage='bench/ranks.sh [PROGRAM [LAUNCHER…]]

  PROGRAM    build/release/stagewright
  LAUNCHER   how processes are started, up to the number of ranks:
             mpiexec.openmpi --allow-run-as-root --oversubscribe --bind-to none -n
             none: ranks are threads

  Prints the median seconds of a step for pp_size 2 and 8, one thread a rank, runs taking turns, and their ratio.'
case "${1-}" in --help | -h) echo "$usage"; exit 0 ;; esac
program=$(readlink -f "${1:-build/release/stagewright}")
shift
launcher=("$@")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/model"
cat >"$work/model/config.json" <<'JSON'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 1024, "hidden_size": 256,
 "intermediate_size": 512, "num_hidden_layers": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
 "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": true, "decoder_sparse_step": 1,
 "mlp_only_layers": [], "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
 "attention_bias": false, "max_position_embeddings": 4096, "initializer_range": 0.02, "router_aux_loss_coef": 0.001}
JSON
awk 'BEGIN { for (row = 0; row < 32; row++) { printf "{\"input_ids\": ["; for (t = 0; t < 512; t++) printf "%s%d", t ? ", " : "", (row * 7919 + t * t * 31 + t * 17) % 1024; print "]}" } }' >"$work/rows.jsonl"

cat >"$work/run.yaml" <<YAML
model: {path: $work/model, init: true}
data: {train: [$work/rows.jsonl], format: ids, pack: none}
train: {steps: 8, global_batch_size: 8, threads: 1}
YAML

seconds() # RANKS: the median of the steps of one run
{
    local name=$work/run-$1 start=()
    rm -rf "$name"
    [ ${#launcher[@]} = 0 ] || start=("${launcher[@]}" "$1")
    "${start[@]}" "$program" train "$work/run.yaml" --set train.output="$name" --set parallel.pp_size="$1" >"$work/log.txt" 2>&1 ||
        { cat "$work/log.txt" >&2; return 1; }
    sed -n 's/.*"time\/step": *\([0-9.e+-]*\).*/\1/p' "$name/metrics.jsonl" | sort -g | sed -n 4p
}

for turn in 1 2 3 4 5; do
    two=$(seconds 2) && eight=$(seconds 8) || exit 1
    awk -v a="$two" -v b="$eight" 'BEGIN { printf "pp 2 %.3f s  pp 8 %.3f s  ratio %.3f\n", a, b, b / a }'
done | tee "$work/turns.txt"
awk '{ print $NF }' "$work/turns.txt" | sort -g | sed -n '3s/^/median of the ratios: /p'
