// What users of other trainers ran into, as trials of ours: scale of gradients under a pipeline, stages
// without experts, the balancing loss, layers that do not divide, few microbatches, means of means.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/closeness.h"
#include "data/batch.h"

#include <math.h>

static const char *const schedules[] = {"gpipe", "1f1b"};

/* ---- helpers ------------------------------------------------------------------------------- */

/* `stagewright probe folder/model` on folder/BATCH into folder/OUT, in a process of its own. */
static bool probe(const char *folder, const char *batch, const char *out, int pp,
                  const char *schedule, const char *const *sets)
{
    Arguments args = {0};
    arguments_add(&args, "probe");
    arguments_add(&args, "%s/model", folder);
    arguments_add(&args, "--batch");
    arguments_add(&args, "%s/%s", folder, batch);
    arguments_add(&args, "--out");
    arguments_add(&args, "%s/%s", folder, out);
    arguments_add(&args, "--grads");
    add_set(&args, "parallel.pp_size=%d", pp);
    add_set(&args, "parallel.schedule=%s", schedule);
    add_set(&args, "train.threads=1");
    add_set(&args, "model.dtype=f32");
    for (; sets && *sets; sets++) add_set(&args, "%s", *sets);
    return program_ends(&args, folder, 0);
}

static bool same_probe(const char *folder, const char *out, const char *want)
{
    char own[600], other[600];
    snprintf(own, sizeof own, "%s/%s", folder, out);
    snprintf(other, sizeof other, "%s/%s", folder, want);
    bool ok = files_equal(path_in(own, "losses.json"), path_in(other, "losses.json"));
    if (!ok) {
        fprintf(stderr, "  %s and %s: losses.json differ\n", out, want);
        file_show(path_in(own, "losses.json"));
        file_show(path_in(other, "losses.json"));
    }
    return same_safetensors(path_in(own, "grads.safetensors"),
                            path_in(other, "grads.safetensors")) &&
           ok;
}

/* config.yaml for `stagewright train` on folder/model and folder/rows.jsonl. */
static void write_config(const char *folder)
{
    char text[1024];
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], format: ids}\n"
             "train: {threads: 1}\n"
             "lr_schedule: {type: constant, warmup: 0}\n",
             folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
}

static void train_arguments(Arguments *args, const char *folder, const char *out, int pp,
                            const char *schedule, const char *const *sets)
{
    arguments_add(args, "train");
    arguments_add(args, "%s/config.yaml", folder);
    add_set(args, "train.output=%s/%s", folder, out);
    add_set(args, "parallel.pp_size=%d", pp);
    add_set(args, "parallel.schedule=%s", schedule);
    for (; *sets; sets++) add_set(args, "%s", *sets);
}

static bool train(const char *folder, const char *out, int pp, const char *schedule,
                  const char *const *sets)
{
    Arguments args = {0};
    train_arguments(&args, folder, out, pp, schedule, sets);
    return program_ends(&args, folder, 0);
}

static char *make_folder(const Fixture *fixture, FixtureRows rows, int times)
{
    char *folder = folder_make();
    fixture_write_model(path_in(folder, "model"), fixture);
    fixture_write_rows(path_in(folder, "rows.jsonl"), rows, times, 1);
    write_config(folder);
    return folder;
}

/* Line `i` alone of folder/FROM, as folder/TO. */
static void write_line(const char *folder, const char *from, int i, const char *to)
{
    char *text = read_text(path_in(folder, "%s", from), NULL), *line = text;
    for (; i > 0; i--) line = strchr(line, '\n') + 1;
    strchr(line, '\n')[1] = '\0';
    write_text(path_in(folder, "%s", to), line);
    free(text);
}

/* ---- P01: the scale of gradients ----------------------------------------------------------- */

