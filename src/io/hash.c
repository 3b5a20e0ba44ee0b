#include "io/hash.h"
#include "io/file.h"

#include <stdio.h>
#include <xxhash.h>

uint64_t hash_bytes(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

void hash_hex(char hex[HASH_HEX_BYTES], const void *bytes, size_t n)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, n));
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", canonical.digest[i]);
}

Status hash_file(char hex[HASH_HEX_BYTES], const char *path)
{
    MappedFile file;
    TRY(file_map(&file, path));
    hash_hex(hex, file.data, file.bytes);
    file_unmap(&file);
    return OK;
}
