// Experts shared out over ranks, by the program's own files: gradients, steps, exports and bits against one rank.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases/closeness.h"
#include "cli/command.h"

/* ---- helpers ------------------------------------------------------------------------------- */

typedef struct Spread {
    int dp, ep;
    Layout layout;
    int zero;
} Spread;

static const Spread one_rank = {1, 1, {1, "1f1b", 0, 1, NULL, 0}, 0};

static void add_spread(Arguments *args, const Spread *s)
{
    add_layout(args, &s->layout);
    add_set(args, "parallel.dp_size=%d", s->dp);
    add_set(args, "parallel.ep_size=%d", s->ep);
    add_set(args, "parallel.zero_stage=%d", s->zero);
}

static void print_spread(const char *what, const Spread *s)
{
    fprintf(stderr, "  dp %d, ep %d, zero %d:", s->dp, s->ep, s->zero);
    print_layout(what, &s->layout);
}

static bool probe(const char *folder, const char *out, const Spread *s, const char *const *sets)
{
    Arguments args = {0};
    arguments_add(&args, "%s/model", folder);
    arguments_add(&args, "--batch");
    arguments_add(&args, "%s/rows.jsonl", folder);
    arguments_add(&args, "--out");
    arguments_add(&args, "%s/%s", folder, out);
    arguments_add(&args, "--grads");
    add_set(&args, "model.dtype=f32");
    add_set(&args, "loss.balancing_alpha=0.01");
    add_set(&args, "loss.z_alpha=0.001");
    add_spread(&args, s);
    for (; sets && *sets; sets++) add_set(&args, "%s", *sets);
    return command_runs(&command_probe, &args);
}

static bool train(const char *folder, const char *out, const Spread *s, const char *const *sets)
{
    Arguments args = {0};
    arguments_add(&args, "%s/config.yaml", folder);
    add_set(&args, "train.output=%s/%s", folder, out);
    add_spread(&args, s);
    for (; *sets; sets++) add_set(&args, "%s", *sets);
    return command_runs(&command_train, &args);
}

static char *make_folder(const Fixture *fixture, FixtureRows rows)
{
    char *folder = folder_make(), text[1024];
    fixture_write_model(path_in(folder, "model"), fixture);
    fixture_write_rows(path_in(folder, "rows.jsonl"), rows, 1, 1);
    fixture_write_rows(path_in(folder, "eval.jsonl"), FIXTURE_MASK, 1,
                       2); /* four: with dp 8 too few */
    snprintf(text, sizeof text,
             "model: {path: %s/model, dtype: f32}\n"
             "data: {train: [%s/rows.jsonl], eval: [%s/eval.jsonl], format: ids}\n"
             "train: {global_batch_size: 8, eval_interval: 1}\n"
             "loss: {balancing_alpha: 0.01}\n"
             "lr_schedule: {type: constant, warmup: 0}\n",
             folder, folder, folder);
    write_text(path_in(folder, "config.yaml"), text);
    return folder;
}

static bool close_number(const json_t *got, const json_t *want, const char *key)
{
    double g = number(got, key), w = number(want, key);
    if (fabs(g - w) <= 1e-6 * fabs(w)) return true;
    fprintf(stderr, "  %s: %.12g, expected %.12g\n", key, g, w);
    return false;
}

/* Losses and gradients to rounding; decisions of the router exactly. */
static bool close_probe(const char *folder, const char *out, const char *want_out)
{
    static const char *const keys[] = {"ce", "balancing", "balancing_raw",
                                       "z",  "total",     "grad_norm"};
    json_t *got = read_json(path_in(folder, "%s/losses.json", out));
    json_t *want = read_json(path_in(folder, "%s/losses.json", want_out));
    bool ok = json_equal(json_object_get(got, "tokens_per_expert"),
                         json_object_get(want, "tokens_per_expert"));
    if (!ok) fprintf(stderr, "  tokens of experts differ\n");
    for (size_t k = 0; k < COUNT(keys); k++) ok = close_number(got, want, keys[k]) && ok;
    json_decref(got);
    json_decref(want);
    TensorFile grads = read_file(path_in(folder, "%s/grads.safetensors", out));
    TensorFile wanted = read_file(path_in(folder, "%s/grads.safetensors", want_out));
    ok = close_tensors(&grads, &wanted, NULL) && ok;
    tensor_file_free(&grads);
    tensor_file_free(&wanted);
    return ok;
}

