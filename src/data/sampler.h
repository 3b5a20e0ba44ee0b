#pragma once
/**
 * The endless stream of rows: epoch after epoch, each a permutation of all rows by (seed, epoch). Position p
 * (from 0) is the only state: it belongs to epoch p / n_rows, and resuming is to go on at a position. The
 * stream does not depend on the layout: step s (from 0) takes positions s*B ... s*B + B - 1, B the global
 * batch size, across epoch borders too.
 */
#include <stdbool.h>
#include <stdint.h>

typedef struct Sampler {
    int64_t n_rows; /* >= 1 */
    uint64_t seed;
    bool shuffle; /* false: in order, every epoch (eval) */
} Sampler;

/** The row at a position of the stream, in [0, n_rows). */
int64_t sampler_row(const Sampler *sampler, int64_t position);

/** ceil(epochs * n_rows / batch): steps that see every row `epochs` times; the last is filled from the next epoch. */
int64_t sampler_steps(double epochs, int64_t n_rows, int64_t batch);

/**
 * Image of i under a pseudo-random permutation of 0 ... n-1 chosen by the key, computed for one i alone: no
 * array, no state, so ranks that share a dataset need not agree on an epoch.
 *
 * Source: swap-or-not, Hoang, Morris, Rogaway, "An Enciphering Scheme Based on a Card Shuffle" (CRYPTO 2012).
 */
int64_t shuffle_index(int64_t i, int64_t n, uint64_t key);
