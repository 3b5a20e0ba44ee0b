#include "fixture.h"

#include "data/sampler.h"

static void sampler__shuffle_is_a_permutation(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 130; n++)
        for (uint64_t key = 0; key < 5; key++) {
            uint8_t seen[130] = {0};
            for (int64_t i = 0; i < n; i++) {
                int64_t at = shuffle_index(i, n, key);
                assert_in_range(at, 0, n - 1);
                assert_int_equal(seen[at]++, 0);
            }
        }
}

/* Three items: all six orders come up, each about as often. 6000 draws: a fair share is 1000, its deviation
 * 29; 150 is five of them. */
static void sampler__shuffle_is_fair(void **state)
{
    (void)state;
    int count[27] = {0};
    for (uint64_t key = 0; key < 6000; key++)
        count[shuffle_index(0, 3, key) * 9 + shuffle_index(1, 3, key) * 3 +
              shuffle_index(2, 3, key)]++;
    int orders = 0;
    for (int i = 0; i < 27; i++) {
        if (!count[i]) continue;
        orders++;
        assert_in_range(count[i], 850, 1150);
    }
    assert_int_equal(orders, 6);
}

static void sampler__walks_all_rows_every_epoch(void **state)
{
    (void)state;
    const Sampler sampler = {.n_rows = 17, .seed = 42, .shuffle = true};
    int64_t order[4][17];
    for (int64_t position = 0; position < 4 * 17; position++)
        order[position / 17][position % 17] = sampler_row(&sampler, position);
    for (int epoch = 0; epoch < 4; epoch++) {
        int seen[17] = {0};
        for (int i = 0; i < 17; i++) assert_int_equal(seen[order[epoch][i]]++, 0);
        for (int other = 0; other < epoch; other++)
            assert_memory_not_equal(order[epoch], order[other], sizeof order[0]);
    }
    /* The same seed: the same stream, from any position; another seed: another stream. */
    const Sampler again = sampler, other = {.n_rows = 17, .seed = 43, .shuffle = true};
    int differ = 0;
    for (int64_t position = 67; position >= 0; position--) {
        assert_int_equal(sampler_row(&again, position), order[position / 17][position % 17]);
        differ += sampler_row(&other, position) != order[position / 17][position % 17];
    }
    assert_true(differ > 40);
}

static void sampler__keeps_the_order_when_asked_to(void **state)
{
    (void)state;
    const Sampler sampler = {.n_rows = 3, .seed = 1, .shuffle = false};
    for (int64_t position = 0; position < 9; position++)
        assert_int_equal(sampler_row(&sampler, position), position % 3);
}

static void sampler__counts_steps(void **state)
{
    (void)state;
    // clang-format off
    static const struct { double epochs; int64_t rows, batch, steps; } cases[] = {
        {1,   8,         8, 1},
        {1,   9,         8, 2},
        {3,   9,         8, 4},
        {1,   1,         8, 1},
        {2,   1,         2, 1},
        {0.5, 10,        5, 1},
        {0.5, 11,        5, 2},
        {1.1, 10,       11, 1},
        {3,   700000001, 7, 300000001},
    };
    // clang-format on
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(sampler_steps(cases[i].epochs, cases[i].rows, cases[i].batch),
                         cases[i].steps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampler__shuffle_is_a_permutation),
        cmocka_unit_test(sampler__shuffle_is_fair),
        cmocka_unit_test(sampler__walks_all_rows_every_epoch),
        cmocka_unit_test(sampler__keeps_the_order_when_asked_to),
        cmocka_unit_test(sampler__counts_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
