// Training in bf16 against f32, and what cosines do not see: gradients, router, masters that are f32 in truth.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/closeness.h"
#include "cli/command.h"

/* ---- helpers ------------------------------------------------------------------------------- */

static char *make_folder_of(const Fixture *fixture)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), fixture);
    fixture_write_rows(path_in(folder, "rows.jsonl"), FIXTURE_EQ, 1, 1);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: bf16}\n"
             "data: {train: [%s/rows.jsonl], eval: [%s/rows.jsonl], format: ids}\n"
             "train: {global_batch_size: 8, eval_interval: 2}\n"
             "loss: {balancing_alpha: 0.01}\n",
             folder, folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

static char *make_folder(FixtureKind kind)
{
    return make_folder_of(&(Fixture){.kind = kind});
}

static void probe(const char *folder, const char *batch, const char *out, const char *dtype)
{
    Arguments args = {0};
    arguments_add(&args, "%s/model", folder);
    arguments_add(&args, "--batch");
    arguments_add(&args, "%s/%s", folder, batch);
    arguments_add(&args, "--out");
    arguments_add(&args, "%s/%s", folder, out);
    arguments_add(&args, "--grads");
    add_set(&args, "model.dtype=%s", dtype);
    add_set(&args, "loss.balancing_alpha=0.01");
    assert_true(command_runs(&command_probe, &args));
}

static bool train(const char *folder, const char *out, int steps, const char *const *sets)
{
    Arguments args = {0};
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/%s", folder, out);
    add_set(&args, "train.steps=%d", steps);
    for (; sets && *sets; sets++) add_set(&args, "%s", *sets);
    return command_runs(&command_train, &args);
}

static double norm_of(const FileTensor *t)
{
    return tensor_error(t->value, t->value, t->n).reference;
}

static const FileTensor *find(const TensorFile *file, const FileTensor *like)
{
    const FileTensor *t = tensor_file_find(file, like->name);
    if (!t || t->n != like->n) fail_msg("%s: not there, or not of that size", like->name);
    return t;
}

/* ---- against f32 --------------------------------------------------------------------------- */