static bool same_probe(const char *folder, const char *out, const char *want)
{
    char own[600];
    snprintf(own, sizeof own, "%s", path_in(folder, "%s/losses.json", out));
    bool ok = files_equal(own, path_in(folder, "%s/losses.json", want));
    if (!ok) fprintf(stderr, "  losses.json differs\n");
    snprintf(own, sizeof own, "%s", path_in(folder, "%s/grads.safetensors", out));
    return same_safetensors(own, path_in(folder, "%s/grads.safetensors", want)) && ok;
}

// clang-format off
static const Spread spreads[] = {
    {2, 2, {1, "1f1b", 0, 1, NULL, 0}, 0},        {4, 2, {1, "gpipe", 0.5, 1, NULL, 0}, 0},
    {4, 4, {1, "1f1b", 1, 2, NULL, 0}, 1},        {8, 4, {1, "1f1b", 0, 1, NULL, 0}, 1},
    {2, 2, {2, "1f1b", 0.5, 1, NULL, 0}, 1},      {4, 2, {2, "1f1b", 0, 1, NULL, 0}, 0},
    {2, 2, {2, "interleaved", 0, 1, NULL, 2}, 0}, {2, 2, {2, "zbv", 0, 1, NULL, 0}, 1},
    {2, 1, {1, "1f1b", 0, 1, NULL, 0}, 0},        {4, 1, {2, "zb_h1", 0, 1, NULL, 0}, 1},
};
// clang-format on

/* ---- P08: the scale of experts' gradients -------------------------------------------------- */

