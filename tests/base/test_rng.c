#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

/* Philox 4x32-10 as the paper writes it, for any counter: checked with the authors' vectors, then the measure of ours. */
static void philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9u;
        k[1] += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

/* Random123, tests/kat_vectors: "philox4x32 10". */
static const struct {
    uint32_t counter[4], key[2], want[4];
} vectors[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static void rng__is_philox_4x32_10(void **state)
{
    (void)state;
    uint32_t got[4];
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        philox(got, vectors[i].counter, vectors[i].key);
        assert_memory_equal(got, vectors[i].want, sizeof got);
    }
    assert_true(rng_bits(0, 0) == 0xe169c58d6627e8d5u);
    uint64_t mixed = 1;
    for (int i = 0; i < 2000; i++) {
        uint64_t key = mixed *= 6364136223846793005u, counter = mixed *= 6364136223846793005u;
        if (i % 3 == 0) counter >>= 40; /* small ones, as element indices are */
        philox(got, (uint32_t[]){(uint32_t)counter, (uint32_t)(counter >> 32), 0, 0},
               (uint32_t[]){(uint32_t)key, (uint32_t)(key >> 32)});
        uint64_t want = (uint64_t)got[1] << 32 | got[0];
        assert_true(rng_bits(key, counter) == want);
        assert_true(rng_uniform(key, counter) == (double)(want >> 11) * 0x1p-53);
    }
}

static void rng__key_is_xxh3_of_the_name_seeded(void **state)
{
    (void)state;
    /* xxHash's own value of XXH3_64bits of nothing. */
    assert_true(rng_key(0, "") == 0x2D06800538D394C2u);
    assert_true(rng_key(1, "a") != rng_key(2, "a"));
    assert_true(rng_key(1, "a") != rng_key(1, "b"));
    assert_true(rng_key(1, "a") == rng_key(1, "a"));
}

/* chi² of 64 bins has mean 63 and deviation 11.2: 63 +- 60 fails once in about 1e7 honest keys, and these are fixed. */
static void rng__uniform_is_uniform(void **state)
{
    (void)state;
    enum { N = 64000, BINS = 64 };
    for (uint64_t key = 0; key < 5; key++) {
        double bin[BINS] = {0}, chi = 0, serial = 0;
        for (uint64_t i = 0; i < N; i++) {
            double u = rng_uniform(key, i);
            assert_true(u >= 0 && u < 1);
            bin[(int)(u * BINS)]++;
            serial += (u - 0.5) * (rng_uniform(key, i + 1) - 0.5);
        }
        for (int b = 0; b < BINS; b++)
            chi += (bin[b] - (double)N / BINS) * (bin[b] - (double)N / BINS) / ((double)N / BINS);
        if (chi < 3 || chi > 123) fail_msg("key %d: chi² %g", (int)key, chi);
        /* Neighbours are independent: the sum has deviation sqrt(N)/12. */
        assert_true(fabs(serial) < 6 * sqrt(N) / 12);
    }
}

static void rng__normal_has_the_moments_of_one(void **state)
{
    (void)state;
    enum { N = 100000 };
    double sum[5] = {0}, tail = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = rng_normal(99, i), power = 1;
        assert_true(isfinite(x));
        for (int k = 1; k <= 4; k++) sum[k] += power *= x;
        tail += fabs(x) > 1.959963984540054;
    }
    /* Deviations of the means of x^k: sqrt((E x^2k - (E x^k)²)/N). Six of them. */
    static const double mean[5] = {0, 0, 1, 0, 3}, variance[5] = {0, 1, 2, 15, 96};
    for (int k = 1; k <= 4; k++)
        if (fabs(sum[k] / N - mean[k]) > 6 * sqrt(variance[k] / N))
            fail_msg("mean of x^%d is %g, expected %g", k, sum[k] / N, mean[k]);
    assert_true(fabs(tail / N - 0.05) < 6 * sqrt(0.05 * 0.95 / N));
}

static void rng__values_do_not_depend_on_the_order_of_drawing(void **state)
{
    (void)state;
    enum { N = 100 };
    double forward[N], backward[N];
    for (int i = 0; i < N; i++) forward[i] = rng_normal(5, (uint64_t)i);
    for (int i = N - 1; i >= 0; i--) {
        rng_bits(6, 0);
        backward[i] = rng_normal(5, (uint64_t)i);
    }
    assert_memory_equal(forward, backward, sizeof forward);
}

static void rng__permutation_is_one(void **state)
{
    (void)state;
    static int64_t order[5000];
    static char seen[5000];
    static const int64_t sizes[] = {0, 1, 2, 3, 17, 5000};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k];
        memset(seen, 0, sizeof seen);
        rng_permutation(order, n, 3);
        for (int64_t i = 0; i < n; i++) {
            assert_true(order[i] >= 0 && order[i] < n && !seen[order[i]]);
            seen[order[i]] = 1;
        }
    }
    int64_t other[17];
    rng_permutation(order, 17, 4);
    rng_permutation(other, 17, 5);
    assert_memory_not_equal(order, other, sizeof other);
    rng_permutation(other, 17, 4);
    assert_memory_equal(order, other, sizeof other);
}

/* All 24 orders of 4 equally often: chi² of 23 degrees, mean 23, deviation 6.8. */
static void rng__permutation_is_unbiased(void **state)
{
    (void)state;
    enum { N = 24000 };
    double count[256] = {0}, chi = 0;
    int n_kinds = 0;
    for (uint64_t key = 0; key < N; key++) {
        int64_t p[4];
        rng_permutation(p, 4, key);
        count[p[0] + 4 * p[1] + 16 * p[2] + 64 * p[3]]++;
    }
    for (int i = 0; i < 256; i++) {
        if (count[i] == 0) continue;
        n_kinds++;
        chi += (count[i] - N / 24.0) * (count[i] - N / 24.0) / (N / 24.0);
    }
    assert_int_equal(n_kinds, 24);
    if (chi > 23 + 6 * 6.8) fail_msg("chi² %g", chi);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rng__is_philox_4x32_10),
        cmocka_unit_test(rng__key_is_xxh3_of_the_name_seeded),
        cmocka_unit_test(rng__uniform_is_uniform),
        cmocka_unit_test(rng__normal_has_the_moments_of_one),
        cmocka_unit_test(rng__values_do_not_depend_on_the_order_of_drawing),
        cmocka_unit_test(rng__permutation_is_one),
        cmocka_unit_test(rng__permutation_is_unbiased),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
