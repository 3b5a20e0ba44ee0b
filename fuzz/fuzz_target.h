#pragma once
/** What every fuzz_<x>.c defines: one run on any bytes (NULL when there are none); returns 0. Must not crash, leak or hang. */
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
