#include "fixture.h"

#include "base/rng.h"
#include "data/batch.h"
#include "data/token_store.h"

#include <math.h>

enum { N_ROWS = 12 };

/** Rows of up to 90 tokens in up to 5 segments, some labels not trained, some not the ids. */
static void make_rows(Row row[N_ROWS], Arena *arena)
{
    uint64_t draw = 0;
    for (int j = 0; j < N_ROWS; j++) {
        int64_t n = j == 0 ? 1 : 1 + (int64_t)(rng_bits(5, draw++) % 90);
        int32_t *id = ARENA_NEW(arena, int32_t, n), *label = ARENA_NEW(arena, int32_t, n);
        uint8_t *trained = ARENA_NEW(arena, uint8_t, n);
        int32_t *cu = ARENA_NEW(arena, int32_t, n + 1);
        int n_segments = 0;
        for (int64_t t = 0; t < n; t++) {
            id[t] = (int32_t)(rng_bits(5, draw++) % 100);
            trained[t] = j != 3 && rng_bits(5, draw++) % 3 > 0; /* row 3 trains nothing */
            label[t] = trained[t] ? (id[t] + 1) % 100 : -100;
            if (t > 0 && rng_bits(5, draw++) % 20 == 0) cu[++n_segments] = (int32_t)t;
        }
        cu[++n_segments] = (int32_t)n;
        row[j] = (Row){.n_tokens = n,
                       .id_t = id,
                       .trained_t = trained,
                       .label_t = j % 2 ? label : NULL,
                       .n_segments = n_segments,
                       .cu_seqlens = cu};
    }
}

/** w of position t's label and whether it counts, straight from the definition. */
static double direct_weight(const Row *row, int segment, int64_t t, LossReduction reduction)
{
    int64_t first = row->cu_seqlens[segment], n = 0;
    for (int64_t s = first + 1; s < row->cu_seqlens[segment + 1]; s++)
        n += row_label(row, s) != -100;
    if (t == first || row_label(row, t) == -100) return 0;
    if (reduction == REDUCTION_TOKEN) return 1;
    return reduction == REDUCTION_SAMPLE ? 1.0 / (double)n : 1.0 / sqrt((double)n);
}

static void batch__weights_follow_the_definition(void **state)
{
    (void)state;
    Arena arena, step;
    arena_init(&arena, "rows");
    arena_init(&step, "step");
    Row row[N_ROWS];
    make_rows(row, &arena);
    for (int reduction = 0; reduction < 3; reduction++) {
        BatchConfig config = {
            .reduction = (LossReduction)reduction, .balancing_alpha = 0.5, .z_alpha = 3};
        double sum = 0;
        int64_t n_tokens = 0, n_trained = 0, n_pairs = 0;
        for (int j = 0; j < N_ROWS; j++) {
            n_tokens += row[j].n_tokens;
            for (int i = 0; i < row[j].n_segments; i++)
                for (int64_t t = row[j].cu_seqlens[i]; t < row[j].cu_seqlens[i + 1]; t++) {
                    double w = direct_weight(&row[j], i, t, (LossReduction)reduction);
                    sum += w;
                    n_trained += w > 0;
                    n_pairs += t - row[j].cu_seqlens[i] + 1;
                }
        }
        BatchTotals totals;
        MicroBatch *mb = batch_build_rank(&totals, row, N_ROWS, 0, 1, &config, &step);
        assert_int_equal(totals.n_rows, N_ROWS);
        assert_int_equal(totals.n_tokens, n_tokens);
        assert_int_equal(totals.n_trained, n_trained);
        assert_int_equal(totals.n_pairs, n_pairs);
        assert_true(fabs(totals.weight - sum) <= 1e-12 * sum); /* rounding of at most 1000 terms */
        double all = 0;
        int64_t counted = 0;
        for (int j = 0; j < N_ROWS; j++) {
            assert_int_equal(mb[j].index, j);
            assert_int_equal(mb[j].n_tokens, row[j].n_tokens);
            assert_int_equal(mb[j].n_segments, row[j].n_segments);
            assert_ptr_equal(mb[j].id_t, row[j].id_t);
            assert_true(mb[j].balancing_scale == 0.5 / N_ROWS);
            assert_true(mb[j].z_scale == 3.0 / (double)n_tokens);
            counted += mb[j].n_trained;
            for (int i = 0; i < row[j].n_segments; i++) {
                int64_t first = row[j].cu_seqlens[i], end = row[j].cu_seqlens[i + 1];
                for (int64_t t = first; t < end; t++) {
                    assert_int_equal(mb[j].position_t[t], t - first);
                    assert_int_equal(mb[j].target_t[t],
                                     t + 1 < end ? row_label(&row[j], t + 1) : -100);
                    double w = t + 1 < end
                                   ? direct_weight(&row[j], i, t + 1, (LossReduction)reduction)
                                   : 0;
                    assert_true(fabs(mb[j].weight_t[t] - w / sum) <= 1e-12 * w / sum);
                    all += mb[j].weight_t[t];
                }
            }
        }
        assert_int_equal(counted, n_trained);
        assert_true(fabs(all - 1) < 1e-12);
        arena_reset(&step);
    }
    arena_free(&step);
    arena_free(&arena);
}

