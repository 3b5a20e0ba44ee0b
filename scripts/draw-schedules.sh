#!/bin/sh
# scripts/draw-schedules.sh [--check] [PROGRAM]   (build/release/stagewright)
# Draws docs/schedules/*.svg and prints the rows of the table of numbers in docs/schedules.md. --check writes and prints
# nothing: exit 1 when a picture or a row is not what the program gives.
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C
check=
[ "$1" != --check ] || { check=1; shift; }
program=${1:-build/release/stagewright}
[ -x "$program" ] || { echo "draw-schedules: no program $program" >&2; exit 2; }
page=docs/schedules.md
names='gpipe 1f1b interleaved looped_bfs zb_h1 zb_h2 zb1p zbv vhalf vmin dualpipev'

options() { # NAME P M: the schedule as the page shows it
    echo "--schedule $1 --pp $2 --microbatches $3$([ "$1" != looped_bfs ] || echo ' --virtual 2')"
}

# FILE OPTIONS…
draw() {
    file=docs/schedules/$1.svg
    shift
    if [ -n "$check" ]; then
        "$program" schedule --format svg "$@" | cmp -s - "$file" && return
        echo "$file: not what the program draws; run scripts/draw-schedules.sh" >&2
        bad=1
    else
        "$program" schedule --format svg "$@" >"$file"
    fi
}

# NAME P M COSTS: the bubble, and the most microbatches that a rank holds, of v stages each
numbers() {
    "$program" schedule $(options "$1" "$2" "$3") --costs "$4" | awk '
        $1 == "makespan" { bubble = $6 }
        in_table { v = split($2, stages, ","); if ($4 / v > peak) peak = $4 / v }
        $1 == "rank" && $2 == "stages" { in_table = 1 }
        END { printf "%.1f %% | %g", bubble, peak }'
}

bubble() { # NAME COSTS
    numbers "$1" 8 32 "$2" | sed 's/ |.*//'
}

slow() { # NAME: costs where a message takes a quarter of a rank's forward
    case $1 in
    gpipe | 1f1b | zb_h1 | zb_h2) echo 1,1,1,0.25 ;;
    *) echo 1,1,1,0.5 ;; # two stages per rank
    esac
}

row() {
    echo "| \`$1\` | $(numbers "$1" 4 8 1,1,1) | $(numbers "$1" 8 32 1,1,1) |" \
        "$(bubble "$1" 1,1,0.5) | $(bubble "$1" 1,2,1) | $(bubble "$1" "$(slow "$1")") |"
}

bad=
for name in $names; do
    draw "$name" $(options "$name" 4 8)
    line=$(row "$name")
    if [ -z "$check" ]; then
        echo "$line"
    elif ! grep -qxF "$line" $page; then
        echo "$page: has no row: $line" >&2
        bad=1
    fi
done
draw message $(options interleaved 4 8) --costs 1,1,1,0.5
draw cheap-w $(options zb_h1 4 8) --costs 1,1,0.5 --w-share 0.5
draw head $(options 1f1b 4 8) --costs docs/schedules/head.json
[ -z "$bad" ]