static void experts__gradients_are_those_of_one_rank(void **state)
{
    (void)state;
    static const struct {
        Fixture fixture;
        FixtureRows rows;
        int n_rows;
    } models[] = {
        {{.kind = FIXTURE_MOE}, FIXTURE_EQ, 8},
        {{.kind = FIXTURE_DENSE_FIRST, .fused = true}, FIXTURE_VAR, 8},
        {{.kind = FIXTURE_TIED}, FIXTURE_VAR, 8},
        {{.kind = FIXTURE_MOE}, FIXTURE_MASK, 4}}; /* P16: 2, 2, 60 and 4 trained tokens */
    int failed = 0;
    for (size_t m = 0; m < COUNT(models); m++) {
        char *folder = make_folder(&models[m].fixture, models[m].rows);
        assert_true(probe(folder, "one", &one_rank, NULL));
        for (size_t i = 0; i < COUNT(spreads); i++) {
            if (models[m].n_rows % spreads[i].dp) continue;
            bool ok =
                probe(folder, "many", &spreads[i], NULL) && close_probe(folder, "many", "one");
            if (!ok) print_spread("probe", &spreads[i]);
            failed += !ok;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

static bool close_metrics(const char *folder, const char *run, const char *want_run)
{
    static const char *const keys[] = {"loss/total", "loss/balancing",       "grad_norm",
                                       "tokens",     "router/max_violation", "eval/loss"};
    json_t *got = read_metrics(path_in(folder, "%s/metrics.jsonl", run));
    json_t *want = read_metrics(path_in(folder, "%s/metrics.jsonl", want_run));
    bool ok = true;
    for (size_t k = 0; k < COUNT(keys); k++)
        ok = close_number(json_array_get(got, 0), json_array_get(want, 0), keys[k]) && ok;
    json_decref(got);
    json_decref(want);
    return ok;
}

/* The balancing loss over the rows of all ranks depends on dp, and on nothing else. */
static void experts__balancing_over_ranks_does_not_depend_on_ep(void **state)
{
    (void)state;
    static const Spread without = {4, 1, {1, "1f1b", 0, 1, NULL, 0}, 0};
    static const Spread with[] = {{4, 2, {1, "1f1b", 0.5, 1, NULL, 0}, 0},
                                  {4, 4, {2, "zbv", 0, 1, NULL, 0}, 1}};
    const char *const sets[] = {"loss.balancing_scope=global", NULL};
    int failed = 0;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR);
    assert_true(probe(folder, "without", &without, sets));
    for (size_t i = 0; i < COUNT(with); i++) {
        bool ok = probe(folder, "with", &with[i], sets) && close_probe(folder, "with", "without");
        if (!ok) print_spread("scope global", &with[i]);
        failed += !ok;
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* One step of SGD with lr 1 and no clipping changes each exported weight by minus the gradient of one rank. */
static void experts__a_step_is_that_of_one_rank(void **state)
{
    (void)state;
    const char *const sets[] = {
        "optimizer.type=sgd",    "optimizer.lr=1", "optimizer.weight_decay=0",
        "train.max_grad_norm=0", "train.steps=1",  NULL};
    int failed = 0;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR);
    assert_true(probe(folder, "one", &one_rank, (const char *const[]){"loss.z_alpha=0", NULL}));
    TensorFile grads = read_file(path_in(folder, "one/grads.safetensors"));
    TensorFile minus = read_file(path_in(folder, "one/grads.safetensors"));
    add_scaled(&minus, &grads, -2);
    TensorFile before = read_folder(path_in(folder, "model"));
    assert_true(train(folder, "run", &one_rank, sets));
    for (size_t i = 0; i < COUNT(spreads); i++) {
        char run[16];
        snprintf(run, sizeof run, "run%zu", i);
        bool ok = train(folder, run, &spreads[i], sets) && close_metrics(folder, run, "run");
        TensorFile after = read_folder(path_in(folder, "%s/hf/final", run));
        TensorFile change = read_folder(path_in(folder, "%s/hf/final", run));
        add_scaled(&change, &before, -1);
        ok = close_tensors(&change, &minus, &after) && ok;
        if (!ok) print_spread("step", &spreads[i]);
        failed += !ok;
        tensor_file_free(&after);
        tensor_file_free(&change);
    }
    tensor_file_free(&grads);
    tensor_file_free(&minus);
    tensor_file_free(&before);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* FIXTURE_ROUTER: what the balancing loss gives the gate, worked out by hand in test_cases.c; experts 2 and 3, and with ep 2
 * the second rank, get no token. */
static void experts__a_rank_without_tokens(void **state)
{
    (void)state;
    static const double gate_want[4] = {0.18812, 0.0845, -0.1363, -0.1363};
    const char *const sets[] = {"loss.balancing_alpha=0.1", "loss.z_alpha=0", NULL};
    int failed = 0;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_ROUTER}, FIXTURE_EQ);
    for (size_t i = 0; i < COUNT(spreads); i++) {
        assert_true(probe(folder, "many", &spreads[i], sets));
        TensorFile grads = read_file(path_in(folder, "many/grads.safetensors"));
        bool ok = true;
        for (int l = 0; l < 4; l++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
            const FileTensor *gate = tensor_file_find(&grads, name);
            for (int e = 0; e < 4; e++)
                ok = ok && fabs(gate->value[e * FIXTURE_HIDDEN] - gate_want[e]) <=
                               1e-3 * fabs(gate_want[e]);
            for (int e = 2; e < 4; e++) {
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.up_proj.weight", l, e);
                const FileTensor *t = tensor_file_find(&grads, name);
                ok = ok && tensor_error(t->value, t->value, t->n).reference == 0;
            }
        }
        tensor_file_free(&grads);
        if (!ok) print_spread("router", &spreads[i]);
        failed += !ok;
    }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Experts that get no token decay like all others: after a step with lr·wd = 0.5 half of them is left. */
static void experts__without_tokens_decay(void **state)
{
    (void)state;
    const char *const sets[] = {"optimizer.lr=1", "optimizer.weight_decay=0.5", "train.steps=1",
                                NULL};
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_ROUTER}, FIXTURE_EQ);
    assert_true(train(folder, "run", &spreads[2], sets));
    TensorFile after = read_folder(path_in(folder, "run/hf/final"));
    TensorFile before = read_folder(path_in(folder, "model"));
    const char *name = "model.layers.1.mlp.experts.3.gate_proj.weight";
    const FileTensor *w0 = tensor_file_find(&before, name), *w1 = tensor_file_find(&after, name);
    for (int64_t i = 0; i < w0->n; i++) assert_true(w1->value[i] == w0->value[i] / 2);
    tensor_file_free(&after);
    tensor_file_free(&before);
    folder_remove(folder);
}

/* ---- the promise of equality at fixed dp and ep -------------------------------------------- */

static void experts__bits_depend_on_dp_and_ep_alone(void **state)
{
    (void)state;
    static const int sizes[][2] = {{2, 2}, {4, 2}};
    // clang-format off
    static const struct {
        Layout layout;
        int zero;
    } rows[] = {
        {{1, "1f1b", 0, 1, NULL, 0}, 0},      {{1, "gpipe", 1, 2, NULL, 0}, 1},
        {{2, "1f1b", 0.5, 1, "[1,3]", 0}, 0}, {{2, "zbv", 0, 2, NULL, 0}, 1},
        {{2, "interleaved", 0.5, 1, NULL, 2}, 0},
    };
    // clang-format on
    const char *const sets[] = {"train.steps=4", "optimizer.lr=0.003", NULL};
    int failed = 0;
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR);
    for (size_t k = 0; k < COUNT(sizes); k++)
        for (size_t i = 0; i < COUNT(rows); i++) {
            char out[32], run[32], first[32], first_run[32];
            snprintf(out, sizeof out, "probe%zu-%zu", k, i);
            snprintf(run, sizeof run, "run%zu-%zu", k, i);
            snprintf(first, sizeof first, "probe%zu-0", k);
            snprintf(first_run, sizeof first_run, "run%zu-0", k);
            Spread s = {sizes[k][0], sizes[k][1], rows[i].layout, rows[i].zero};
            bool ok = probe(folder, out, &s, NULL) && same_probe(folder, out, first) &&
                      train(folder, run, &s, sets) &&
                      same_run(path_in(folder, "%s", run), path_in(folder, "%s", first_run), 4);
            if (!ok) print_spread("bits", &s);
            failed += !ok;
        }
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* Two steps, then two more from the checkpoint on another layout, are the four in one go. */
static void experts__a_checkpoint_goes_on_elsewhere(void **state)
{
    (void)state;
    const char *const four[] = {"train.steps=4", "optimizer.lr=0.003", NULL};
    const char *const two[] = {"train.steps=2", "optimizer.lr=0.003", NULL};
    const Spread a = {4, 2, {1, "1f1b", 0, 1, NULL, 0}, 1},
                 b = {4, 2, {2, "zbv", 0, 1, NULL, 0}, 0},
                 c = {4, 4, {1, "1f1b", 0, 1, NULL, 0}, 0};
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_VAR);
    assert_true(train(folder, "whole", &a, four));
    for (int k = 0; k < 2; k++) {
        const char *run = k ? "other" : "same";
        assert_true(train(folder, run, &a, two));
        Arguments args = {0};
        arguments_add(&args, "%s/config.yaml", folder);
        arguments_add(&args, "--resume");
        add_set(&args, "train.output=%s/%s", folder, run);
        add_spread(&args, k ? &c : &b);
        for (int i = 0; four[i]; i++) add_set(&args, "%s", four[i]);
        assert_true(command_runs(&command_train, &args));
    }
    assert_true(same_run(path_in(folder, "same"), path_in(folder, "whole"), 4));
    /* Another ep sums in another order: two steps of AdamW later weights agree to rounding. */
    TensorFile got = read_folder(path_in(folder, "other/hf/final"));
    TensorFile want = read_folder(path_in(folder, "whole/hf/final"));
    for (int i = 0; i < want.n; i++) {
        const FileTensor *w = &want.at[i], *g = tensor_file_find(&got, w->name);
        TensorError e = tensor_error(g->value, w->value, w->n);
        if (e.difference > 1e-3 * e.reference)
            fail_msg("%s: off by %.3g of %.3g", w->name, e.difference, e.reference);
    }
    tensor_file_free(&got);
    tensor_file_free(&want);
    folder_remove(folder);
}

