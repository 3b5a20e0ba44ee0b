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
. "$(dirname "$0")/common.sh"
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
moe_model "$work/model" 256 16 4 8 2 256
rows $((4 * rows)) 512 1024 >"$work/rows.jsonl"

cat >"$work/run.yaml" <<YAML
model: {path: $work/model, init: true}
data: {train: [$work/rows.jsonl], format: ids, pack: none}
train: {steps: 8, global_batch_size: $rows, threads: 1}
YAML

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
