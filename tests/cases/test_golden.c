// The program against tests/golden: what transformers computes in double precision for tiny models.
// Tolerances are those the values were made for: an f32 program that sums in another order stays
// below them by a factor of 3 to 20, the smallest error of a wrong one is 50 times above.
#include "cases/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#define GOLDEN SW_SOURCE_DIR "/tests/golden"
enum { LIMIT_S = 120 };

static json_t *manifest;

static int load_manifest(void **state)
{
    (void)state;
    manifest = json_load_file(GOLDEN "/manifest.json", 0, NULL);
    return manifest ? 0 : -1;
}

static int free_manifest(void **state)
{
    (void)state;
    json_decref(manifest);
    return 0;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text) fail_msg("manifest: no %s", key);
    return text;
}

static json_t *read_json(const char *path)
{
    json_error_t error;
    json_t *value = json_load_file(path, 0, &error);
    if (!value) fail_msg("%s: line %d: %s", path, error.line, error.text);
    return value;
}

static void add_settings(Arguments *args, const json_t *set)
{
    size_t i;
    json_t *item;
    json_array_foreach(set, i, item)
    {
        arguments_add(args, "--set");
        arguments_add(args, "%s", json_string_value(item));
    }
}

/* Runs the program and frees the arguments; shows its messages unless it ends with 0. */
static bool run_ok(Arguments *args, const char *folder)
{
    int status = program_run(SW_PROGRAM, args, folder, LIMIT_S);
    if (status != 0) {
        fprintf(stderr, "  exit %d:", status);
        for (int i = 0; i < args->n; i++) fprintf(stderr, " %s", args->at[i]);
        fputc('\n', stderr);
        file_show(path_in(folder, "err.txt"));
    }
    arguments_free(args);
    return status == 0;
}

/* The probe of a case into folder/out; `more` is another --set or NULL. */
static bool probe(const json_t *golden, const char *reduction, const char *folder, const char *out,
                  const char *more)
{
    Arguments args = {0};
    arguments_add(&args, "probe");
    arguments_add(&args, "%s/%s", GOLDEN, text_of(golden, "model"));
    arguments_add(&args, "--batch");
    arguments_add(&args, "%s/%s", GOLDEN, text_of(golden, "batch"));
    arguments_add(&args, "--out");
    arguments_add(&args, "%s/%s", folder, out);
    arguments_add(&args, "--logits");
    arguments_add(&args, "--grads");
    add_settings(&args, json_object_get(golden, "set"));
    arguments_add(&args, "--set");
    arguments_add(&args, "loss.reduction=%s", reduction);
    if (more) {
        arguments_add(&args, "--set");
        arguments_add(&args, "%s", more);
    }
    return run_ok(&args, folder);
}

/* |got - want| <= tol |want|; a golden null wants null, a golden 0 wants 0 or null (what is turned
 * off does not apply). Returns the relative error, infinity for a wrong kind. */
static double number_error(const json_t *got, const json_t *want)
{
    if (json_is_null(want)) return json_is_null(got) ? 0 : INFINITY;
    double x = json_number_value(want);
    if (x == 0 && json_is_null(got)) return 0;
    if (!json_is_number(got)) return INFINITY;
    double error = fabs(json_number_value(got) - x);
    return x == 0 ? (error == 0 ? 0 : INFINITY) : error / fabs(x);
}

static bool losses_agree(const json_t *got, const json_t *want, const char *name)
{
    static const char *const keys[] = {"ce", "balancing", "balancing_raw",
                                       "z",  "total",     "grad_norm"};
    static const char *const exact[] = {"tokens_per_expert", "trained_tokens"};
    bool ok = true;
    for (size_t k = 0; k < sizeof exact / sizeof *exact; k++) {
        const json_t *a = json_object_get(got, exact[k]), *b = json_object_get(want, exact[k]);
        if (a && json_equal(a, b)) continue;
        char *text = json_dumps(a ? a : json_null(), JSON_COMPACT | JSON_ENCODE_ANY);
        char *wanted = json_dumps(b, JSON_COMPACT | JSON_ENCODE_ANY);
        fprintf(stderr, "  %s: %s is %s, expected %s\n", name, exact[k], text, wanted);
        free(text);
        free(wanted);
        ok = false;
    }
    double worst = 0;
    const char *worst_key = keys[0];
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        double error = number_error(json_object_get(got, keys[k]), json_object_get(want, keys[k]));
        if (!(error <= 1e-6)) {
            fprintf(stderr, "  %s: %s is %.9g, expected %.9g\n", name, keys[k],
                    json_number_value(json_object_get(got, keys[k])),
                    json_number_value(json_object_get(want, keys[k])));
            ok = false;
        }
        if (error > worst) worst = error, worst_key = keys[k];
    }
    printf("  %-34s worst %.1e (%s)\n", name, worst, worst_key);
    return ok;
}