/* ---- P22: nothing is lost on the way in and out -------------------------------------------- */

static void experts__come_out_as_they_went_in(void **state)
{
    (void)state;
    static const Fixture fixtures[] = {{.kind = FIXTURE_MOE, .n_shards = 3},
                                       {.kind = FIXTURE_MOE, .n_shards = 1, .fused = true},
                                       {.kind = FIXTURE_MOE, .dtype = FIXTURE_BF16}};
    const char *const sets[] = {"train.steps=0", NULL};
    int failed = 0;
    for (size_t f = 0; f < COUNT(fixtures); f++) {
        char *folder = make_folder(&fixtures[f], FIXTURE_EQ);
        for (size_t i = 0; i < COUNT(spreads); i++) {
            char run[16];
            snprintf(run, sizeof run, "run%zu", i);
            bool ok = train(folder, run, &spreads[i], sets) &&
                      same_tensors(path_in(folder, "%s/hf/final", run), path_in(folder, "model")) &&
                      files_equal(path_in(folder, "%s/hf/final/config.json", run),
                                  path_in(folder, "model/config.json"));
            if (!ok) print_spread("export", &spreads[i]);
            failed += !ok;
        }
        folder_remove(folder);
    }
    assert_int_equal(failed, 0);
}

/* Random weights are those of seed, name and element wherever they are made. */
static void experts__random_weights_do_not_depend_on_ep(void **state)
{
    (void)state;
    const char *const sets[] = {"train.steps=0", "model.init=true", NULL};
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MOE}, FIXTURE_EQ);
    assert_true(train(folder, "one", &one_rank, sets));
    assert_true(train(folder, "many", &spreads[3], sets));
    assert_true(same_weights(path_in(folder, "many/hf/final"), path_in(folder, "one/hf/final")));
    folder_remove(folder);
}

/* ---- bf16 ---------------------------------------------------------------------------------- */

