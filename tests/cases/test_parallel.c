/*
 * Data parallelism: what one rank computes, ranks that share out the rows compute too, to the rounding of other sums; and
 * with the same number of them, bit for bit whatever else is chosen (numerics.md 12 and 13).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/closeness.h"
#include "cases/launched.h"
#include "cli/command.h"

/** How rows and layers are spread. */
typedef struct Spread {
    int dp, zero, pp;
    const char *schedule;
    double recompute;
    int threads;
} Spread;

static void add_spread(Arguments *args, const Spread *s)
{
    add_set(args, "parallel.dp_size=%d", s->dp);
    add_set(args, "parallel.zero_stage=%d", s->zero);
    add_layout(args, &(Layout){.pp = s->pp,
                               .schedule = s->schedule,
                               .recompute = s->recompute,
                               .threads = s->threads ? s->threads : 1});
}

static void print_spread(const Spread *s)
{
    fprintf(stderr, "  dp %d, zero %d, pp %d, %s, recompute %g, %d threads\n", s->dp, s->zero,
            s->pp, s->schedule, s->recompute, s->threads);
}

static char *make_folder(FixtureKind kind, FixtureRows rows, int times)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), &(Fixture){.kind = kind});
    fixture_write_rows(path_in(folder, "rows.jsonl"), rows, times, 1);
    fixture_write_rows(path_in(folder, "eval.jsonl"), FIXTURE_VAR, 1, 5);
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], eval: [%s/eval.jsonl], format: ids}\n"
             "train: {steps: 5, eval_interval: 2}\n"
             "lr_schedule: {type: constant, warmup: 0}\n",
             folder, folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

static void add_probe(Arguments *args, const char *folder, const char *batch, const char *out,
                      const Spread *spread, const char *const *sets)
{
    arguments_add(args, "%s/model", folder);
    arguments_add(args, "--batch");
    arguments_add(args, "%s/%s", folder, batch);
    arguments_add(args, "--out");
    arguments_add(args, "%s/%s", folder, out);
    arguments_add(args, "--grads");
    arguments_add(args, "--logits");
    add_set(args, "model.dtype=f32");
    add_spread(args, spread);
    for (; sets && *sets; sets++) add_set(args, "%s", *sets);
}

/** Probe of folder/BATCH into folder/OUT; `sets` ends with NULL, or is NULL. */
static bool probe(const char *folder, const char *batch, const char *out, const Spread *spread,
                  const char *const *sets)
{
    Arguments args = {0};
    add_probe(&args, folder, batch, out, spread, sets);
    return command_runs(&command_probe, &args);
}

/** The same by processes of an MPI, one for each rank. */
static void probe_launched(const char *folder, const char *out, const Spread *spread)
{
    Arguments args = {0};
    add_launch(&args, spread->dp * spread->pp, SW_PROGRAM);
    arguments_add(&args, "probe");
    add_probe(&args, folder, "rows.jsonl", out, spread, NULL);
    launch_ends(&args, folder, 0, NULL);
}

static bool train(const char *folder, const char *out, const Spread *spread,
                  const char *const *sets)
{
    Arguments args = {0};
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/%s", folder, out);
    add_spread(&args, spread);
    for (; sets && *sets; sets++)
        if (strcmp(*sets, "--resume") == 0)
            arguments_add(&args, "--resume");
        else
            add_set(&args, "%s", *sets);
    return command_runs(&command_train, &args);
}

static bool same_probe(const char *folder, const char *out, const char *want)
{
    static const char *const files[] = {"losses.json", "grads.safetensors", "logits.safetensors"};
    bool ok = true;
    for (size_t i = 0; i < COUNT(files); i++) {
        char own[600], other[600];
        snprintf(own, sizeof own, "%s/%s/%s", folder, out, files[i]);
        snprintf(other, sizeof other, "%s/%s/%s", folder, want, files[i]);
        if (files_equal(own, other)) continue;
        fprintf(stderr, "  %s differs from %s\n", own, other);
        ok = false;
    }
    return ok;
}

