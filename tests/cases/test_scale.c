// What a gradient is divided by: the same under a pipeline, the mean over a step's tokens however rows are cut.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/cases.h"
#include "data/batch.h"

#include <math.h>

/* ---- a pipeline changes no scale ----------------------------------------------------------- */

/* With lr 0 the norm printed by each step is that of the probe of its rows, on every layout. */
static void scale__norms_are_the_same_on_every_layout(void **state)
{
    (void)state;
    char *folder = case_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = 8}, FIXTURE_VAR, 1);
    const Trial trial = {
        folder, "rows.jsonl", 8, 8, 2, (const char *const[]){"optimizer.lr=0", NULL}};
    assert_true(probe(&trial, "probe", &one_rank));
    json_t *losses = read_json(path_in(folder, "probe/losses.json"));
    assert_int_equal(number(losses, "trained_tokens"), 344);
    assert_true(train(&trial, "plain", &one_rank));
    json_t *metrics = read_metrics(path_in(folder, "plain/metrics.jsonl"));
    for (size_t step = 0; step < 2; step++) { /* the same rows, in another order */
        double norm = number(json_array_get(metrics, step), "grad_norm");
        double want = number(losses, "grad_norm");
        if (fabs(norm - want) > 1e-6 * want) fail_msg("norm %.9g, expected %.9g", norm, want);
    }
    json_decref(metrics);
    json_decref(losses);
    int failed = 0;
    unsigned n = 0;
    Layout layout;
    for (int pp = 2; pp <= 4; pp += 2)
        for (size_t i = 0; schedule_layout(&layout, pp, i); i++)
            if (!left_out(&n)) failed += !trains_as(&trial, "plain", &layout);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* One step of SGD with lr 1 changes each weight by minus its gradient; every schedule meets 2, 3 and 4 ranks. */
static void scale__one_step_of_sgd_is_minus_the_gradient(void **state)
{
    (void)state;
    const char *const sets[] = {"optimizer.type=sgd", "optimizer.lr=1", "optimizer.weight_decay=0",
                                "train.max_grad_norm=0", NULL};
    static const Fixture fixtures[] = {{.kind = FIXTURE_MOE, .n_layers = 8},
                                       {.kind = FIXTURE_TIED, .n_layers = 8},
                                       {.kind = FIXTURE_DENSE_FIRST, .n_layers = 8}};
    int failed = 0;
    unsigned n = 0;
    for (size_t f = 0; f < COUNT(fixtures); f++) {
        char *folder = case_folder(&fixtures[f], FIXTURE_VAR, 1);
        const Trial trial = {folder, "rows.jsonl", 8, 8, 1, sets};
        assert_true(probe(&trial, "probe", &one_rank));
        assert_true(train(&trial, "plain", &one_rank));
        TensorFile grads = read_file(path_in(folder, "probe/grads.safetensors"));
        TensorFile minus = read_file(path_in(folder, "probe/grads.safetensors"));
        add_scaled(&minus, &grads, -2);
        TensorFile before = read_folder(path_in(folder, "model"));
        failed += !close_change(path_in(folder, "plain"), &before, &minus);
        tensor_file_free(&grads);
        tensor_file_free(&minus);
        tensor_file_free(&before);
        Layout layout;
        for (size_t i = 0; schedule_layout(&layout, 2 + (int)(f + i) % 3, i); i++)
            if (!left_out(&n)) failed += !trains_as(&trial, "plain", &layout);
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* The gradient of all rows is the mean of the rows' own, weighted by their trained tokens: nothing is
 * divided by the number of microbatches, nor multiplied by tokens. */
static void scale__a_batch_is_the_weighted_mean_of_its_rows(void **state)
{
    (void)state;
    const char *const sets[] = {"loss.balancing_alpha=0", NULL};
    char *folder = case_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 1);
    const Trial whole = {folder, "rows.jsonl", 4, 8, 1, sets};
    const Trial single = {folder, "one.jsonl", 4, 1, 1, sets};
    assert_true(probe(&whole, "all", &(Layout){2, "1f1b", 0, 1, NULL, 1}));
    TensorFile all = read_file(path_in(folder, "all/grads.safetensors")), mean = {0};
    double ce = 0, tokens = 0;
    for (int i = 0; i < 8; i++) {
        write_line(folder, "rows.jsonl", i, "one.jsonl");
        assert_true(probe(&single, "one", &one_rank));
        json_t *losses = read_json(path_in(folder, "one/losses.json"));
        double n = number(losses, "trained_tokens");
        ce += n / 344 * number(losses, "ce");
        tokens += n;
        json_decref(losses);
        TensorFile one = read_file(path_in(folder, "one/grads.safetensors"));
        if (i == 0) {
            mean = read_file(path_in(folder, "one/grads.safetensors"));
            add_scaled(&mean, &one, n / 344 - 1);
        } else {
            add_scaled(&mean, &one, n / 344);
        }
        tensor_file_free(&one);
    }
    json_t *losses = read_json(path_in(folder, "all/losses.json"));
    assert_true(tokens == 344);
    assert_true(fabs(number(losses, "ce") - ce) <= 1e-6 * ce);
    json_decref(losses);
    assert_true(close_tensors(&all, &mean, NULL));
    tensor_file_free(&all);
    tensor_file_free(&mean);
    folder_remove(folder);
}

/* ---- the mean over tokens ------------------------------------------------------------------ */

/* Several lines of folder/FROM as one packed row of folder/TO, `per_row` to each. */
static void pack_rows(const char *folder, const char *from, int per_row, const char *to)
{
    FILE *in = fopen(path_in(folder, "%s", from), "r"),
         *out = fopen(path_in(folder, "%s", to), "w");
    if (!in || !out) fail_msg("cannot pack %s", from);
    json_t *packed = NULL, *row;
    for (int i = 0; (row = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL)); i++, json_decref(row)) {
        if (i % per_row == 0)
            packed = json_pack("{s[]s[]s[i]}", "input_ids", "labels", "cu_seqlens", 0);
        json_array_extend(json_object_get(packed, "input_ids"), json_object_get(row, "input_ids"));
        json_array_extend(json_object_get(packed, "labels"), json_object_get(row, "labels"));
        json_array_append_new(
            json_object_get(packed, "cu_seqlens"),
            json_integer((json_int_t)json_array_size(json_object_get(packed, "input_ids"))));
        if (i % per_row != per_row - 1) continue;
        json_dumpf(packed, out, JSON_COMPACT);
        fputc('\n', out);
        json_decref(packed);
    }
    fclose(in);
    fclose(out);
}