/* On a model whose routing no rounding changes, each layout in bf16 against one rank in f32. */
static void experts__in_bf16_gradients_point_where_those_of_f32_do(void **state)
{
    (void)state;
    static const char *const narrow[] = {"embed_tokens", "lm_head", "model.norm", "v_proj",
                                         "o_proj"};
    const char *const bf16[] = {"model.dtype=bf16", NULL};
    char *folder = make_folder(&(Fixture){.kind = FIXTURE_MARGIN}, FIXTURE_EQ);
    assert_true(probe(folder, "f32", &one_rank, NULL));
    TensorFile want = read_file(path_in(folder, "f32/grads.safetensors"));
    json_t *losses = read_json(path_in(folder, "f32/losses.json"));
    int failed = 0;
    for (size_t i = 0; i < COUNT(spreads); i++) {
        assert_true(probe(folder, "many", &spreads[i], bf16));
        TensorFile got = read_file(path_in(folder, "many/grads.safetensors"));
        json_t *own = read_json(path_in(folder, "many/losses.json"));
        bool ok = json_equal(json_object_get(own, "tokens_per_expert"),
                             json_object_get(losses, "tokens_per_expert"));
        ok = ok && fabs(number(own, "ce") / number(losses, "ce") - 1) <= 2e-4;
        ok = ok && fabs(number(own, "grad_norm") / number(losses, "grad_norm") - 1) <= 0.01;
        for (int k = 0; k < want.n; k++) {
            const FileTensor *w = &want.at[k], *g = tensor_file_find(&got, w->name);
            double dot = 0, norm = tensor_error(w->value, w->value, w->n).reference;
            double own_norm = tensor_error(g->value, g->value, g->n).reference, needed = 0.999;
            for (int64_t j = 0; j < w->n; j++) dot += (double)w->value[j] * (double)g->value[j];
            for (size_t j = 0; j < COUNT(narrow); j++)
                if (strstr(w->name, narrow[j])) needed = 0.9995;
            bool near = norm == 0 ? own_norm == 0
                                  : dot / (norm * own_norm) >= needed &&
                                        fabs(own_norm / norm - 1) <=
                                            (strstr(w->name, "norm") ? 0.05 : 0.02);
            if (!near) fprintf(stderr, "  %s: cosine %.6f\n", w->name, dot / (norm * own_norm));
            ok = ok && near;
        }
        if (!ok) print_spread("bf16", &spreads[i]);
        failed += !ok;
        tensor_file_free(&got);
        json_decref(own);
    }
    tensor_file_free(&want);
    json_decref(losses);
    folder_remove(folder);
    assert_int_equal(failed, 0);
}

/* ---- what cannot be ------------------------------------------------------------------------ */

static void experts__that_cannot_be_shared_are_refused(void **state)
{
    (void)state;
    const struct {
        FixtureKind kind;
        Spread spread;
        const char *const *words;
    } rows[] = {
        {FIXTURE_MOE, {8, 8, {1, "1f1b", 0, 1, NULL, 0}, 0}, WORDS("ep_size", "8", "4 experts")},
        {FIXTURE_MOE, {4, 3, {1, "1f1b", 0, 1, NULL, 0}, 0}, WORDS("ep_size", "3", "dp_size")},
        {FIXTURE_DENSE, {2, 2, {1, "1f1b", 0, 1, NULL, 0}, 0}, WORDS("ep_size", "2", "0 experts")},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        char *folder = make_folder(&(Fixture){.kind = rows[i].kind}, FIXTURE_EQ);
        Arguments args = {0};
        arguments_add(&args, "train");
        arguments_add(&args, "%s/config.yaml", folder);
        add_set(&args, "train.output=%s/run", folder);
        add_spread(&args, &rows[i].spread);
        assert_true(program_refuses(&args, folder, rows[i].words));
        folder_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts__gradients_are_those_of_one_rank),
        cmocka_unit_test(experts__balancing_over_ranks_does_not_depend_on_ep),
        cmocka_unit_test(experts__a_step_is_that_of_one_rank),
        cmocka_unit_test(experts__a_rank_without_tokens),
        cmocka_unit_test(experts__without_tokens_decay),
        cmocka_unit_test(experts__bits_depend_on_dp_and_ep_alone),
        cmocka_unit_test(experts__a_checkpoint_goes_on_elsewhere),
        cmocka_unit_test(experts__come_out_as_they_went_in),
        cmocka_unit_test(experts__random_weights_do_not_depend_on_ep),
        cmocka_unit_test(experts__in_bf16_gradients_point_where_those_of_f32_do),
        cmocka_unit_test(experts__that_cannot_be_shared_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
