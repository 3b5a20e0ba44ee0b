#include "fixture.h"

#include "base/rng.h"
#include "data/pack.h"

enum { N_SAMPLES = 200 };

/** A sample of n tokens that can be told from all others: id = 1000*i + t, trained where id is odd. */
static void add_sample(TokenStore *store, int i, int32_t n, bool fixed)
{
    int32_t id[600], cu[2] = {0, n};
    uint8_t trained[600];
    for (int32_t t = 0; t < n; t++) {
        id[t] = 1000 * i + t;
        trained[t] = id[t] & 1;
    }
    Row row = {.n_tokens = n, .id_t = id, .trained_t = trained, .n_segments = 1, .cu_seqlens = cu};
    assert_ok(token_store_add(store, &row, fixed));
}

/** Lengths of the segments of all rows, "3+4,5". */
static char *shown(const TokenStore *rows, Arena *arena)
{
    TextBuffer buffer;
    text_buffer_init(&buffer, arena);
    for (int64_t r = 0; r < rows->n_items; r++) {
        Row row = token_store_row(rows, r);
        for (int i = 0; i < row.n_segments; i++)
            text_append_format(&buffer, "%s%d",
                               i   ? "+"
                               : r ? ","
                                   : "",
                               row.cu_seqlens[i + 1] - row.cu_seqlens[i]);
    }
    return buffer.text;
}

static void pack__fills_rows_in_the_order_given(void **state)
{
    (void)state;
    // clang-format off
    static const struct { PackKind kind; const char *rows; int64_t n_cut; } cases[] = {
        {PACK_NONE, "4,6,10,3,10,10,1,2",       1},
        {PACK_SOFT, "4+6,10,3,10,10,1+2",       1},
        {PACK_HARD, "4+6,10,3+7,5+5,5+1+2",     0},
    };
    // clang-format on
    static const int32_t length[] = {4, 6, 10, 3, 12, 10, 1, 2};
    Arena arena;
    arena_init(&arena, "test");
    TokenStore samples;
    token_store_init(&samples);
    int64_t order[8];
    for (int i = 0; i < 8; i++) {
        add_sample(&samples, i, length[i], false);
        order[i] = i;
    }
    for (int c = 0; c < 3; c++) {
        TokenStore rows;
        int64_t n_cut;
        assert_ok(pack_rows(&rows, &n_cut, &samples, order, 8, cases[c].kind, 10));
        assert_string_equal(shown(&rows, &arena), cases[c].rows);
        assert_int_equal(n_cut, cases[c].n_cut);
        token_store_free(&rows);
    }
    token_store_free(&samples);
    arena_free(&arena);
}

/** Every token of every sample is there as often as the order says, in one run unless it was cut. */
static void check_rows(const TokenStore *samples, const TokenStore *rows, const int64_t *order,
                       PackKind kind, int64_t max_length)
{
    int64_t next = 0, at = 0; /* place in the order, token of that sample */
    for (int64_t r = 0; r < rows->n_items; r++) {
        Row row = token_store_row(rows, r);
        assert_in_range(row.n_tokens, 1, max_length);
        assert_int_equal(row.cu_seqlens[row.n_segments], row.n_tokens);
        if (kind == PACK_NONE) assert_int_equal(row.n_segments, 1);
        for (int i = 0; i < row.n_segments; i++) {
            Row sample = token_store_row(samples, order[next]);
            int64_t n = row.cu_seqlens[i + 1] - row.cu_seqlens[i];
            if (kind != PACK_HARD)
                assert_int_equal(n, sample.n_tokens < max_length ? sample.n_tokens : max_length);
            for (int64_t t = 0; t < n; t++) {
                int64_t to = row.cu_seqlens[i] + t;
                assert_int_equal(row.id_t[to], sample.id_t[at + t]);
                assert_int_equal(row.trained_t[to], sample.trained_t[at + t]);
                assert_int_equal(row_label(&row, to), row_label(&sample, at + t));
            }
            at += n;
            bool ends = kind != PACK_HARD || at == sample.n_tokens;
            next += ends;
            if (ends) at = 0;
        }
    }
    assert_int_equal(next, N_SAMPLES);
    assert_int_equal(at, 0);
}

static void pack__loses_and_doubles_nothing(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 7, 64, 599};
    TokenStore samples, rows;
    token_store_init(&samples);
    for (int i = 0; i < N_SAMPLES; i++)
        add_sample(&samples, i, 1 + (int32_t)(rng_bits(9, (uint64_t)i) % 599), false);
    for (uint64_t seed = 0; seed < 4; seed++)
        for (size_t l = 0; l < 4; l++)
            for (int kind = 0; kind < PACK_COUNT; kind++) {
                int64_t order[N_SAMPLES], n_cut;
                rng_permutation(order, N_SAMPLES, seed);
                assert_ok(pack_rows(&rows, &n_cut, &samples, order, N_SAMPLES, (PackKind)kind,
                                    lengths[l]));
                check_rows(&samples, &rows, order, (PackKind)kind, lengths[l]);
                token_store_free(&rows);
            }
    token_store_free(&samples);
}

static void pack__leaves_ids_rows_alone(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    TokenStore samples, rows;
    token_store_init(&samples);
    static const int32_t id[] = {1, 2, 3}, label[] = {7, -100, 3}, cu[] = {0, 1, 3};
    static const uint8_t trained[] = {1, 0, 1};
    const Row own = {.n_tokens = 3,
                     .id_t = id,
                     .trained_t = trained,
                     .label_t = label,
                     .n_segments = 2,
                     .cu_seqlens = cu};
    add_sample(&samples, 1, 2, false);
    assert_ok(token_store_add(&samples, &own, true));
    add_sample(&samples, 2, 1, false);
    add_sample(&samples, 3, 5, true);
    static const int64_t order[] = {3, 0, 1, 2, 1};
    int64_t n_cut;
    assert_ok(pack_rows(&rows, &n_cut, &samples, order, 5, PACK_SOFT, 3));
    assert_string_equal(shown(&rows, &arena), "2+1,5,1+2,1+2");
    assert_int_equal(n_cut, 0);
    Row row = token_store_row(&rows, 3);
    for (int t = 0; t < 3; t++) assert_int_equal(row_label(&row, t), label[t]);
    row = token_store_row(&rows, 0); /* labels of the others are still their ids */
    assert_int_equal(row_label(&row, 0), -100);
    assert_int_equal(row_label(&row, 1), 1001);
    token_store_free(&rows);
    token_store_free(&samples);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack__fills_rows_in_the_order_given),
        cmocka_unit_test(pack__loses_and_doubles_nothing),
        cmocka_unit_test(pack__leaves_ids_rows_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
