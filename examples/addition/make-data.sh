#!/bin/sh
# Writes questions such as "What is 37 + 48?" with their answers as conversations, one a line:
#
#   make-data.sh [FOLDER [SEED]]        default data/addition 1
#
# All sums of two numbers below 100 are there. 400 pairs are held out, in both orders: FOLDER/test.jsonl asks each of them
# once, FOLDER/train.jsonl holds all the others, shuffled. The same seed gives the same files with any awk.
folder=${1:-data/addition}
seed=${2:-1}
mkdir -p "$folder" || exit 1
awk -v folder="$folder" -v seed="$seed" '
    # Lehmer generator, 2^31 - 1 and 16807: every product is exact in a double.
    function below(n) { state = state * 16807 % 2147483647; return state % n }
    function line(a, b) {
        return "{\"messages\": [{\"role\": \"user\", \"content\": \"What is " a " + " b "?\"}, {\"role\": \"assistant\", \"content\": \"" a + b "\"}]}"
    }
    BEGIN {
        state = seed % 2147483646 + 1
        for (i = 0; i < 20; i++) below(2)
        while (n_test < 400) {
            a = below(100); b = below(100)
            if ((a, b) in held) continue
            held[a, b] = held[b, a] = 1
            test[n_test++] = line(a, b)
        }
        for (a = 0; a < 100; a++)
            for (b = 0; b < 100; b++)
                if (!((a, b) in held)) train[n_train++] = line(a, b)
        for (i = n_train - 1; i > 0; i--) { j = below(i + 1); swap = train[i]; train[i] = train[j]; train[j] = swap }
        for (i = 0; i < n_test; i++) print test[i] > (folder "/test.jsonl")
        for (i = 0; i < n_train; i++) print train[i] > (folder "/train.jsonl")
    }' || exit 1
wc -l "$folder/train.jsonl" "$folder/test.jsonl" | awk '$2 != "total" { print $2 ": " $1 " conversations" }'
