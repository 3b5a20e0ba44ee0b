#pragma once
/**
 * Counter-based random numbers: each value is a pure function of (key, counter), so it does not depend
 * on how many were drawn before, nor by whom.
 * Source: Philox 4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
 */
#include <stddef.h>
#include <stdint.h>

/** 64-bit key of a named stream: seed and text hashed together (XXH3). */
uint64_t rng_key(uint64_t seed, const char *name);
/** 64 uniform bits. */
uint64_t rng_bits(uint64_t key, uint64_t counter);
/** Uniform in [0, 1), 53 bits. */
double rng_uniform(uint64_t key, uint64_t counter);
/** Standard normal (Box-Muller on the two uniforms of the counter). */
double rng_normal(uint64_t key, uint64_t counter);
/** A permutation of 0..n-1 (Fisher-Yates, unbiased); order_n [n] is overwritten. */
void rng_permutation(int64_t *order_n, int64_t n, uint64_t key);
