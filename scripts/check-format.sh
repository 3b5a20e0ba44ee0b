#!/bin/sh
# Checks that clang-format 14 would leave every C file as it is; says so and does nothing where it is not installed.
cd "$(dirname "$0")/.." || exit 2
if ! command -v clang-format-14 >/dev/null; then
    echo "format: not checked, clang-format-14 is not installed"
    exit 0
fi
find src tests fuzz $(ls -d bench 2>/dev/null) -name '*.[ch]' | sort | xargs clang-format-14 --dry-run -Werror && echo "format: as clang-format 14 has it"