static json_t *read_losses(const char *folder, const char *out)
{
    return read_json(path_in(folder, "%s/losses.json", out));
}

/* Counts first: one token that went another way explains all that follows. */
static bool close_losses(const char *folder, const char *out, const char *want)
{
    static const char *const keys[] = {"ce", "balancing", "balancing_raw",
                                       "z",  "total",     "grad_norm"};
    json_t *got = read_losses(folder, out), *wanted = read_losses(folder, want);
    bool ok = json_equal(json_object_get(got, "tokens_per_expert"),
                         json_object_get(wanted, "tokens_per_expert")) &&
              json_equal(json_object_get(got, "trained_tokens"),
                         json_object_get(wanted, "trained_tokens"));
    if (!ok) fprintf(stderr, "  %s: other counts than %s\n", out, want);
    for (size_t i = 0; i < COUNT(keys) && ok; i++) {
        double a = number(got, keys[i]), b = number(wanted, keys[i]);
        if (fabs(a - b) <= 1e-6 * fabs(b)) continue;
        fprintf(stderr, "  %s: %s %.17g, expected %.17g\n", out, keys[i], a, b);
        ok = false;
    }
    json_decref(got);
    json_decref(wanted);
    return ok;
}

static TensorFile read_grads(const char *folder, const char *out)
{
    return read_file(path_in(folder, "%s/grads.safetensors", out));
}

static bool close_probe(const char *folder, const char *out, const char *want)
{
    if (!close_losses(folder, out, want)) return false;
    TensorFile got = read_grads(folder, out), wanted = read_grads(folder, want);
    bool ok = close_tensors(&got, &wanted, NULL);
    tensor_file_free(&got);
    tensor_file_free(&wanted);
    return ok;
}

static const Spread one = {1, 0, 1, "1f1b", 0, 1};

/* ---- gradients ----------------------------------------------------------------------------- */

static int probe_grid(const char *folder, const char *const *sets)
{
    static const char *const schedules[] = {"1f1b", "gpipe", "zbv", "interleaved"};
    int failed = 0, n = 0;
    assert_true(probe(folder, "rows.jsonl", "one", &one, sets));
    for (int dp = 2; dp <= 8; dp *= 2) {
        char first[32] = "";
        for (int pp = 1; pp <= 4; pp *= 2)
            for (int zero = 0; zero <= 1; zero++, n++) {
                /* The models have four layers. */
                Spread s = {dp, zero, pp, schedules[n % (pp == 4 ? 2 : 4)], n % 3 * 0.5, 1 + n % 2};
                char out[32];
                snprintf(out, sizeof out, "dp%d-pp%d-zero%d", dp, pp, zero);
                bool ok = probe(folder, "rows.jsonl", out, &s, sets);
                if (ok && !first[0]) {
                    snprintf(first, sizeof first, "%s", out);
                    ok = close_probe(folder, out, "one");
                } else if (ok) {
                    ok = same_probe(folder, out, first);
                }
                if (!ok) print_spread(&s);
                failed += !ok;
            }
    }
    return failed;
}