static void mean__is_over_tokens_however_rows_are_cut(void **state)
{
    (void)state;
    const char *const sets[] = {"loss.balancing_alpha=0", NULL};
    static const int trained[] = {2, 2, 60, 4};
    char *folder = case_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_MASK, 1);
    const Trial single = {folder, "one.jsonl", 4, 1, 1, sets};
    double ce = 0, mean_of_means = 0;
    for (int i = 0; i < 4; i++) {
        write_line(folder, "rows.jsonl", i, "one.jsonl");
        assert_true(probe(&single, "one", &one_rank));
        json_t *losses = read_json(path_in(folder, "one/losses.json"));
        assert_int_equal(number(losses, "trained_tokens"), trained[i]);
        ce += trained[i] * number(losses, "ce") / 68;
        mean_of_means += number(losses, "ce") / 4;
        json_decref(losses);
    }
    /* Else the wrong mean would pass too. */
    assert_true(fabs(ce - mean_of_means) > 1e-4 * ce);
    static const int per_row[] = {1, 2, 4};
    TensorFile want = {0};
    int failed = 0;
    for (size_t k = 0; k < COUNT(per_row); k++)
        for (int pp = 1; pp <= 2; pp++) {
            char out[32];
            snprintf(out, sizeof out, "packed%d-pp%d", per_row[k], pp);
            pack_rows(folder, "rows.jsonl", per_row[k], "packed.jsonl");
            const Trial packed = {folder, "packed.jsonl", 4, 4 / per_row[k], 1, sets};
            assert_true(probe(&packed, out, &(Layout){pp, "1f1b", 0, 1, NULL, 1}));
            json_t *losses = read_json(path_in(folder, "%s/losses.json", out));
            assert_int_equal(number(losses, "trained_tokens"), 68);
            if (fabs(number(losses, "ce") - ce) > 1e-6 * ce) {
                fprintf(stderr, "  %s: ce %.9g, expected %.9g\n", out, number(losses, "ce"), ce);
                failed++;
            }
            json_decref(losses);
            TensorFile grads = read_file(path_in(folder, "%s/grads.safetensors", out));
            if (!want.n) {
                want = grads;
                continue;
            }
            failed += !close_tensors(&grads, &want, NULL);
            tensor_file_free(&grads);
        }
    tensor_file_free(&want);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* 2 tokens at loss 4 and 62 at loss 6 make 5.9375; the mean of the two rows' means would be 5. */
static void mean__of_2_tokens_at_4_and_62_at_6_is_5_9375(void **state)
{
    (void)state;
    static const int64_t tokens[2] = {3, 63};
    static const double loss[2] = {4, 6};
    static int32_t ids[63], bounds[2][2] = {{0, 3}, {0, 63}};
    static uint8_t trained[63];
    memset(trained, 1, sizeof trained);
    Row rows[2];
    for (int i = 0; i < 2; i++)
        rows[i] = (Row){.n_tokens = tokens[i],
                        .id_t = ids,
                        .trained_t = trained,
                        .n_segments = 1,
                        .cu_seqlens = bounds[i]};
    Arena arena;
    arena_init(&arena, "step");
    BatchTotals totals;
    const BatchConfig config = {.reduction = REDUCTION_TOKEN};
    const MicroBatch *mb = batch_build_rank(&totals, rows, 2, 0, 1, &config, &arena);
    double mean = 0;
    for (int i = 0; i < 2; i++)
        for (int64_t t = 0; t < tokens[i]; t++) mean += mb[i].weight_t[t] * loss[i];
    assert_true(fabs(mean - 5.9375) <= 1e-14);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale__norms_are_the_same_on_every_layout),
        cmocka_unit_test(scale__one_step_of_sgd_is_minus_the_gradient),
        cmocka_unit_test(scale__a_batch_is_the_weighted_mean_of_its_rows),
        cmocka_unit_test(mean__of_2_tokens_at_4_and_62_at_6_is_5_9375),
        cmocka_unit_test(mean__is_over_tokens_however_rows_are_cut),
    };
    return cmocka_run_group_tests_name("cases/scale", tests, NULL, NULL);
}
