// The fixtures are what their header says, as read back by the harness.
#include "cases/fixtures.h"
#include "cases/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static TensorFile write_and_read(const char *folder, const char *name, const Fixture *fixture)
{
    TensorFile file;
    fixture_write_model(path_in(folder, "%s", name), fixture);
    assert_true(tensor_folder_read(&file, path_in(folder, "%s", name)));
    return file;
}

static const FileTensor *tensor(const TensorFile *file, const char *name)
{
    const FileTensor *t = tensor_file_find(file, name);
    if (!t) fail_msg("no tensor %s", name);
    return t;
}

static void assert_same_values(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) assert_true(a[i] == b[i]);
}

static void fixtures__have_the_parameters_of_the_model(void **state)
{
    (void)state;
    static const struct {
        Fixture fixture;
        int tensors;
        int64_t elements;
    } rows[] = {
        /* Of a layer: attention 12288 + 32, norms 128, router 256, experts 24576, or dense 24576. */
        {{.kind = FIXTURE_MOE}, 4 * 21 + 3, 4 * 37280 + 64 + 2 * 32768},
        {{.kind = FIXTURE_TIED}, 4 * 21 + 2, 4 * 37280 + 64 + 32768},
        {{.kind = FIXTURE_DENSE_FIRST}, 2 * 21 + 2 * 11 + 3, 4 * 37280 - 512 + 64 + 2 * 32768},
        {{.kind = FIXTURE_MOE, .n_layers = 10}, 10 * 21 + 3, 10 * 37280 + 64 + 2 * 32768},
        {{.kind = FIXTURE_MOE, .fused = true}, 4 * 11 + 3, 4 * 37280 + 64 + 2 * 32768},
        {{.kind = FIXTURE_DENSE}, 4 * 11 + 3, 4 * (37280 - 256) + 64 + 2 * 32768},
        {{.kind = FIXTURE_MOE, .n_shards = 1}, 4 * 21 + 3, 4 * 37280 + 64 + 2 * 32768},
    };
    char *folder = folder_make();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char name[16];
        snprintf(name, sizeof name, "m%zu", i);
        TensorFile file = write_and_read(folder, name, &rows[i].fixture);
        int64_t elements = 0;
        for (int t = 0; t < file.n; t++) elements += file.at[t].n;
        assert_int_equal(file.n, rows[i].tensors);
        assert_int_equal(elements, rows[i].elements);
        tensor_file_free(&file);
    }
    folder_remove(folder);
}

static void fixtures__values_do_not_depend_on_layout_shards_or_depth(void **state)
{
    (void)state;
    char *folder = folder_make();
    TensorFile plain = write_and_read(folder, "plain", &(Fixture){.kind = FIXTURE_MOE});
    TensorFile other = write_and_read(
        folder, "other",
        &(Fixture){.kind = FIXTURE_MOE, .n_layers = 7, .n_shards = 3, .fused = true});
    const FileTensor *gate_up = tensor(&other, "model.layers.2.mlp.experts.gate_up_proj");
    const FileTensor *down = tensor(&other, "model.layers.2.mlp.experts.down_proj");
    const FileTensor *gate = tensor(&plain, "model.layers.2.mlp.experts.1.gate_proj.weight");
    const FileTensor *up = tensor(&plain, "model.layers.2.mlp.experts.1.up_proj.weight");
    assert_int_equal(gate_up->dim[1], 64);
    assert_same_values(gate_up->value + 64 * 64, gate->value, gate->n);
    assert_same_values(gate_up->value + 96 * 64, up->value, up->n);
    assert_same_values(down->value + 64 * 32,
                       tensor(&plain, "model.layers.2.mlp.experts.1.down_proj.weight")->value,
                       64 * 32);
    assert_same_values(tensor(&plain, "lm_head.weight")->value,
                       tensor(&other, "lm_head.weight")->value, 512 * 64);
    tensor_file_free(&plain);
    tensor_file_free(&other);
    folder_remove(folder);
}

static void fixtures__draws_have_the_stated_spread(void **state)
{
    (void)state;
    char *folder = folder_make();
    TensorFile file = write_and_read(folder, "m", &(Fixture){.kind = FIXTURE_MOE});
    const FileTensor *t = tensor(&file, "model.embed_tokens.weight");
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < t->n; i++) {
        sum += t->value[i];
        squares += (double)t->value[i] * t->value[i];
    }
    /* 32768 draws: five standard errors. */
    assert_true(fabs(sum / (double)t->n) < 5 * 0.02 / sqrt((double)t->n));
    assert_true(fabs(sqrt(squares / (double)t->n) / 0.02 - 1) < 5 / sqrt(2 * (double)t->n));
    t = tensor(&file, "model.norm.weight");
    for (int64_t i = 0; i < t->n; i++) assert_true(t->value[i] >= 0.9f && t->value[i] <= 1.1f);
    tensor_file_free(&file);
    folder_remove(folder);
}