static void golden__losses_of_every_reduction(void **state)
{
    (void)state;
    int failed = 0;
    size_t i;
    json_t *golden;
    json_array_foreach(json_object_get(manifest, "cases"), i, golden)
    {
        const char *name = text_of(golden, "name"), *reduction;
        json_t *all = read_json(path_in(GOLDEN, "%s/losses.json", name)), *want;
        json_object_foreach(all, reduction, want)
        {
            char label[128];
            snprintf(label, sizeof label, "%s, %s", name, reduction);
            char *folder = folder_make();
            if (probe(golden, reduction, folder, "probe", NULL)) {
                json_t *got = read_json(path_in(folder, "probe/losses.json"));
                failed += !losses_agree(got, want, label);
                json_decref(got);
            } else {
                failed++;
            }
            folder_remove(folder);
        }
        json_decref(all);
    }
    assert_int_equal(failed, 0);
}

/* Tolerance of a gradient by its name. */
static double gradient_tolerance(const char *name)
{
    static const char *const narrow[] = {"embed_tokens", "lm_head", "model.norm", "q_proj",
                                         "k_proj",       "v_proj",  "o_proj"};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++)
        if (strstr(name, narrow[i])) return 5e-6;
    return 1e-5;
}

static bool same_shape(const FileTensor *a, const FileTensor *b)
{
    return a->n_dims == b->n_dims &&
           memcmp(a->dim, b->dim, (size_t)a->n_dims * sizeof a->dim[0]) == 0;
}

typedef double (*Measure)(const FileTensor *got, const FileTensor *want, double norm_of_all);

/* Error of a gradient in units of what is allowed. A reference of zero must be met exactly. */
static double measure_gradient(const FileTensor *got, const FileTensor *want, double norm_of_all)
{
    TensorError error = tensor_error(got->value, want->value, want->n);
    if (error.reference == 0) return error.worst == 0 ? 0 : INFINITY;
    return error.difference /
           (gradient_tolerance(want->name) * error.reference + 1e-9 * norm_of_all);
}

static double measure_logits(const FileTensor *got, const FileTensor *want, double norm_of_all)
{
    (void)norm_of_all;
    TensorError error = tensor_error(got->value, want->value, want->n);
    return error.worst / (1e-5 * error.largest);
}

/* Both files hold the same tensors, and none is off by more than allowed. */
static bool tensors_agree(const char *path, const char *golden_path, Measure measure,
                          const char *what)
{
    TensorFile got, want;
    if (!tensor_file_read(&want, golden_path)) fail_msg("%s is missing", golden_path);
    if (!tensor_file_read(&got, path)) {
        tensor_file_free(&want);
        return false;
    }
    bool ok = got.n == want.n;
    if (!ok) fprintf(stderr, "  %s: %d tensors, expected %d\n", what, got.n, want.n);
    double norm_of_all = 0, worst = 0;
    for (int i = 0; i < want.n; i++) {
        TensorError size = tensor_error(want.at[i].value, want.at[i].value, want.at[i].n);
        norm_of_all += size.reference * size.reference;
    }
    const char *worst_name = "";
    for (int i = 0; i < want.n; i++) {
        const FileTensor *w = &want.at[i], *g = tensor_file_find(&got, w->name);
        if (!g || !same_shape(g, w) || strcmp(g->dtype, "F32") != 0) {
            fprintf(stderr, "  %s: %s: %s\n", what, w->name,
                    !g ? "missing" : "not the expected shape or not F32");
            ok = false;
            continue;
        }
        double error = measure(g, w, sqrt(norm_of_all));
        if (!(error <= 1)) {
            TensorError e = tensor_error(g->value, w->value, w->n);
            fprintf(stderr, "  %s: %s: off by %.2e of %.2e; worst at %lld: %.9g, expected %.9g\n",
                    what, w->name, e.difference, e.reference, (long long)e.worst_at,
                    (double)e.worst_got, (double)e.worst_want);
            ok = false;
        }
        if (!(error <= worst)) worst = error, worst_name = w->name;
    }
    printf("  %-34s worst %.3f of what is allowed (%s)\n", what, worst, worst_name);
    tensor_file_free(&got);
    tensor_file_free(&want);
    return ok;
}

