#pragma once
/** What every fuzz_<x>.c defines: one run on any bytes (NULL when there are none); returns 0. Must not crash, leak or hang. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/** What holds for any bytes; else the fuzzer has found something. */
static inline void must(bool condition)
{
    if (!condition) abort();
}