/* bf16 keeps 8 bits of a number, f16 11 and nothing finer than 2^-24. */
static void fixtures__narrow_dtypes_are_rounded_to_nearest(void **state)
{
    (void)state;
    char *folder = folder_make();
    TensorFile full = write_and_read(folder, "full", &(Fixture){.kind = FIXTURE_MOE});
    TensorFile bf16 =
        write_and_read(folder, "bf16", &(Fixture){.kind = FIXTURE_MOE, .dtype = FIXTURE_BF16});
    TensorFile f16 =
        write_and_read(folder, "f16", &(Fixture){.kind = FIXTURE_MOE, .dtype = FIXTURE_F16});
    for (int i = 0; i < full.n; i++) {
        const FileTensor *x = &full.at[i], *b = tensor(&bf16, x->name), *h = tensor(&f16, x->name);
        assert_string_equal(b->dtype, "BF16");
        assert_string_equal(h->dtype, "F16");
        for (int64_t k = 0; k < x->n; k++) {
            double size = fabs((double)x->value[k]);
            assert_true(fabs((double)b->value[k] - x->value[k]) <= size * 0x1p-8);
            assert_true(fabs((double)h->value[k] - x->value[k]) <= size * 0x1p-11 + 0x1p-25);
        }
    }
    tensor_file_free(&full);
    tensor_file_free(&bf16);
    tensor_file_free(&f16);
    folder_remove(folder);
}

static void fixtures__margin_orders_the_routing_columns(void **state)
{
    (void)state;
    char *folder = folder_make();
    TensorFile file = write_and_read(folder, "m", &(Fixture){.kind = FIXTURE_MARGIN});
    const FileTensor *t = tensor(&file, "model.embed_tokens.weight");
    int first_largest[4] = {0};
    for (int64_t r = 0; r < t->dim[0]; r++) {
        const float *x = t->value + r * t->dim[1];
        double sum = 0, squares = 0;
        int largest = 0;
        for (int i = 0; i < 4; i++) {
            sum += x[i];
            squares += (double)x[i] * x[i];
            if (x[i] > x[largest]) largest = i;
        }
        first_largest[largest]++;
        assert_true(fabs(sum) < 1e-6 && fabs(squares - 0.05625) < 1e-6);
    }
    for (int i = 0; i < 4; i++) assert_in_range(first_largest[i], 90, 166); /* 512 / 4, 4 sigma */
    t = tensor(&file, "model.layers.3.mlp.experts.2.down_proj.weight");
    for (int i = 0; i < 4 * 32; i++) assert_true(t->value[i] == 0);
    assert_true(t->value[4 * 32] != 0);
    tensor_file_free(&file);
    folder_remove(folder);
}

/* Trained tokens of a row: labels other than -100 that are not its first. */
static void fixtures__rows_have_the_stated_counts(void **state)
{
    (void)state;
    static const struct {
        FixtureRows rows;
        int times, n, tokens, trained;
    } sets[] = {
        {FIXTURE_EQ, 1, 8, 264, 256},
        {FIXTURE_EQ, 4, 32, 1056, 1024},
        {FIXTURE_VAR, 1, 8, 352, 344},
        {FIXTURE_MASK, 1, 4, 107, 68},
    };
    char *folder = folder_make();
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const char *path = path_in(folder, "rows.jsonl");
        fixture_write_rows(path, sets[i].rows, sets[i].times, 1);
        FILE *file = fopen(path, "r");
        assert_non_null(file);
        int n = 0, tokens = 0, trained = 0;
        for (json_t *row; (row = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL));
             json_decref(row)) {
            const json_t *ids = json_object_get(row, "input_ids");
            const json_t *labels = json_object_get(row, "labels");
            n++;
            tokens += (int)json_array_size(ids);
            for (size_t t = 0; t < json_array_size(ids); t++) {
                json_int_t id = json_integer_value(json_array_get(ids, t));
                assert_true(id >= 0 && id < FIXTURE_VOCAB);
                trained +=
                    t > 0 && (!labels || json_integer_value(json_array_get(labels, t)) != -100);
            }
        }
        fclose(file);
        assert_int_equal(n, sets[i].n);
        assert_int_equal(tokens, sets[i].tokens);
        assert_int_equal(trained, sets[i].trained);
    }
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixtures__have_the_parameters_of_the_model),
        cmocka_unit_test(fixtures__values_do_not_depend_on_layout_shards_or_depth),
        cmocka_unit_test(fixtures__draws_have_the_stated_spread),
        cmocka_unit_test(fixtures__narrow_dtypes_are_rounded_to_nearest),
        cmocka_unit_test(fixtures__margin_orders_the_routing_columns),
        cmocka_unit_test(fixtures__rows_have_the_stated_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
