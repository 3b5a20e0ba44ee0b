#pragma once
/** XXH3 checksums: to notice damage and to name caches, not for security. */
#include "base/status.h"
#include <stddef.h>

enum { HASH_HEX_BYTES = 33 }; /* 32 lower-case digits and a NUL */

/** 64 bits of a byte range. */
uint64_t hash_bytes(const void *bytes, size_t n);
/** 128 bits of a byte range, as hex digits (the canonical, big-endian form that xxhsum -H2 prints). */
void hash_hex(char hex[HASH_HEX_BYTES], const void *bytes, size_t n);
/** The same of a file. */
Status hash_file(char hex[HASH_HEX_BYTES], const char *path) MUST_USE;
