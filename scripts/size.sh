#!/bin/sh
# Lines per room and per file, of src/ or of the folder that is named: scripts/size.sh [FOLDER]
cd "$(dirname "$0")/.." || exit 2
top=${1:-src}
find "$top" -name '*.[ch]' | sort | xargs wc -l | awk -v top="$top/" '
    $2 == "total" { next }
    {
        name = substr($2, length(top) + 1)
        room = index(name, "/") ? substr(name, 1, index(name, "/") - 1) : "."
        if (room != last) order[++n] = last = room
        lines[room] += $1; files[room]++; all += $1; n_files++
        list[room] = list[room] sprintf("    %5d  %s\n", $1, substr(name, length(room) + 2))
        if ($1 > 400) long = long " " name "(" $1 ")"
    }
    END {
        for (i = 1; i <= n; i++) printf "%6d  %s (%d files)\n%s", lines[order[i]], order[i], files[order[i]], list[order[i]]
        printf "%6d  all (%d files)\n", all, n_files
        if (long != "") print "more than 400 lines:" long
    }'