/* With lr 0 the norm printed by each step is that of the probe of its rows, on every layout. */
static void scale__norms_are_the_same_on_every_layout(void **state)
{
    (void)state;
    const char *const sets[] = {"optimizer.lr=0", "train.steps=2", NULL};
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 1);
    assert_true(probe(folder, "rows.jsonl", "probe", 1, "1f1b", NULL));
    json_t *losses = read_json(path_in(folder, "probe/losses.json"));
    assert_int_equal(number(losses, "trained_tokens"), 344);
    int failed = 0;
    for (int pp = 1; pp <= 4; pp++)
        for (size_t s = 0; s < COUNT(schedules); s++) {
            char run[32];
            snprintf(run, sizeof run, "run-%d-%s", pp, schedules[s]);
            assert_true(train(folder, run, pp, schedules[s], sets));
            json_t *metrics = read_metrics(path_in(folder, "%s/metrics.jsonl", run));
            for (size_t step = 0; step < 2; step++) { /* the same rows, in another order */
                double norm = number(json_array_get(metrics, step), "grad_norm");
                double want = number(losses, "grad_norm");
                if (fabs(norm - want) <= 1e-6 * want) continue;
                fprintf(stderr, "  %s: norm %.9g, expected %.9g\n", run, norm, want);
                failed++;
            }
            json_decref(metrics);
            if (pp > 1 || s)
                failed += !same_run(path_in(folder, "%s", run), path_in(folder, "run-1-gpipe"), 2);
        }
    json_decref(losses);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* One step of SGD with lr 1 changes each weight by minus its gradient. */
