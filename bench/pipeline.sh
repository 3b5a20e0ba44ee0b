#!/usr/bin/env bash
# The bubble that a run measures against the simulation of the same steps, for schedules on two ranks of one thread each.
#
#   bench/pipeline.sh PROGRAM [SCHEDULE…]        e.g. bench/pipeline.sh build/release/stagewright 1f1b zb_h1 zbv
#
# Stages are equal, the vocabulary is small, and a microbatch takes 50 ms and more so that waiting is the schedule's
# own. Each schedule is run beside 1f1b, one after the other; numbers are medians of 20 steps, simulated with the medians of each
# step's own actions. Needs two free cores. MICROBATCHES, HIDDEN, TOKENS, FIRST and STEPS change the run.
#
# With PAIRS=n each schedule is run n times, each time behind BASE: the ratio of the two steps' times, and the median of the
# ratios. BASE is 1f1b, or single: one rank of two threads, whose time is divided by 1 - the simulated bubble.
set -eu
. "$(dirname "$0")/common.sh"
program=$(realpath "${1:?usage: bench/pipeline.sh PROGRAM [SCHEDULE…]}")
shift
schedules=${*:-1f1b gpipe interleaved zb_h1 zb_h2 zb1p zbv dualpipev}
microbatches=${MICROBATCHES:-8} hidden=${HIDDEN:-512} layers=8 tokens=${TOKENS:-512}
first=${FIRST:-4} steps=${STEPS:-23} pairs=${PAIRS:-0} base=${BASE:-1f1b}
folder=$(mktemp -d /tmp/pipeline.XXXXXX)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

mkdir model
cat > model/config.json <<END
{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": $hidden, "intermediate_size": $((4 * hidden)),
 "num_hidden_layers": $layers, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": $((hidden / 8)), "vocab_size": 256,
 "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": $tokens, "tie_word_embeddings": false,
 "hidden_act": "silu"}
END
rows "$microbatches" "$tokens" 256 > rows.jsonl

# The virtual stages that a schedule has on $2 ranks.
stages() { "$program" schedule --schedule "$1" --pp "$2" --microbatches "$microbatches" --format json |
    grep -o '"stages": \[[^]]*' | tr -cd ',\n' | awk '{ n += length($0) + 1 } END { print n }'; }

# Runs a schedule, or the single rank; leaves a line "measured simulated makespan" per profiled step in $1.txt, and the times of
# these steps in $1.steps.txt.
measure() {
    local name=$1 schedule=$1 pp=2 threads=1 n split
    [ "$name" != single ] || schedule=1f1b pp=1 threads=2
    n=$(stages "$schedule" $pp)
    split=$(awk -v n="$n" -v l="$layers" 'BEGIN { for (s = 0; s < n; s++) printf "%s%d", s ? "," : "", l / n }')
    "$program" train /dev/null --set model.path=model --set model.init=true --set model.dtype=f32 --set "data.train=[rows.jsonl]" \
        --set data.format=ids --set data.pack=none --set "data.max_length=$tokens" --set parallel.pp_size=$pp \
        --set "parallel.schedule=$schedule" --set "parallel.layer_split=[$split]" --set train.threads=$threads \
        --set "train.output=run-$name" --set "train.steps=$steps" --set "train.global_batch_size=$microbatches" \
        --set "train.profile_steps=[$(seq -s, $first $steps)]" 2> log.txt || { cat log.txt >&2; exit 1; }
    for trace in "run-$name"/trace/*.json; do
        "$program" schedule --schedule "$schedule" --pp $pp --microbatches "$microbatches" --trace "$trace" --format json |
            awk -F'[:,} ]+' '/"measured"/ { m = $8; t = $4 } /"simulated"/ { s = $8 } END { print m, s, t }'
    done > "$name.txt"
    sed -n "$first,\$ s/.*\"time\/step\": *\([0-9.e+-]*\).*/\1/p" "run-$name/metrics.jsonl" > "$name.steps.txt"
    "$program" schedule --schedule "$schedule" --pp $pp --microbatches "$microbatches" --trace "$trace" | awk '$1 == 0 && NF == 5' > stage.txt
    rm -rf "run-$name"
}

column() { awk -v k="$2" '{ print $k }' "$1.txt" | median; }

for ((pair = 1; pair <= pairs; pair++)); do
    for name in $schedules; do
        measure "$base"
        measure "$name"
        awk -v n="$name" -v s="$(column "$name.steps" 1)" -v b="$(column "$base.steps" 1)" -v base="$base" -v k="$pair" \
            -v bubble="$(column "$name" 2)" -v all="$name.ratios.txt" 'BEGIN {
            r = s / b * (base == "single" ? 1 - bubble : 1); print r >> all
            printf "pair %2d: %-12s %8.1f ms, %s %8.1f ms, simulated bubble %.2f %%, ratio %.4f\n", k, n, 1000 * s, base, 1000 * b, 100 * bubble, r }'
    done
done
if [ "$pairs" -gt 0 ]; then
    for name in $schedules; do echo "$name: median ratio $(column "$name.ratios" 1)"; done
    exit
fi

printf '%-12s %8s %10s %10s %10s %11s %14s\n' schedule 'F ms' 'step ms' measured simulated difference 'time to 1f1b'
for name in $schedules; do
    measure 1f1b
    to=$(column 1f1b 3)
    [ "$name" = 1f1b ] || measure "$name"
    awk -v n="$name" -v f="$(awk '{ print $3 }' stage.txt)" -v m="$(column "$name" 1)" -v s="$(column "$name" 2)" \
        -v t="$(column "$name" 3)" -v b="$to" 'BEGIN {
        printf "%-12s %8.1f %10.1f %8.2f %% %8.2f %% %+9.2f %% %14.3f\n", n, f, t, 100 * m, 100 * s, 100 * (m - s), t / b }'
done
