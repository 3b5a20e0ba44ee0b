#!/bin/sh
# Checks that src/<room>/ includes only headers of the rooms that src/ROOMS allows, and that those rooms form no cycle.
cd "$(dirname "$0")/.." || exit 2
awk '
    FILENAME == "src/ROOMS" {
        if ($0 ~ /^[a-z]/) {
            sub(":", " ")
            n = split($0, word, " ")
            known[word[1]] = ++order
            allowed[word[1], word[1]] = 1
            for (i = 2; i <= n; i++) {
                if (!(word[i] in known)) { print "src/ROOMS: " word[1] " uses " word[i] ", which comes later: a cycle"; bad = 1 }
                allowed[word[1], word[i]] = 1
            }
        }
        next
    }
    match($0, /^[ \t]*#[ \t]*include[ \t]+"[a-z]+\//) {
        split(FILENAME, part, "/")
        target = $0
        sub(/^[^"]*"/, "", target)
        sub(/\/.*/, "", target)
        if (!((part[2], target) in allowed)) { print FILENAME ":" FNR ": " part[2] " may not include " target; bad = 1 }
    }
    END { exit bad }
' src/ROOMS $(find src -name '*.[ch]' | sort) && echo "includes: rooms include only downwards"