/* For models whose routing no rounding changes. */
static void bf16__gradients_point_where_those_of_f32_do(void **state)
{
    (void)state;
    /* The tied one's weights are bf16 already: rounding its embedding, which is the head too, moves the loss by 3e-4. */
    static const Fixture fixtures[] = {
        {.kind = FIXTURE_MARGIN},
        {.kind = FIXTURE_MARGIN, .tied = true, .dtype = FIXTURE_BF16},
        {.kind = FIXTURE_MARGIN, .mlp_only = 3, .n_layers = 6},
        {.kind = FIXTURE_DENSE}};
    int failed = 0;
    for (size_t f = 0; f < COUNT(fixtures); f++) {
        char *folder = make_folder_of(&fixtures[f]);
        probe(folder, "rows.jsonl", "f32", "f32");
        probe(folder, "rows.jsonl", "bf16", "bf16");
        double least = 1;
        failed += !close_in_bf16(folder, "bf16", "f32", &least);
        printf("  least cosine %.6f\n", least);
        assert_true(least < 1 - 1e-7); /* equal ones would mean that the key was not read */
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* ---- what is f32 in truth ------------------------------------------------------------------ */

/* Line i alone of rows.jsonl as one.jsonl. */
static void write_line(const char *folder, int i)
{
    char *text = read_text(path_in(folder, "rows.jsonl"), NULL), *line = text;
    for (; i > 0; i--) line = strchr(line, '\n') + 1;
    strchr(line, '\n')[1] = '\0';
    write_text(path_in(folder, "one.jsonl"), line);
    free(text);
}

/*
 * Eight lines of 32 trained tokens: the gradients of a line within the batch are those of the line alone divided by 8, which
 * bf16 passes unchanged. So the mean over the lines is the batch's gradient to f32 rounding, unless gradients are
 * added up in bf16.
 */
static void bf16__gradients_are_added_up_in_f32(void **state)
{
    (void)state;
    char *folder = make_folder(FIXTURE_MOE);
    probe(folder, "rows.jsonl", "all", "bf16");
    TensorFile all = read_grads(folder, "all");
    double **mean = calloc((size_t)all.n, sizeof *mean);
    for (int i = 0; i < all.n; i++) mean[i] = calloc((size_t)all.at[i].n, sizeof **mean);
    for (int line = 0; line < 8; line++) {
        write_line(folder, line);
        probe(folder, "one.jsonl", "one", "bf16");
        TensorFile one = read_grads(folder, "one");
        for (int i = 0; i < all.n; i++) {
            const FileTensor *t = find(&one, &all.at[i]);
            for (int64_t k = 0; k < t->n; k++) mean[i][k] += (double)t->value[k] / 8;
        }
        tensor_file_free(&one);
    }
    int failed = 0;
    double worst = 0;
    for (int i = 0; i < all.n; i++) {
        const FileTensor *t = &all.at[i];
        double difference = 0, norm = 0;
        for (int64_t k = 0; k < t->n; k++) {
            difference += pow((double)t->value[k] - mean[i][k], 2);
            norm += pow(mean[i][k], 2);
        }
        free(mean[i]);
        worst = fmax(worst, norm > 0 ? sqrt(difference / norm) : 0);
        if (sqrt(difference) <= 1e-6 * sqrt(norm)) continue;
        fprintf(stderr, "  %s: off by %.3g of %.3g\n", t->name, sqrt(difference), sqrt(norm));
        failed++;
    }
    printf("  worst %.2g\n", worst);
    free(mean);
    tensor_file_free(&all);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* One step of plain descent changes the f32 masters by exactly the gradient, however little that is beside a weight. */
static void bf16__a_step_moves_masters_that_are_f32(void **state)
{
    (void)state;
    const double lr = 0x1p-10;
    const char *const sets[] = {"optimizer.type=sgd",
                                "optimizer.lr=0.0009765625",
                                "lr_schedule.type=constant",
                                "lr_schedule.warmup=0",
                                "optimizer.weight_decay=0",
                                "train.max_grad_norm=0",
                                NULL};
    char *folder = make_folder(FIXTURE_MOE);
    probe(folder, "rows.jsonl", "probe", "bf16");
    assert_true(train(folder, "run", 1, sets));
    TensorFile grads = read_grads(folder, "probe"), before = read_folder(path_in(folder, "model"));
    TensorFile after = read_folder(path_in(folder, "run/checkpoints/step-000001"));
    int failed = 0, moved = 0;
    for (int i = 0; i < grads.n; i++) {
        const FileTensor *g = &grads.at[i], *w0 = find(&before, g), *w1 = find(&after, g);
        assert_string_equal(w1->dtype, "F32");
        double difference = 0;
        for (int64_t k = 0; k < g->n; k++) {
            double change = (double)w1->value[k] - (double)w0->value[k];
            difference += pow(change + lr * (double)g->value[k], 2);
            moved += change != 0;
        }
        if (sqrt(difference) <= 5e-6 * lr * norm_of(g) + 1.2e-7 * norm_of(w1)) continue;
        fprintf(stderr, "  %s: change off by %.3g of %.3g\n", g->name, sqrt(difference),
                lr * norm_of(g));
        failed++;
    }
    assert_true(moved >
                100000); /* of 150 000 weights, most by less than their last place in bf16 */
    tensor_file_free(&grads);
    tensor_file_free(&before);
    tensor_file_free(&after);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* ---- the promise of equality --------------------------------------------------------------- */

static void bf16__a_run_is_the_same_on_every_layout(void **state)
{
    (void)state;
    static const struct {
        FixtureKind kind;
        const char *form;
    } models[] = {{FIXTURE_MOE, "hf"}, {FIXTURE_TIED, "per_layer"}, {FIXTURE_DENSE_FIRST, "hf"}};
    static const Layout layouts[] = {{1, "1f1b", 0, 1, NULL, 0},
                                     {1, "gpipe", 1, 2, NULL, 0},
                                     {2, "1f1b", 0, 2, "[1,3]", 0},
                                     {3, "gpipe", 0.5, 1, NULL, 0},
                                     {4, "1f1b", 0.5, 1, NULL, 0}};
    int failed = 0;
    for (size_t m = 0; m < COUNT(models); m++) {
        char *folder = make_folder(models[m].kind);
        for (size_t i = 0; i < COUNT(layouts); i++) {
            Arguments args = {0};
            arguments_add(&args, "%s/config.yaml", folder);
            add_set(&args, "train.output=%s/run-%zu", folder, i);
            add_set(&args, "train.steps=3");
            add_set(&args, "loss.balancing_form=%s", models[m].form);
            add_layout(&args, &layouts[i]);
            bool ok =
                command_runs(&command_train, &args) &&
                (i == 0 || same_run(path_in(folder, "run-%zu", i), path_in(folder, "run-0"), 3));
            if (!ok) print_layout("bf16", &layouts[i]);
            failed += !ok;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* Eight rows by heart: what the loss falls to in f32 it falls to in bf16. */
static void bf16__learns_as_f32_does(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"model.dtype=f32", "model.dtype=bf16"};
    char *folder = make_folder(FIXTURE_MOE);
    double first[2], last[2];
    for (int i = 0; i < 2; i++) {
        const char *const sets[] = {dtypes[i], "optimizer.lr=0.003", NULL};
        assert_true(train(folder, dtypes[i], 30, sets));
        json_t *lines = read_metrics(path_in(folder, "%s/metrics.jsonl", dtypes[i]));
        first[i] = json_number_value(json_object_get(json_array_get(lines, 0), "loss/ce"));
        last[i] = json_number_value(json_object_get(json_array_get(lines, 29), "loss/ce"));
        json_decref(lines);
    }
    printf("  loss %.4f to %.4f in f32, %.4f to %.4f in bf16\n", first[0], last[0], first[1],
           last[1]);
    folder_remove(folder);
    assert_true(last[0] < first[0] - 1);
    assert_true(fabs(last[1] - last[0]) < 0.05 * (first[0] - last[0]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16__gradients_point_where_those_of_f32_do),
        cmocka_unit_test(bf16__gradients_are_added_up_in_f32),
        cmocka_unit_test(bf16__a_step_moves_masters_that_are_f32),
        cmocka_unit_test(bf16__a_run_is_the_same_on_every_layout),
        cmocka_unit_test(bf16__learns_as_f32_does),
    };
    return cmocka_run_group_tests_name("cases/bf16", tests, NULL, NULL);
}
