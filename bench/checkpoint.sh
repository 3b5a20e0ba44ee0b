#!/usr/bin/env bash
# How fast a checkpoint is written and read, against plain copies on the same disk, and what a save costs the steps beside it.
set -u
usage='bench/checkpoint.sh [PROGRAM [FOLDER]]

  PROGRAM   build/release/stagewright
  FOLDER    a new folder in it is used and removed: on the disk to be measured, 6 GB free; default $TMPDIR or /tmp

  Prints, runs taking turns: seconds to write a checkpoint of about 1.2 GB while training waits, and of dd with fsync for as
  many bytes; seconds to check and load it, and of reading the same files, both with an empty page cache (as root, else both
  from memory); and how much longer the steps are that an asynchronous save overlaps, its copy included, than the others of
  the same run. It needs two free cores.'
case "${1-}" in --help | -h) echo "$usage"; exit 0 ;; esac
. "$(dirname "$0")/common.sh"
program=$(readlink -f "${1:-build/release/stagewright}")
work=$(mktemp -d -p "${2:-${TMPDIR:-/tmp}}") || exit 2
trap 'rm -rf "$work"' EXIT
moe_model "$work/model" 512 8 8 16 4 512
rows 64 512 1024 >"$work/rows.jsonl"
cat >"$work/run.yaml" <<YAML
model: {path: $work/model, init: true}
parallel: {pp_size: 2}
data: {train: [$work/rows.jsonl], format: ids, pack: none}
train: {output: $work/run, global_batch_size: 16, threads: 1}
YAML

train() # OPTION…: the lines of a run, each with the time it came at
{
    "$program" train "$work/run.yaml" "$@" 2>&1 | while IFS= read -r line; do echo "$EPOCHREALTIME $line"; done >"$work/lines.txt"
    [ "${PIPESTATUS[0]}" = 0 ] || { cat "$work/lines.txt" >&2; exit 1; }
}

forget() # what is in memory of the checkpoint
{
    sync
    [ "$(id -u)" != 0 ] || echo 1 >/proc/sys/vm/drop_caches
}

seconds() # COMMAND…
{
    local begin=$EPOCHREALTIME
    "$@" >"$work/out.txt" 2>&1 || { cat "$work/out.txt" >&2; exit 1; }
    awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }'
}

read_files() { find "$state" -name '*.safetensors' -exec cat {} + >/dev/null; }

for turn in 1 2 3; do
    rm -rf "$work/run"
    sync
    train --set train.steps=3 --set checkpoint.interval=1 --set checkpoint.async=false
    save=$(sed -n 's/.* saved .* MB in \([0-9.]*\) s)$/\1/p' "$work/lines.txt" | median)
    state=$work/run/checkpoints/step-000002
    bytes=$(du -sb "$state" | cut -f1)
    rm -rf "$work/run/checkpoints/step-000003"
    copy=$(seconds dd if=/dev/zero of="$work/copy" bs=8M count=$((bytes / 8388608)) conv=fsync)
    rm "$work/copy"
    forget
    train --set train.steps=3 --set checkpoint.interval=1 --resume
    load=$(sed -n 's/.* resumed from .*checked in \([0-9.]*\) s, read in \([0-9.]*\) s)$/\1 \2/p' "$work/lines.txt" | awk '{ print $1 + $2 }')
    forget
    read=$(seconds read_files)
    awk -v b="$bytes" -v s="$save" -v c="$copy" -v l="$load" -v r="$read" 'BEGIN {
        printf "%.2f GB  save %.2f s  dd %.2f s  speed %.2f of dd   load %.2f s  read %.2f s  speed %.2f of reading\n",
            b / 1e9, s, c, c / s, l, r, r / l }'
done
rm -rf "$work/run"
train --set train.steps=32 --set checkpoint.interval=8
awk '/ step [0-9]+\// {
         if (at) print (busy ? "overlapped" : "free"), $1 - at
         at = $1
         split($0, word, " step "); k = word[2] + 0
         busy = writing || (k % 8 == 0 && k < 32)
         if (k % 8 == 0) writing = 1
     }
     / saved / { writing = 0 }' "$work/lines.txt" >"$work/gaps.txt"
free=$(awk '$1 == "free" { print $2 }' "$work/gaps.txt" | median)
awk -v free="$free" '$1 == "overlapped" { n++; sum += $2 } END {
    printf "steps %.2f s, %d beside a save %.2f s on average: %.3f of the others\n", free, n, sum / n, sum / n / free }' "$work/gaps.txt"