static void parallel__gradients_are_those_of_one_rank(void **state)
{
    (void)state;
    static const FixtureKind kinds[] = {FIXTURE_MOE, FIXTURE_TIED};
    static const char *const sets[2][4] = {
        {"loss.balancing_alpha=0.01", "loss.z_alpha=0.001", NULL},
        {"loss.balancing_alpha=0.01", "loss.balancing_form=hf", "loss.reduction=sample", NULL}};
    int failed = 0;
    for (size_t k = 0; k < COUNT(kinds); k++) {
        char *folder = make_folder(kinds[k], FIXTURE_VAR, 1);
        failed += probe_grid(folder, sets[k]);
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* The mean is over the trained tokens of all rows, not over ranks: they have 2, 2, 60 and 4. */
static void parallel__the_mean_is_over_tokens_of_all_ranks(void **state)
{
    (void)state;
    static const char *const sets[] = {"loss.balancing_alpha=0", NULL};
    char *folder = make_folder(FIXTURE_MOE, FIXTURE_MASK, 1);
    assert_true(probe(folder, "rows.jsonl", "one", &one, sets));
    int failed = 0;
    for (int dp = 2; dp <= 4; dp *= 2)
        for (int pp = 1; pp <= 2; pp++) {
            Spread s = {dp, pp - 1, pp, "1f1b", 0, 1};
            char out[32];
            snprintf(out, sizeof out, "dp%d-pp%d", dp, pp);
            bool ok = probe(folder, "rows.jsonl", out, &s, sets) && close_probe(folder, out, "one");
            if (!ok) print_spread(&s);
            failed += !ok;
        }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void write_untrained(const char *path, int n_rows, int n_untrained)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < n_rows; i++) {
        int n = 3 + 4 * i;
        fprintf(file, "{\"input_ids\": [");
        for (int t = 0; t < n; t++)
            fprintf(file, "%s%d", t ? ", " : "", (7 * t * t + 31 * i) % 512);
        fprintf(file, "]");
        if (i < n_untrained) {
            fprintf(file, ", \"labels\": [");
            for (int t = 0; t < n; t++) fprintf(file, "%s-100", t ? ", " : "");
            fprintf(file, "]");
        }
        fprintf(file, "}\n");
    }
    fclose(file);
}

/* All rows of a rank, or of all ranks, hold nothing to learn. */
static void parallel__ranks_may_have_nothing_to_learn(void **state)
{
    (void)state;
    char *folder = make_folder(FIXTURE_MOE, FIXTURE_EQ, 1);
    static const Spread spread = {4, 1, 2, "1f1b", 0, 1};
    for (int untrained = 3; untrained <= 4; untrained++) {
        write_untrained(path_in(folder, "few.jsonl"), 4, untrained);
        assert_true(probe(folder, "few.jsonl", "one", &one, NULL));
        assert_true(probe(folder, "few.jsonl", "many", &spread, NULL));
        assert_true(close_probe(folder, "many", "one"));
        if (untrained < 4) continue;
        json_t *losses = read_losses(folder, "many");
        assert_true(number(losses, "grad_norm") == 0);
        json_decref(losses);
    }
    char rows[600];
    snprintf(rows, sizeof rows, "data.train=[%s]", path_in(folder, "few.jsonl"));
    const char *const sets[] = {rows, "train.global_batch_size=4", "train.steps=2", NULL};
    assert_true(train(folder, "run", &spread, sets));
    json_t *metrics = read_metrics(path_in(folder, "run/metrics.jsonl"));
    assert_int_equal(json_integer_value(json_object_get(json_array_get(metrics, 1), "skipped")), 2);
    json_decref(metrics);
    folder_remove(folder);
}

/* Lines `count` by `count` as one, a sample each. */
static void pack_lines(const char *folder, const char *from, const char *to, int count)
{
    FILE *in = fopen(path_in(folder, "%s", from), "r"),
         *out = fopen(path_in(folder, "%s", to), "w");
    assert_true(in && out);
    json_t *line, *ids = json_array(), *borders = json_pack("[i]", 0);
    while ((line = json_loadf(in, JSON_DISABLE_EOF_CHECK, NULL))) {
        json_array_extend(ids, json_object_get(line, "input_ids"));
        json_array_append_new(borders, json_integer((json_int_t)json_array_size(ids)));
        json_decref(line);
        if ((int)json_array_size(borders) <= count) continue;
        line = json_pack("{so so}", "input_ids", ids, "cu_seqlens", borders);
        json_dumpf(line, out, JSON_COMPACT);
        fputc('\n', out);
        json_decref(line);
        ids = json_array();
        borders = json_pack("[i]", 0);
    }
    json_decref(ids);
    json_decref(borders);
    fclose(in);
    fclose(out);
}

/* Counted together, the rows of dp ranks are balanced as one row that holds them all. */
static void parallel__balancing_of_scope_global_is_that_of_packed_rows(void **state)
{
    (void)state;
    static const char *const forms[] = {"loss.balancing_form=per_layer", "loss.balancing_form=hf"};
    char *folder = make_folder(FIXTURE_MOE, FIXTURE_VAR, 1);
    int failed = 0;
    for (int dp = 2; dp <= 4; dp *= 2)
        for (size_t f = 0; f < COUNT(forms); f++) {
            const char *const sets[] = {"loss.balancing_alpha=0.1", "loss.balancing_scope=global",
                                        forms[f], NULL};
            pack_lines(folder, "rows.jsonl", "packed.jsonl", dp);
            assert_true(probe(folder, "packed.jsonl", "packed", &one, sets));
            static const Spread layouts[] = {
                {0, 0, 1, "1f1b", 0, 1}, {0, 1, 2, "zbv", 0.5, 2}, {0, 0, 4, "gpipe", 1, 1}};
            for (size_t i = 0; i < COUNT(layouts); i++) {
                Spread s = layouts[i];
                s.dp = dp;
                char out[32];
                snprintf(out, sizeof out, "scope%zu", i);
                bool ok = probe(folder, "rows.jsonl", out, &s, sets);
                ok = ok && (i == 0 ? close_probe(folder, out, "packed")
                                   : same_probe(folder, out, "scope0"));
                if (!ok) print_spread(&s);
                failed += !ok;
            }
            /* and another number than that of each row by itself */
            const char *const by_row[] = {"loss.balancing_alpha=0.1", forms[f], NULL};
            assert_true(probe(folder, "rows.jsonl", "row", &one, by_row));
            json_t *row = read_losses(folder, "row"), *packed = read_losses(folder, "packed");
            double apart = number(row, "balancing") / number(packed, "balancing") - 1;
            if (fabs(apart) < 1e-5) fail_msg("dp %d: off by %g only", dp, apart);
            json_decref(row);
            json_decref(packed);
        }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/*
 * Of FIXTURE_ROUTER the gradient of the balancing loss is known (test_cases.c): at gate[e,0] alpha·8·2·p_e·((e < 2) - (p_0 +
 * p_1)) in every layer, however many ranks the rows are on.
 */
static void parallel__the_routers_gradient_is_the_one_worked_out_by_hand(void **state)
{
    (void)state;
    static const double want[4] = {0.18812, 0.0845, -0.1363, -0.1363};
    static const char *const sets[] = {"loss.balancing_alpha=0.1", NULL};
    static const Spread spreads[] = {{2, 1, 2, "1f1b", 0, 1}, {8, 0, 1, "gpipe", 0, 1}};
    char *folder = make_folder(FIXTURE_ROUTER, FIXTURE_EQ, 1), name[64];
    for (size_t i = 0; i < COUNT(spreads); i++) {
        assert_true(probe(folder, "rows.jsonl", "probe", &spreads[i], sets));
        TensorFile grads = read_grads(folder, "probe");
        for (int l = 0; l < 4; l++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
            const FileTensor *gate = tensor_file_find(&grads, name);
            assert_non_null(gate);
            for (int e = 0; e < 4; e++) {
                double got = gate->value[e * FIXTURE_HIDDEN];
                if (fabs(got - want[e]) > 1e-3 * fabs(want[e]))
                    fail_msg("dp %d, layer %d: gate[%d,0] %.6g, expected %.6g", spreads[i].dp, l, e,
                             got, want[e]);
            }
        }
        tensor_file_free(&grads);
    }
    folder_remove(folder);
}

static void parallel__processes_give_the_files_of_threads(void **state)
{
    (void)state;
#ifndef SW_MPI
    skip();
#endif
    static const Spread spreads[] = {{4, 1, 1, "1f1b", 0, 1}, {2, 0, 2, "zbv", 0.5, 1}};
    char *folder = make_folder(FIXTURE_TIED, FIXTURE_VAR, 1);
    for (size_t i = 0; i < COUNT(spreads); i++) {
        assert_true(probe(folder, "rows.jsonl", "threads", &spreads[i], NULL));
        probe_launched(folder, "processes", &spreads[i]);
        assert_true(same_probe(folder, "processes", "threads"));
    }
    folder_remove(folder);
}

/* ---- runs ---------------------------------------------------------------------------------- */

static void parallel__runs_are_the_same_bits_in_any_layout_of_dp_ranks(void **state)
{
    (void)state;
    static const Spread spreads[] = {
        {2, 0, 1, "1f1b", 0, 1},  {2, 1, 1, "1f1b", 0, 2},   {2, 1, 2, "zbv", 0.5, 1},
        {2, 0, 2, "gpipe", 1, 1}, {2, 1, 4, "1f1b", 0.5, 1},
    };
    static const char *const variants[][4] = {
        {"loss.balancing_alpha=0.01", NULL},
        {"model.dtype=bf16", "optimizer.decay_1d=false", NULL},
        {"optimizer.type=sgd", "optimizer.lr=0.5",
         "optimizer.groups=[{match: 'model.layers.1.*', trainable: false}]", NULL},
    };
    char *folder = make_folder(FIXTURE_TIED, FIXTURE_VAR, 2);
    int failed = 0;
    for (size_t v = 0; v < COUNT(variants); v++)
        for (size_t i = 0; i < COUNT(spreads); i++) {
            char out[600], want[600];
            snprintf(out, sizeof out, "run%zu-%zu", v, i);
            bool ok = train(folder, out, &spreads[i], variants[v]);
            snprintf(out, sizeof out, "%s/run%zu-%zu", folder, v, i);
            snprintf(want, sizeof want, "%s/run%zu-0", folder, v);
            ok = ok && (i == 0 || same_run(out, want, 5));
            if (!ok) print_spread(&spreads[i]);
            failed += !ok;
        }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void parallel__two_runs_are_the_same(void **state)
{
    (void)state;
    static const Spread spread = {4, 1, 2, "1f1b", 0, 1};
    static const char *const sets[] = {"train.steps=20", "optimizer.lr=0.01", NULL};
    char *folder = make_folder(FIXTURE_MOE, FIXTURE_VAR, 2), own[600];
    assert_true(train(folder, "a", &spread, sets));
    assert_true(train(folder, "b", &spread, sets));
    snprintf(own, sizeof own, "%s/a", folder);
    assert_true(same_run(own, path_in(folder, "b"), 20));
    folder_remove(folder);
}

/* Tokens are counted once, by whichever ranks they are computed; each rank says what memory it took. */
static void parallel__a_step_is_told_once(void **state)
{
    (void)state;
    static const Spread many = {4, 1, 2, "1f1b", 0, 1};
    static const char *const counts[] = {"step", "tokens", "trained_tokens", "epoch", "lr"};
    char *folder = make_folder(FIXTURE_MOE, FIXTURE_VAR, 2);
    assert_true(train(folder, "one", &one, NULL));
    assert_true(train(folder, "many", &many, NULL));
    json_t *want = read_metrics(path_in(folder, "one/metrics.jsonl")),
           *got = read_metrics(path_in(folder, "many/metrics.jsonl"));
    assert_int_equal(json_array_size(got), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *line = json_array_get(got, i), *wanted = json_array_get(want, i);
        for (size_t k = 0; k < COUNT(counts); k++)
            if (!json_equal(json_object_get(line, counts[k]), json_object_get(wanted, counts[k])))
                fail_msg("step %zu: other %s", i + 1, counts[k]);
        assert_int_equal(json_array_size(json_object_get(line, "memory/peak_bytes")), 8);
        double loss = json_number_value(json_object_get(line, "eval/loss")),
               wanted_loss = json_number_value(json_object_get(wanted, "eval/loss"));
        assert_true(fabs(loss - wanted_loss) <= 1e-6 * wanted_loss);
    }
    json_decref(want);
    json_decref(got);
    folder_remove(folder);
}

static TensorFile change_of(const char *folder, const char *out, const TensorFile *before)
{
    TensorFile after = read_folder(path_in(folder, "%s/hf/final", out));
    for (int i = 0; i < after.n; i++) {
        const FileTensor *b = tensor_file_find(before, after.at[i].name);
        for (int64_t k = 0; k < b->n; k++) after.at[i].value[k] -= b->value[k];
    }
    return after;
}

/* With clipping or Adam, gradients that are dp times too large would give the same update. */
static void parallel__one_step_of_sgd_changes_the_weights_as_on_one_rank(void **state)
{
    (void)state;
    static const char *const sets[] = {"optimizer.type=sgd",
                                       "optimizer.lr=1",
                                       "optimizer.weight_decay=0",
                                       "train.max_grad_norm=0",
                                       "train.steps=1",
                                       "checkpoint.hf_dtype=f32",
                                       "data.eval=[]",
                                       NULL};
    static const Spread spreads[] = {
        {2, 0, 1, "1f1b", 0, 1}, {4, 1, 2, "gpipe", 0, 1}, {8, 1, 1, "1f1b", 0, 1}};
    char *folder = make_folder(FIXTURE_MOE, FIXTURE_VAR, 1);
    TensorFile before = read_folder(path_in(folder, "model"));
    assert_true(train(folder, "one", &one, sets));
    TensorFile want = change_of(folder, "one", &before);
    int failed = 0;
    for (size_t i = 0; i < COUNT(spreads); i++) {
        char out[32];
        snprintf(out, sizeof out, "run%zu", i);
        assert_true(train(folder, out, &spreads[i], sets));
        TensorFile got = change_of(folder, out, &before);
        bool ok = close_tensors(&got, &want, &before);
        if (!ok) print_spread(&spreads[i]);
        failed += !ok;
        tensor_file_free(&got);
    }
    tensor_file_free(&before);
    tensor_file_free(&want);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* ---- files --------------------------------------------------------------------------------- */

/* A checkpoint is the same whoever wrote it, and whoever reads it. */
static void parallel__a_run_goes_on_in_any_layout(void **state)
{
    (void)state;
    static const Spread whole = {2, 0, 1, "1f1b", 0, 1}, first = {2, 1, 2, "1f1b", 0, 1};
    static const Spread then[] = {{2, 0, 4, "gpipe", 0, 1}, {2, 1, 1, "1f1b", 0.5, 1}};
    static const char *const three[] = {"train.steps=3", NULL}, *const go_on[] = {"--resume",
                                                                                  "train.steps=5",
                                                                                  NULL};
    char *folder = make_folder(FIXTURE_TIED, FIXTURE_VAR, 2);
    char want[600], out[600];
    int failed = 0;
    assert_true(train(folder, "whole", &whole, NULL));
    snprintf(want, sizeof want, "%s/whole", folder);
    for (size_t i = 0; i < COUNT(then); i++) {
        snprintf(out, sizeof out, "parts%zu", i);
        assert_true(train(folder, out, &first, three));
        assert_true(train(folder, out, &then[i], go_on));
        snprintf(out, sizeof out, "%s/parts%zu", folder, i);
        bool ok = same_weights(path_in(out, "hf/final"), path_in(want, "hf/final"));
        for (int k = 0; k < 2; k++) {
            const char *moment = k ? "exp_avg_sq" : "exp_avg";
            char own[700], other[700];
            snprintf(own, sizeof own, "%s/checkpoints/step-000005/%s", out, moment);
            snprintf(other, sizeof other, "%s/checkpoints/step-000005/%s", want, moment);
            ok = same_weights(own, other) && ok;
        }
        if (!ok) print_spread(&then[i]);
        failed += !ok;
    }
    /* Other numbers of data-parallel ranks: each goes on to the same, to rounding. */
    static const Spread others[] = {{1, 0, 1, "1f1b", 0, 1}, {4, 1, 1, "1f1b", 0, 1}};
    static const char *const calm[] = {"--resume", "train.steps=5", "optimizer.eps=1e-3", NULL};
    static const char *const calm_three[] = {"train.steps=3", "optimizer.eps=1e-3", NULL};
    TensorFile before, got[2];
    for (int i = 0; i < 2; i++) {
        snprintf(out, sizeof out, "other%d", i);
        assert_true(train(folder, out, &first, calm_three));
        before = read_folder(path_in(folder, "%s/hf/final", out));
        assert_true(train(folder, out, &others[i], calm));
        got[i] = change_of(folder, out, &before);
        if (i == 0) tensor_file_free(&before);
    }
    failed += !close_tensors(&got[1], &got[0], &before);
    tensor_file_free(&before);
    for (int i = 0; i < 2; i++) tensor_file_free(&got[i]);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

static void parallel__no_step_exports_the_very_model(void **state)
{
    (void)state;
    static const char *const sets[] = {"train.steps=0", NULL};
    static const Spread spreads[] = {{4, 1, 1, "1f1b", 0, 1}, {2, 1, 2, "1f1b", 0, 1}};
    static const FixtureKind kinds[] = {FIXTURE_MOE, FIXTURE_TIED};
    for (size_t i = 0; i < COUNT(spreads); i++) {
        char *folder = make_folder(kinds[i], FIXTURE_EQ, 1), own[600];
        assert_true(train(folder, "run", &spreads[i], sets));
        snprintf(own, sizeof own, "%s/run/hf/final", folder);
        assert_true(same_tensors(own, path_in(folder, "model")));
        assert_true(train(folder, "one", &one, sets));
        assert_true(same_weights(own, path_in(folder, "one/hf/final")));
        assert_true(files_equal(path_in(own, "config.json"), path_in(folder, "model/config.json")));
        folder_remove(folder);
    }
}

/* ---- refusals ------------------------------------------------------------------------------ */

static void parallel__rows_must_divide_among_ranks(void **state)
{
    (void)state;
    char *folder = make_folder(FIXTURE_MOE, FIXTURE_EQ, 1);
    Arguments args = {0};
    arguments_add(&args, "train");
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/run", folder);
    add_set(&args, "parallel.dp_size=3");
    assert_true(program_refuses(
        &args, folder, WORDS("train.global_batch_size", "parallel.dp_size (found 8 and 3)")));
    arguments_add(&args, "probe");
    arguments_add(&args, "%s/model", folder);
    arguments_add(&args, "--batch");
    arguments_add(&args, "%s/rows.jsonl", folder);
    arguments_add(&args, "--out");
    arguments_add(&args, "%s/out", folder);
    add_set(&args, "parallel.dp_size=5");
    assert_true(
        program_refuses(&args, folder, WORDS("rows.jsonl", "parallel.dp_size (found 8 and 5)")));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parallel__gradients_are_those_of_one_rank),
        cmocka_unit_test(parallel__the_mean_is_over_tokens_of_all_ranks),
        cmocka_unit_test(parallel__ranks_may_have_nothing_to_learn),
        cmocka_unit_test(parallel__the_routers_gradient_is_the_one_worked_out_by_hand),
        cmocka_unit_test(parallel__processes_give_the_files_of_threads),
        cmocka_unit_test(parallel__balancing_of_scope_global_is_that_of_packed_rows),
        cmocka_unit_test(parallel__runs_are_the_same_bits_in_any_layout_of_dp_ranks),
        cmocka_unit_test(parallel__two_runs_are_the_same),
        cmocka_unit_test(parallel__a_step_is_told_once),
        cmocka_unit_test(parallel__one_step_of_sgd_changes_the_weights_as_on_one_rank),
        cmocka_unit_test(parallel__a_run_goes_on_in_any_layout),
        cmocka_unit_test(parallel__no_step_exports_the_very_model),
        cmocka_unit_test(parallel__rows_must_divide_among_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
