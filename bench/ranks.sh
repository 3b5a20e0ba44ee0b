#!/usr/bin/env bash
# The time of a step on other layouts, the same work each: more ranks than cores, ranks instead of threads, spread experts.
set -u
usage='bench/ranks.sh [PROGRAM [LAYOUT…] [-- LAUNCHER…]]

  PROGRAM    build/release/stagewright
  LAYOUT     sizes that are not 1, by commas: pp=8   dp=2,ep=2   threads=2. The first is what the others are divided by.
             pp=2 pp=8
  LAUNCHER   how processes are started, up to the number of ranks:
             mpiexec.openmpi --allow-run-as-root --oversubscribe --bind-to none -n
             none: ranks are threads

  Runs of the layouts take turns (TURNS, 5). Prints for each turn the median seconds of a step and tokens per second of each
  layout, and the ratio of its seconds to those of the first; at the end the medians of the ratios. Ranks have one thread
  unless said. ROWS (8) of 512 tokens make a step; it should take 0.3 s and more.'
case "${1-}" in --help | -h) echo "$usage"; exit 0 ;; esac
program=$(readlink -f "${1:-build/release/stagewright}")
[ $# = 0 ] || shift
layouts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do layouts+=("$1"); shift; done
[ $# = 0 ] || shift
launcher=("$@")
[ ${#layouts[@]} -gt 0 ] || layouts=(pp=2 pp=8)
turns=${TURNS:-5} rows=${ROWS:-8}
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
awk -v n=$((4 * rows)) 'BEGIN { for (row = 0; row < n; row++) { printf "{\"input_ids\": ["; for (t = 0; t < 512; t++) printf "%s%d", t ? ", " : "", (row * 7919 + t * t * 31 + t * 17) % 1024; print "]}" } }' >"$work/rows.jsonl"

cat >"$work/run.yaml" <<YAML
model: {path: $work/model, init: true}
data: {train: [$work/rows.jsonl], format: ids, pack: none}
train: {steps: 8, global_batch_size: $rows, threads: 1}
YAML

median() { sort -g | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'; }

seconds() # LAYOUT: the median of the steps of one run, but for the first
{
    local name=$work/run ranks=1 item sets=() start=()
    rm -rf "$name"
    for item in ${1//,/ }; do
        case $item in
        threads=*) sets+=(--set "train.$item") ;;
        *) sets+=(--set "parallel.${item/=/_size=}") ;;
        esac
        case $item in pp=* | dp=* | tp=* | sp=*) ranks=$((ranks * ${item#*=})) ;; esac
    done
    [ ${#launcher[@]} = 0 ] || start=("${launcher[@]}" "$ranks")
    "${start[@]}" "$program" train "$work/run.yaml" --set train.output="$name" "${sets[@]}" >"$work/log.txt" 2>&1 ||
        { cat "$work/log.txt" >&2; return 1; }
    sed -n '2,$ s/.*"time\/step": *\([0-9.e+-]*\).*/\1/p' "$name/metrics.jsonl" | median
}

for ((turn = 0; turn < turns; turn++)); do
    for layout in "${layouts[@]}"; do
        time=$(seconds "$layout") || exit 1
        [ "$layout" != "${layouts[0]}" ] || first=$time
        awk -v l="$layout" -v s="$time" -v f="$first" -v n=$((rows * 512)) -v all="$work/$layout.txt" 'BEGIN {
            printf "%s %.3f s %.0f tokens/s  ratio %.3f     ", l, s, n / s, s / f; print s / f >>all }'
    done
    echo
done
for layout in "${layouts[@]:1}"; do echo "median ratio of $layout to ${layouts[0]}: $(median <"$work/$layout.txt")"; done