static void scale__one_step_of_sgd_is_minus_the_gradient(void **state)
{
    (void)state;
    const char *const sets[] = {
        "optimizer.type=sgd",    "optimizer.lr=1", "optimizer.weight_decay=0",
        "train.max_grad_norm=0", "train.steps=1",  NULL};
    static const Fixture fixtures[] = {
        {.kind = FIXTURE_MOE}, {.kind = FIXTURE_TIED}, {.kind = FIXTURE_DENSE_FIRST}};
    int failed = 0;
    for (size_t f = 0; f < COUNT(fixtures); f++) {
        char *folder = make_folder(&fixtures[f], FIXTURE_VAR, 1);
        assert_true(probe(folder, "rows.jsonl", "probe", 1, "1f1b", NULL));
        TensorFile grads = read_file(path_in(folder, "probe/grads.safetensors"));
        TensorFile minus = read_file(path_in(folder, "probe/grads.safetensors"));
        add_scaled(&minus, &grads, -2);
        TensorFile before = read_folder(path_in(folder, "model"));
        for (int pp = 1; pp <= 4; pp++) {
            char run[16];
            snprintf(run, sizeof run, "run%d", pp);
            assert_true(train(folder, run, pp, schedules[pp % 2], sets));
            TensorFile after = read_folder(path_in(folder, "%s/hf/final", run));
            TensorFile change = read_folder(path_in(folder, "%s/hf/final", run));
            add_scaled(&change, &before, -1);
            bool ok = close_tensors(&change, &minus, &after);
            ok =
                (pp == 1 || same_run(path_in(folder, "%s", run), path_in(folder, "run1"), 1)) && ok;
            if (!ok) fprintf(stderr, "  fixture %zu, pp %d\n", f, pp);
            failed += !ok;
            tensor_file_free(&after);
            tensor_file_free(&change);
        }
        tensor_file_free(&grads);
        tensor_file_free(&minus);
        tensor_file_free(&before);
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
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR, 1);
    assert_true(probe(folder, "rows.jsonl", "all", 2, "1f1b", sets));
    TensorFile all = read_file(path_in(folder, "all/grads.safetensors")), mean = {0};
    double ce = 0, tokens = 0;
    for (int i = 0; i < 8; i++) {
        write_line(folder, "rows.jsonl", i, "one.jsonl");
        assert_true(probe(folder, "one.jsonl", "one", 1, "1f1b", sets));
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

/* ---- P04: stages without experts ----------------------------------------------------------- */

static void experts__stages_may_have_none(void **state)
{
    (void)state;
    static const struct {
        Fixture fixture;
        int pp, n_moe;
    } rows[] = {
        {{.kind = FIXTURE_DENSE_FIRST}, 2, 2},
        {{.kind = FIXTURE_MOE, .mlp_only = 1u << 2 | 1u << 3}, 2, 2},
        {{.kind = FIXTURE_MOE, .mlp_only = 1u << 1 | 1u << 2}, 4, 2},
        {{.kind = FIXTURE_MOE, .mlp_only = 7}, 4, 1},
        {{.kind = FIXTURE_DENSE}, 4, 0},
    };
    const char *const sets[] = {"train.steps=3", "loss.balancing_alpha=0.01", NULL};
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder = make_folder(&rows[i].fixture, FIXTURE_EQ, 1);
        assert_true(train(folder, "plain", 1, "1f1b", sets));
        json_t *metrics = read_metrics(path_in(folder, "plain/metrics.jsonl"));
        assert_int_equal(json_array_size(metrics), 3);
        for (size_t step = 0; step < 3; step++) {
            const json_t *line = json_array_get(metrics, step);
            if (rows[i].n_moe == 0) {
                assert_true(json_is_null(json_object_get(line, "loss/balancing")));
                assert_true(json_is_null(json_object_get(line, "router/max_violation")));
            } else { /* nearly even routing: alpha per MoE layer */
                double balancing = number(line, "loss/balancing"), even = 0.01 * rows[i].n_moe;
                assert_true(balancing >= even * 0.99 && balancing < even * 1.3);
            }
        }
        json_decref(metrics);
        for (size_t s = 0; s < COUNT(schedules); s++) {
            char run[16];
            snprintf(run, sizeof run, "run%zu", s);
            bool ok = train(folder, run, rows[i].pp, schedules[s], sets) &&
                      same_run(path_in(folder, "%s", run), path_in(folder, "plain"), 3);
            if (!ok) fprintf(stderr, "  row %zu, %s\n", i, schedules[s]);
            failed += !ok;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* ---- P06: the balancing loss --------------------------------------------------------------- */

static void balancing__does_not_grow_with_the_pipeline(void **state)
{
    (void)state;
    static const struct {
        const char *form;
        double even; /* routing: 0.01 for each of 8 layers; 0.01 for each of K experts */
    } rows[] = {{"loss.balancing_form=per_layer", 0.08}, {"loss.balancing_form=hf", 0.02}};
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = 8}, FIXTURE_EQ, 1);
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *const sets[] = {"loss.balancing_alpha=0.01", rows[i].form, NULL};
        char plain[32], out[32];
        snprintf(plain, sizeof plain, "probe%zu-1-gpipe", i);
        for (int pp = 1; pp <= 4; pp *= 2)
            for (size_t s = 0; s < COUNT(schedules); s++) {
                snprintf(out, sizeof out, "probe%zu-%d-%s", i, pp, schedules[s]);
                failed += !(probe(folder, "rows.jsonl", out, pp, schedules[s], sets) &&
                            same_probe(folder, out, plain));
            }
        json_t *losses = read_json(path_in(folder, "%s/losses.json", out));
        double balancing = number(losses, "balancing"), raw = number(losses, "balancing_raw");
        assert_true(balancing > rows[i].even && balancing < 1.25 * rows[i].even);
        assert_true(fabs(balancing - 0.01 * raw) <= 1e-15);
        assert_true(number(losses, "total") ==
                    number(losses, "ce") + balancing + number(losses, "z"));
        json_decref(losses);
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/*
 * The fixture's logits are 8·(0.2, 0.1, 0, 0) for every token and layer, all tokens go to experts 0 and
 * 1. Per layer E/K·sum_e f_e·P_e with f = (1, 1, 0, 0) is 2·(p_0 + p_1) = 1.564, and the gradient at
 * gate[e,0] is alpha·8·2·p_e·((e < 2) - (p_0 + p_1)) up to the norm's 1e-3. All four layers together: f and
 * P are the same, E·sum_e f_e·P_e is half of four times that, and so is each gradient.
 */
static int router_fixture(const char *folder, int pp, const char *form, double share)
{
    static const double want[4] = {0.18812, 0.0845, -0.1363, -0.1363};
    int failed = 0;
    char low[16], high[16];
    snprintf(low, sizeof low, "low%d", pp);
    snprintf(high, sizeof high, "high%d", pp);
    assert_true(probe(folder, "rows.jsonl", low, pp, "1f1b",
                      (const char *const[]){"loss.balancing_alpha=0.01", form, NULL}));
    assert_true(probe(folder, "rows.jsonl", high, pp, "gpipe",
                      (const char *const[]){"loss.balancing_alpha=0.1", form, NULL}));
    json_t *losses = read_json(path_in(folder, "%s/losses.json", low));
    double balancing = share * 0.06256;
    assert_true(fabs(number(losses, "balancing") - balancing) <= 1e-3 * balancing);
    json_t *counts = json_object_get(losses, "tokens_per_expert"), *count;
    const char *layer;
    json_object_foreach(counts, layer, count)
    {
        json_t *expected = json_pack("[i,i,i,i]", 264, 264, 0, 0);
        assert_true(json_equal(count, expected));
        json_decref(expected);
    }
    json_decref(losses);
    TensorFile grads = read_file(path_in(folder, "%s/grads.safetensors", high));
    for (int l = 0; l < 4; l++) {
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        const FileTensor *gate = tensor_file_find(&grads, name);
        assert_non_null(gate);
        for (int e = 0; e < 4; e++) {
            double got = gate->value[e * FIXTURE_HIDDEN];
            if (fabs(got - share * want[e]) <= 1e-3 * fabs(share * want[e])) continue;
            fprintf(stderr, "  pp %d, %s, layer %d: gate[%d,0] %.6g, expected %.6g\n", pp, form, l,
                    e, got, share * want[e]);
            failed++;
        }
        /* Experts that got no token get no gradient at all. */
        static const char *const projections[] = {"gate", "up", "down"};
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.2.%s_proj.weight", l,
                     projections[p]);
            const FileTensor *t = tensor_file_find(&grads, name);
            assert_non_null(t);
            assert_true(tensor_error(t->value, t->value, t->n).reference == 0);
        }
    }
    tensor_file_free(&grads);
    if (pp > 1) {
        failed += !same_probe(folder, low, "low1");
        failed += !same_probe(folder, high, "high1");
    }
    return failed;
}

static void balancing__router_fixture_gives_the_numbers_worked_out_by_hand(void **state)
{
    (void)state;
    static const struct {
        const char *form;
        double share;
    } rows[] = {{"loss.balancing_form=per_layer", 1}, {"loss.balancing_form=hf", 0.5}};
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder = make_folder(&(Fixture){.kind = FIXTURE_ROUTER}, FIXTURE_EQ, 1);
        for (int pp = 1; pp <= 4; pp++)
            failed += router_fixture(folder, pp, rows[i].form, rows[i].share);
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* ---- P12: layers that do not divide -------------------------------------------------------- */

/* The numbers of a split such as (3+2) in the log add up to n, and there are pp of them. */
static bool split_adds_up(const char *log, int n, int pp)
{
    const char *at = strchr(strstr(log, " layers (") ? strstr(log, " layers (") : "", '(');
    int sum = 0, parts = 0;
    while (at && (*at == '(' || *at == '+')) {
        char *end;
        sum += (int)strtol(at + 1, &end, 10);
        at = end;
        parts++;
    }
    if (sum != n || parts != pp)
        fprintf(stderr, "  %d stages of %d layers in the log, expected %d of %d\n", parts, sum, pp,
                n);
    return sum == n && parts == pp;
}

static void layers__each_runs_exactly_once(void **state)
{
    (void)state;
    static const int depths[] = {5, 7, 10};
    static const char *const explicit_splits[][2] = {
        /* pp 2, pp 3 */
        {"[4,1]", "[1,1,3]"},
        {"[2,5]", "[3,1,3]"},
        {"[9,1]", "[2,6,2]"},
    };
    const char *const sets[] = {"train.steps=1", "optimizer.lr=0", NULL};
    int failed = 0;
    for (size_t d = 0; d < COUNT(depths); d++) {
        char *folder =
            make_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = depths[d]}, FIXTURE_EQ, 1);
        assert_true(train(folder, "plain", 1, "1f1b", sets));
        assert_true(same_tensors(path_in(folder, "plain/hf/final"), path_in(folder, "model")));
        for (int pp = 2; pp <= 5; pp++) {
            bool given = pp == 5; /* the last two rounds: explicit splits for 2 and 3 */
            for (int s = 0; s < 2; s++) {
                int size = given ? s + 2 : pp;
                char run[32], split[64];
                snprintf(run, sizeof run, "run-%d-%d", pp, s);
                snprintf(split, sizeof split, "parallel.layer_split=%s",
                         given ? explicit_splits[d][s] : "null");
                const char *const own[] = {sets[0], sets[1], split, NULL};
                bool ok = train(folder, run, size, schedules[s], own);
                char *log = read_text(path_in(folder, "err.txt"), NULL);
                ok = ok && split_adds_up(log, depths[d], size) &&
                     same_run(path_in(folder, "%s", run), path_in(folder, "plain"), 1) &&
                     same_tensors(path_in(folder, "%s/hf/final", run), path_in(folder, "model"));
                free(log);
                if (!ok) fprintf(stderr, "  %d layers, %s, %s\n", depths[d], run, split);
                failed += !ok;
            }
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

static void layers__splits_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        int layers, pp;
        const char *split, *key, *number, *other;
    } rows[] = {
        {3, 4, "null", "parallel.pp_size", "4", "3"},
        {5, 2, "[2,2]", "parallel.layer_split", "4", "5"},
        {5, 2, "[3,3]", "parallel.layer_split", "6", "5"},
        {5, 3, "[2,3]", "parallel.layer_split", "2", "3"},
        {5, 2, "[2,2,1]", "parallel.layer_split", "3", "2"},
        {5, 2, "[5,0]", "parallel.layer_split", "0", "1"},
        {5, 2, "[6,-1]", "parallel.layer_split", "-1", "1"},
        {5, 2, "[]", "parallel.layer_split", "[]", "1"},
        {5, 1, "[4]", "parallel.layer_split", "4", "5"},
    };
    int failed = 0;
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder =
            make_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = rows[i].layers}, FIXTURE_EQ, 1);
        char split[64];
        snprintf(split, sizeof split, "parallel.layer_split=%s", rows[i].split);
        Arguments args = {0};
        train_arguments(&args, folder, "run", rows[i].pp, "1f1b",
                        (const char *const[]){split, "train.steps=1", NULL});
        failed +=
            !program_refuses(&args, folder, WORDS(rows[i].key, rows[i].number, rows[i].other));
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* ---- P13: fewer microbatches than stages --------------------------------------------------- */