static void golden__logits_and_gradients(void **state)
{
    (void)state;
    int failed = 0;
    size_t i;
    json_t *golden;
    json_array_foreach(json_object_get(manifest, "cases"), i, golden)
    {
        const char *name = text_of(golden, "name");
        char *folder = folder_make(), label[128];
        if (probe(golden, text_of(golden, "reduction"), folder, "probe", NULL)) {
            snprintf(label, sizeof label, "%s, logits", name);
            failed += !tensors_agree(path_in(folder, "probe/logits.safetensors"),
                                     path_in(GOLDEN, "%s/logits.safetensors", name), measure_logits,
                                     label);
            snprintf(label, sizeof label, "%s, gradients", name);
            failed += !tensors_agree(path_in(folder, "probe/grads.safetensors"),
                                     path_in(GOLDEN, "%s/grads.safetensors", name),
                                     measure_gradient, label);
        } else {
            failed++;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

static void golden__two_stages_write_the_same_bytes(void **state)
{
    (void)state;
    static const char *const files[] = {"losses.json", "logits.safetensors", "grads.safetensors"};
    int failed = 0;
    size_t i;
    json_t *golden;
    json_array_foreach(json_object_get(manifest, "cases"), i, golden)
    {
        const char *name = text_of(golden, "name"), *reduction = text_of(golden, "reduction");
        if (strcmp(name, "dense_defaults") == 0) continue; /* one layer */
        char *folder = folder_make();
        if (!probe(golden, reduction, folder, "pp1", NULL) ||
            !probe(golden, reduction, folder, "pp2", "parallel.pp_size=2"))
            failed++;
        else
            for (size_t f = 0; f < sizeof files / sizeof *files; f++)
                if (!files_equal(path_in(folder, "pp1/%s", files[f]),
                                 path_in(folder, "pp2/%s", files[f]))) {
                    fprintf(stderr, "  %s: %s differs with pp_size 2\n", name, files[f]);
                    failed++;
                }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* ---- training ------------------------------------------------------------------------------ */

static bool train(const json_t *golden, const char *folder)
{
    const char *config = path_in(folder, "config.yaml");
    FILE *file = fopen(config, "w");
    assert_non_null(file);
    fprintf(file, "model: {path: %s/%s}\ndata: {train: [%s/%s]}\ntrain: {output: %s/run}\n", GOLDEN,
            text_of(golden, "model"), GOLDEN, text_of(golden, "batch"), folder);
    fclose(file);
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s", config);
    add_settings(&args, json_object_get(golden, "set"));
    add_settings(&args, json_object_get(json_object_get(golden, "train"), "set"));
    arguments_add(&args, "--set");
    arguments_add(&args, "loss.reduction=%s", text_of(golden, "reduction"));
    return run_ok(&args, folder);
}

/* Each line of metrics.jsonl against the golden lists. Over 20 steps the library's own f32 drifts from
 * double by 5e-7 (loss), 5e-6 (grad norm) and 7e-6 (balancing, where routing is sharp). */
static bool metrics_agree(const char *path, const json_t *want, const char *name)
{
    static const struct {
        const char *key, *golden;
        double tol;
    } rows[] = {
        {"loss/total", "total", 5e-6},
        {"loss/ce", "ce", 5e-6},
        {"loss/balancing", "balancing", 1e-4},
        {"loss/z", "z", 1e-4},
        {"grad_norm", "grad_norm", 5e-5},
        {"lr", "lr", 1e-11},
        {"router/max_violation", "max_violation", 1e-9},
    };
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "  %s: no %s\n", name, path);
        return false;
    }
    size_t steps = json_array_size(json_object_get(want, "total")), n = 0;
    bool ok = true;
    double worst = 0, worst_norm = 0;
    for (json_t *line; (line = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL)); n++) {
        ok = ok && json_integer_value(json_object_get(line, "step")) == (json_int_t)n + 1;
        for (size_t k = 0; k < sizeof rows / sizeof *rows && n < steps; k++) {
            const json_t *x = json_array_get(json_object_get(want, rows[k].golden), n);
            const json_t *y = json_object_get(line, rows[k].key);
            double error = y ? number_error(y, x) : INFINITY;
            if (!(error <= rows[k].tol)) {
                fprintf(stderr, "  %s: step %zu: %s is %.12g, expected %.12g\n", name, n + 1,
                        rows[k].key, json_number_value(y), json_number_value(x));
                ok = false;
            }
            if (k == 0) worst = fmax(worst, error);
            if (strcmp(rows[k].key, "grad_norm") == 0) worst_norm = fmax(worst_norm, error);
        }
        json_decref(line);
    }
    fclose(file);
    if (n != steps) fprintf(stderr, "  %s: %zu steps, expected %zu\n", name, n, steps);
    printf("  %-34s worst loss %.1e, grad norm %.1e\n", name, worst, worst_norm);
    return ok && n == steps;
}

/* The exported weights changed as much as the reference's. A step may round each weight by half a
 * unit of its last place, which is much where it only decays. */
static bool changes_agree(const char *exported, const char *source, const json_t *change,
                          const char *name)
{
    TensorFile before, after;
    if (!tensor_folder_read(&before, source)) fail_msg("%s is missing", source);
    if (!tensor_folder_read(&after, exported)) {
        tensor_file_free(&before);
        return false;
    }
    bool ok = after.n == before.n && (size_t)after.n == json_object_size(change);
    if (!ok) fprintf(stderr, "  %s: %d tensors exported, %d in source\n", name, after.n, before.n);
    for (int i = 0; i < before.n; i++) {
        const FileTensor *b = &before.at[i], *a = tensor_file_find(&after, b->name);
        if (!a || !same_shape(a, b) || strcmp(a->dtype, b->dtype) != 0) {
            fprintf(stderr, "  %s: %s: not in the export as in the source\n", name, b->name);
            ok = false;
            continue;
        }
        TensorError e = tensor_error(a->value, b->value, b->n);
        double want = json_number_value(json_object_get(change, b->name));
        if (!(fabs(e.difference - want) <= 1e-4 * want + 20 * 6e-8 * e.reference)) {
            fprintf(stderr, "  %s: %s changed by %.9g, expected %.9g\n", name, b->name,
                    e.difference, want);
            ok = false;
        }
    }
    tensor_file_free(&before);
    tensor_file_free(&after);
    return ok;
}

static void golden__twenty_steps(void **state)
{
    (void)state;
    int failed = 0;
    size_t i;
    json_t *golden;
    json_array_foreach(json_object_get(manifest, "cases"), i, golden)
    {
        const json_t *training = json_object_get(golden, "train");
        if (json_is_null(training)) continue;
        const char *name = text_of(golden, "name");
        json_t *want = read_json(path_in(GOLDEN, "%s", text_of(training, "file")));
        char *folder = folder_make();
        if (train(golden, folder)) {
            failed += !metrics_agree(path_in(folder, "run/metrics.jsonl"), want, name);
            failed += !changes_agree(path_in(folder, "run/hf/final"),
                                     path_in(GOLDEN, "%s", text_of(golden, "model")),
                                     json_object_get(want, "change"), name);
        } else {
            failed++;
        }
        folder_remove(folder);
        json_decref(want);
    }
    assert_int_equal(failed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden__losses_of_every_reduction),
        cmocka_unit_test(golden__logits_and_gradients),
        cmocka_unit_test(golden__two_stages_write_the_same_bytes),
        cmocka_unit_test(golden__twenty_steps),
    };
    return cmocka_run_group_tests(tests, load_manifest, free_manifest);
}
