#include "data/sampler.h"

#include "base/rng.h"

#include <math.h>

/* Each round mixes half of all pairs; 96 are enough to leave no pattern in any number of rows that fits a disk. */
enum { SHUFFLE_ROUNDS = 96 };

int64_t shuffle_index(int64_t i, int64_t n, uint64_t key)
{
    uint64_t x = (uint64_t)i, size = (uint64_t)n;
    if (size < 2) return 0;
    for (uint64_t round = 0; round < SHUFFLE_ROUNDS; round++) {
        /* x and its partner (pivot - x mod n) see the same pair, so both or neither change places. */
        uint64_t pivot = rng_bits(key, round) % size;
        uint64_t partner = (pivot + size - x) % size;
        uint64_t pair = x > partner ? x : partner;
        if (rng_bits(key ^ 0x9E3779B97F4A7C15ull, pair * SHUFFLE_ROUNDS + round) & 1) x = partner;
    }
    return (int64_t)x;
}

int64_t sampler_row(const Sampler *sampler, int64_t position)
{
    int64_t epoch = position / sampler->n_rows, i = position % sampler->n_rows;
    if (!sampler->shuffle) return i;
    uint64_t key = rng_bits(rng_key(sampler->seed, "data.epoch"), (uint64_t)epoch);
    return shuffle_index(i, sampler->n_rows, key);
}

int64_t sampler_steps(double epochs, int64_t n_rows, int64_t batch)
{
    /* 1.1 * 10 / 11 is a little more than 1 in binary: what is within rounding of a whole number is one. */
    double steps = epochs * (double)n_rows / (double)batch;
    return (int64_t)fmin(ceil(steps * (1 - 1e-14)), 0x1p53);
}