static void batch__deals_rows_to_ranks(void **state)
{
    (void)state;
    Arena arena, step;
    arena_init(&arena, "rows");
    arena_init(&step, "step");
    Row row[N_ROWS];
    make_rows(row, &arena);
    const BatchConfig config = {.reduction = REDUCTION_SQUARE, .balancing_alpha = 1};
    BatchTotals whole, part;
    MicroBatch *all = batch_build_rank(&whole, row, N_ROWS, 0, 1, &config, &step);
    for (int dp = 2; dp <= 4; dp++)
        for (int rank = 0; rank < dp; rank++) {
            MicroBatch *own = batch_build_rank(&part, row, N_ROWS, rank, dp, &config, &step);
            assert_memory_equal(&part, &whole, sizeof part); /* the same bits on every rank */
            for (int m = 0; m < N_ROWS / dp; m++) {
                const MicroBatch *same = &all[m * dp + rank];
                assert_int_equal(own[m].index, m);
                assert_ptr_equal(own[m].id_t, same->id_t);
                assert_memory_equal(own[m].weight_t, same->weight_t,
                                    (size_t)same->n_tokens * sizeof *same->weight_t);
            }
        }
    arena_free(&step);
    arena_free(&arena);
}

static void batch__learns_nothing_from_untrained_rows(void **state)
{
    (void)state;
    Arena step;
    arena_init(&step, "step");
    /* One row without a trained label, one whose trained labels are all first in their segments, one of one token. */
    static const int32_t id[] = {1, 2, 3}, cu1[] = {0, 3}, cu3[] = {0, 1, 2, 3}, cu0[] = {0, 1};
    static const uint8_t none[] = {0, 0, 0}, all[] = {1, 1, 1};
    const Row row[] = {
        {.n_tokens = 3, .id_t = id, .trained_t = none, .n_segments = 1, .cu_seqlens = cu1},
        {.n_tokens = 3, .id_t = id, .trained_t = all, .n_segments = 3, .cu_seqlens = cu3},
        {.n_tokens = 1, .id_t = id, .trained_t = all, .n_segments = 1, .cu_seqlens = cu0}};
    for (int reduction = 0; reduction < 3; reduction++) {
        const BatchConfig config = {
            .reduction = (LossReduction)reduction, .balancing_alpha = 1, .z_alpha = 1};
        BatchTotals totals;
        MicroBatch *mb = batch_build_rank(&totals, row, 3, 0, 1, &config, &step);
        assert_true(totals.weight == 0);
        assert_int_equal(totals.n_trained, 0);
        assert_int_equal(totals.n_tokens, 7);
        assert_int_equal(totals.n_pairs, 6 + 3 + 1);
        for (int j = 0; j < 3; j++) {
            assert_int_equal(mb[j].n_trained, 0);
            assert_true(mb[j].balancing_scale == 0 && mb[j].z_scale == 0);
            for (int64_t t = 0; t < mb[j].n_tokens; t++) {
                assert_true(mb[j].weight_t[t] == 0);
                assert_int_equal(mb[j].target_t[t], LABEL_NONE);
            }
        }
    }
    arena_free(&step);
}

static void batch__allocates_nothing_once_warm(void **state)
{
    (void)state;
    Arena arena, step;
    arena_init(&arena, "rows");
    arena_init(&step, "step");
    Row row[N_ROWS];
    make_rows(row, &arena);
    const BatchConfig config = {.reduction = REDUCTION_TOKEN};
    BatchTotals totals;
    batch_build_rank(&totals, row, N_ROWS, 0, 1, &config, &step);
    int growths = step.growths;
    arena_reset(&step);
    batch_build_rank(&totals, row, N_ROWS, 0, 1, &config, &step);
    assert_int_equal(step.growths, growths);
    arena_free(&step);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batch__weights_follow_the_definition),
        cmocka_unit_test(batch__deals_rows_to_ranks),
        cmocka_unit_test(batch__learns_nothing_from_untrained_rows),
        cmocka_unit_test(batch__allocates_nothing_once_warm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