static void microbatches__any_number_runs(void **state)
{
    (void)state;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE, .n_layers = 8}, FIXTURE_EQ, 2);
    char *text = read_text(path_in(folder, "rows.jsonl"), NULL);
    int failed = 0;
    for (int m = 1; m <= 11; m++) {
        char *end = text, kept, batch[32];
        for (int line = 0; line < m; line++) end = strchr(end, '\n') + 1;
        kept = *end;
        *end = '\0';
        snprintf(batch, sizeof batch, "rows%d.jsonl", m);
        write_text(path_in(folder, "%s", batch), text);
        *end = kept;
        assert_true(probe(folder, batch, "plain", 1, "1f1b", NULL));
        for (size_t s = 0; s < COUNT(schedules); s++) {
            bool ok = probe(folder, batch, "piped", 4, schedules[s], NULL) &&
                      same_probe(folder, "piped", "plain");
            if (!ok) fprintf(stderr, "  %d microbatches, %s\n", m, schedules[s]);
            failed += !ok;
        }
    }
    free(text);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* ---- P16: the mean over tokens ------------------------------------------------------------- */

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
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_MASK, 1);
    double ce = 0, mean_of_means = 0;
    for (int i = 0; i < 4; i++) {
        write_line(folder, "rows.jsonl", i, "one.jsonl");
        assert_true(probe(folder, "one.jsonl", "one", 1, "1f1b", sets));
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
            assert_true(probe(folder, "packed.jsonl", out, pp, "1f1b", sets));
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
        cmocka_unit_test(experts__stages_may_have_none),
        cmocka_unit_test(balancing__does_not_grow_with_the_pipeline),
        cmocka_unit_test(balancing__router_fixture_gives_the_numbers_worked_out_by_hand),
        cmocka_unit_test(layers__each_runs_exactly_once),
        cmocka_unit_test(layers__splits_that_cannot_be_are_refused),
        cmocka_unit_test(microbatches__any_number_runs),
        cmocka_unit_test(mean__of_2_tokens_at_4_and_62_at_6_is_5_9375),
        cmocka_unit_test(mean__is_over_tokens_however_rows_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
