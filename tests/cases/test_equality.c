// A spread of layouts against the plain run, bit for bit; full_equality.c takes all of them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/equality.h"
#include "cases/schedules.h"

/* For each model and number of microbatches one layout of each pp_size and one explicit split, so that
 * all values of all axes come up in any run. */
static void equality__holds_over_a_spread_of_layouts(void **state)
{
    (void)state;
    Point points[COUNT(equality_models) * COUNT(equality_microbatches) * 5];
    unsigned draw = 20250611;
    int n = 0;
    for (size_t m = 0; m < COUNT(equality_models); m++)
        for (size_t k = 0; k < COUNT(equality_microbatches); k++)
            for (int pp = 1; pp <= 5; pp++) {
                draw = draw * 1664525u + 1013904223u;
                Layout layout = pp <= 4 ? equality_layout(12 * (pp - 1) + (int)(draw >> 16) % 12)
                                        : equality_splits[n / 5 % (int)COUNT(equality_splits)];
                points[n++] =
                    equality_point(equality_models[m].name, equality_microbatches[k], &layout);
            }
    char *folder = equality_folder();
    int failed = points_check(folder, points, n);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* SGD, a frozen part and the other reductions take other paths through the update and the loss. */
static void equality__holds_with_other_optimizers_and_losses(void **state)
{
    (void)state;
    static const char *const variants[][4] = {
        {"optimizer.type=sgd", "optimizer.lr=0.5", "loss.reduction=sample", NULL},
        {"optimizer.groups=[{match: 'model.layers.*', trainable: false}]", "loss.reduction=square",
         "train.max_grad_norm=0", NULL},
        {"optimizer.decay_1d=false", "optimizer.weight_decay=0.5", "loss.mode=full", NULL},
    };
    static const Layout layouts[] = {
        {1, "1f1b", 0, 1, NULL, 0}, {2, "gpipe", 0.5, 1, NULL, 0}, {4, "1f1b", 1, 2, NULL, 0}};
    char *folder = equality_folder();
    int failed = 0;
    for (size_t v = 0; v < COUNT(variants); v++)
        for (size_t i = 0; i < COUNT(layouts); i++) {
            Arguments args = {0};
            arguments_add(&args, "%s/config.yaml", folder);
            add_set(&args, "model.path=%s/tied", folder);
            add_set(&args, "train.output=%s/v%zu-%zu", folder, v, i);
            add_set(&args, "train.global_batch_size=3");
            for (const char *const *set = variants[v]; *set; set++) add_set(&args, "%s", *set);
            add_layout(&args, &layouts[i]);
            bool ok = command_runs(&command_train, &args) &&
                      (i == 0 || same_run(path_in(folder, "v%zu-%zu", v, i),
                                          path_in(folder, "v%zu-0", v), EQUALITY_STEPS));
            if (!ok) print_layout(variants[v][0], &layouts[i]);
            failed += !ok;
        }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Which ranks hold which stages of an 8-layer model, and in which order they work, leaves no trace. */
static void equality__holds_for_all_schedules(void **state)
{
    (void)state;
    static const int microbatches[] = {1, 2, 5, 8};
    static const Layout plain = {1, "1f1b", 0, 1, NULL, 0};
    char *folder = equality_folder();
    fixture_write_model(path_in(folder, "eight"), &(Fixture){.n_layers = 8, .tied = true});
    int failed = 0, n_probes = 0;
    for (size_t k = 0; k < COUNT(microbatches); k++) {
        int m = microbatches[k];
        equality_write_rows(path_in(folder, "batch-%d.jsonl", m), m);
        Point point = equality_point("eight", m, &plain);
        if (!point_probe(folder, "plain", &point)) fail_msg("no plain run");
        for (size_t s = 0; s < COUNT(all_schedules); s++)
            for (int pp = 1; pp <= 4; pp *= 2)
                for (int v = all_schedules[s].v_min; v <= all_schedules[s].v_max && pp * v <= 8;
                     v *= 2) {
                    if (m < all_schedules[s].mb_per_rank * pp) continue;
                    point.layout = (Layout){
                        pp, all_schedules[s].name, n_probes % 3 * 0.5, 1 + n_probes % 2, NULL, v};
                    bool ok = point_probe(folder, "other", &point) &&
                              equality_compare_probes(folder, "other", "plain");
                    if (!ok) point_print(&point);
                    failed += !ok;
                    n_probes++;
                }
    }
    printf("  %d probes\n", n_probes);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* A comparison that sees nothing would let everything pass. */
static void equality__one_bit_is_seen(void **state)
{
    (void)state;
    const Point point = equality_point("moe", 2, &(Layout){2, "1f1b", 0, 1, NULL, 0});
    char *folder = equality_folder();
    assert_true(point_produce(folder, "a", &point));
    assert_true(point_produce(folder, "b", &point));
    assert_true(equality_compare(folder, "b", "a"));
    static const struct {
        const char *path;
        long from_end;
        char by; /* the byte is changed by this */
    } changes[] = {
        {"b-probe/losses.json", 20, 1},
        {"b-probe/grads.safetensors", 4000, 1},
        {"b-run/checkpoints/step-000005/model.safetensors", 4004, 1},
        {"b-run/checkpoints/step-000005/exp_avg/model.safetensors", 4, 1},
        {"b-run/checkpoints/step-000005/exp_avg_sq/model.safetensors", 400, 1},
        {"b-run/hf/final/model-00002-of-00002.safetensors", 4, 1},
    };
    printf("  the differences that follow are meant to be seen\n");
    fflush(stdout);
    for (size_t i = 0; i < COUNT(changes); i++)
        for (int back = 0; back < 2; back++) {
            FILE *file = fopen(path_in(folder, "%s", changes[i].path), "r+");
            assert_non_null(file);
            fseek(file, -changes[i].from_end, SEEK_END);
            int byte = fgetc(file);
            fseek(file, -changes[i].from_end, SEEK_END);
            fputc(byte ^ changes[i].by, file);
            fclose(file);
            assert_int_equal(equality_compare(folder, "b", "a"), back);
        }
    char *text = read_text(path_in(folder, "b-run/metrics.jsonl"), NULL);
    char *norm = strstr(text, "\"grad_norm\": ");
    norm[strlen("\"grad_norm\": 1.2345")] ^= 1; /* a digit for its neighbour */
    write_text(path_in(folder, "b-run/metrics.jsonl"), text);
    free(text);
    assert_false(equality_compare(folder, "b", "a"));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equality__one_bit_is_seen),
        cmocka_unit_test(equality__holds_over_a_spread_of_layouts),
        cmocka_unit_test(equality__holds_for_all_schedules),
        cmocka_unit_test(equality__holds_with_other_optimizers_and_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
