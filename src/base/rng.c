#include "base/rng.h"

#include <math.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

typedef struct {
    uint32_t v[4];
} Block;

static Block philox(uint64_t key, uint64_t counter)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    Block c = {{(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0}};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = 0xD2511F53ull * c.v[0], p1 = 0xCD9E8D57ull * c.v[2];
        c = (Block){{(uint32_t)(p1 >> 32) ^ c.v[1] ^ k0, (uint32_t)p1,
                     (uint32_t)(p0 >> 32) ^ c.v[3] ^ k1, (uint32_t)p0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

static double uniform_of(uint32_t low, uint32_t high)
{
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

uint64_t rng_key(uint64_t seed, const char *name)
{
    return XXH3_64bits_withSeed(name, strlen(name), seed);
}

uint64_t rng_bits(uint64_t key, uint64_t counter)
{
    Block b = philox(key, counter);
    return ((uint64_t)b.v[1] << 32) | b.v[0];
}

double rng_uniform(uint64_t key, uint64_t counter)
{
    Block b = philox(key, counter);
    return uniform_of(b.v[0], b.v[1]);
}

double rng_normal(uint64_t key, uint64_t counter)
{
    Block b = philox(key, counter);
    double radius = sqrt(-2.0 * log(1.0 - uniform_of(b.v[0], b.v[1])));
    return radius * cos(6.283185307179586 * uniform_of(b.v[2], b.v[3]));
}

void rng_permutation(int64_t *order_n, int64_t n, uint64_t key)
{
    uint64_t counter = 0;
    for (int64_t i = 0; i < n; i++) order_n[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        /* Rejection keeps every j equally likely. */
        uint64_t range = (uint64_t)i + 1, limit = UINT64_MAX - UINT64_MAX % range, bits;
        do bits = rng_bits(key, counter++);
        while (bits >= limit);
        int64_t j = (int64_t)(bits % range), swap = order_n[i];
        order_n[i] = order_n[j];
        order_n[j] = swap;
    }
}
