#include "train_test.h"

#include "train/optimizer.h"

/* A matrix and a vector with values, gradients and moments that are no round numbers. */
static void two_params(ParamSet *set, OptimizerType type, Arena *arena)
{
    paramset_init(set, arena, DTYPE_F32, DTYPE_F32);
    paramset_declare(set, "m", PARAM_INIT_NORMAL, 2, (int64_t[]){7, 9});
    paramset_declare(set, "v", PARAM_INIT_ONES, 1, (int64_t[]){5});
    assert_ok(paramset_layout(set, true));
    assert_ok(optimizer_create_moments(set, type, arena));
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < tensor_size(set->at[i]->value); k++)
            ((float *)set->at[i]->value.data)[k] = (float)sin(1 + (double)k + 40 * i);
}

static void new_grads(ParamSet *set, int step)
{
    for (int64_t k = 0; k < tensor_size(set->grads); k++)
        ((float *)set->grads.data)[k] = (float)(0.3 * cos(3.1 * (double)k + step));
}

/* The formulas of torch.optim.AdamW in doubles on the values before; one rounding to f32 apart. */
static void check_adamw(bool ref)
{
    Arena arena;
    ParamSet set;
    Backend be;
    arena_init(&arena, "test");
    two_params(&set, OPTIMIZER_ADAMW, &arena);
    ref ? backend_ref_init(&be, 1) : backend_cpu_init(&be, kernel_path_best(), 2);
    const OptimizerSection config = {
        .type = OPTIMIZER_ADAMW, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1};
    set.at[1]->weight_decay = 0.5;
    set.at[1]->lr_scale = 3;
    for (int t = 1; t <= 5; t++) {
        const double lr = 0.01 * t, clip = 0.7;
        new_grads(&set, t);
        float before[2][3][63];
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 3; k++)
                memcpy(before[i][k], (k == 2 ? set.at[i]->value : set.at[i]->moment[k]).data,
                       tensor_bytes(set.at[i]->value));
        optimizer_update(&set, &be, &config, lr, clip, t);
        for (int i = 0; i < 2; i++)
            for (int64_t k = 0; k < tensor_size(set.at[i]->value); k++) {
                const Param *p = set.at[i];
                const double own_lr = i ? 3 * lr : lr, wd = i ? 0.5 : 0.1;
                double g = clip * (double)((float *)p->grad.data)[k];
                double m = 0.9 * (double)before[i][0][k] + 0.1 * g;
                double v = 0.95 * (double)before[i][1][k] + 0.05 * g * g;
                double w = (double)before[i][2][k] * (1 - own_lr * wd);
                w -= own_lr / (1 - pow(0.9, t)) * m / (sqrt(v) / sqrt(1 - pow(0.95, t)) + 1e-8);
                /* a few roundings to f32, of the terms where they cancel */
                double size = fabs(0.9 * (double)before[i][0][k]) + fabs(0.1 * g);
                assert_true(fabs((double)((float *)p->moment[0].data)[k] - m) <= 3e-7 * size);
                assert_true(fabs((double)((float *)p->moment[1].data)[k] - v) <= 4e-7 * v);
                double got = (double)((float *)p->value.data)[k];
                if (!(fabs(got - w) <= 4e-7 * fabs(w) + 2e-8))
                    fail_msg("step %d, %s[%d]: %.9g, expected %.9g", t, p->name, (int)k, got, w);
            }
    }
    arena_free(&arena);
}

static void optimizer__adamw_is_torchs(void **state)
{
    (void)state;
    check_adamw(true);
    check_adamw(false);
}

static void optimizer__sgd_has_no_memory(void **state)
{
    (void)state;
    Arena arena;
    ParamSet set;
    Backend be;
    arena_init(&arena, "test");
    two_params(&set, OPTIMIZER_SGD, &arena);
    for (int i = 0; i < 2; i++)
        assert_true(tensor_is_null(set.at[i]->moment[0]) && tensor_is_null(set.at[i]->moment[1]));
    backend_cpu_init(&be, kernel_path_best(), 1);
    new_grads(&set, 1);
    float before[63];
    memcpy(before, set.at[0]->value.data, sizeof before);
    optimizer_update(&set, &be, &(OptimizerSection){.type = OPTIMIZER_SGD, .weight_decay = 0.2},
                     0.5, 0.25, 1);
    for (int k = 0; k < 63; k++) {
        double g = 0.25 * (double)((float *)set.at[0]->grad.data)[k], x = (double)before[k];
        assert_true(fabs((double)((float *)set.at[0]->value.data)[k] - (x - 0.5 * (g + 0.2 * x))) <
                    1e-6);
    }
    arena_free(&arena);
}

/* With a gradient of zero AdamW only decays. */
static void optimizer__decay_of_vectors_can_be_left_out(void **state)
{
    Bench *b = *state;
    ModelConfig *model = model_with(b, NULL);
    for (int decay_1d = 0; decay_1d < 2; decay_1d++) {
        ParamSet set;
        Backend be;
        paramset_init(&set, &b->arena, DTYPE_F32, DTYPE_F32);
        model_declare_whole(&set, model);
        OptimizerSection config = {
            .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.5, .decay_1d = decay_1d};
        assert_ok(optimizer_apply_groups(&set, &set, model, &config, &b->arena));
        assert_ok(paramset_layout(&set, true));
        assert_ok(optimizer_create_moments(&set, config.type, &b->arena));
        backend_cpu_init(&be, kernel_path_best(), 1);
        for (int i = 0; i < set.n; i++)
            for (int64_t k = 0; k < tensor_size(set.at[i]->value); k++)
                ((float *)set.at[i]->value.data)[k] = 2;
        optimizer_update(&set, &be, &config, 0.5, 1, 1);
        for (int i = 0; i < set.n; i++) {
            bool decays = decay_1d || set.at[i]->value.n_dims > 1;
            for (int64_t k = 0; k < tensor_size(set.at[i]->value); k++)
                assert_true(((float *)set.at[i]->value.data)[k] == (decays ? 1.5f : 2.0f));
        }
    }
}

/* ---- groups ---------------------------------------------------------------------------------------- */

static Status apply(Bench *b, ParamSet *set, const char *patch, const OptimizerGroup *group, int n,
                    LayerRange range)
{
    ModelConfig *model = model_with(b, patch);
    ParamSet *whole = ARENA_NEW(&b->arena, ParamSet, 1);
    ModelPart part;
    paramset_init(whole, &b->arena, DTYPE_F32, DTYPE_F32);
    paramset_init(set, &b->arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(whole, model);
    model_part_declare(&part, set, model, range, NULL, 0);
    OptimizerSection config = {.decay_1d = true, .groups = {(OptimizerGroup *)group, n}};
    return optimizer_apply_groups(set, whole, model, &config, &b->arena);
}

static const LayerRange all_layers = {0, 4, true, true};

static void optimizer__the_first_group_that_matches_counts(void **state)
{
    Bench *b = *state;
    static const OptimizerGroup groups[] = {
        {"*.experts.*", 0.5, 0.25, true},
        {"model.embed_tokens.weight", 1, NAN, false},
        {"model.layers.*", 2, NAN, true},
        {"*", 9, 0.125, false},
    };
    ParamSet set;
    assert_ok(apply(b, &set, NULL, groups, 4, all_layers));
    static const struct {
        const char *name;
        double lr_scale, decay;
        bool trainable;
    } rows[] = {
        {"model.layers.0.mlp.experts.gate_up_proj", 0.5, 0.25, true},
        {"model.layers.3.mlp.experts.down_proj", 0.5, 0.25, true},
        {"model.embed_tokens.weight", 1, NAN, false},
        {"model.layers.0.mlp.gate.weight", 2, NAN, true},
        {"model.layers.1.mlp.gate_up_proj.weight", 2, NAN, true},
        {"lm_head.weight", 9, 0.125, false},
        {"model.norm.weight", 9, 0.125, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const Param *p = paramset_find(&set, rows[i].name);
        assert_true(p->lr_scale == rows[i].lr_scale);
        assert_true(isnan(rows[i].decay) ? isnan(p->weight_decay)
                                         : p->weight_decay == rows[i].decay);
        assert_int_equal(p->trainable, rows[i].trainable);
    }
    assert_ok(paramset_layout(&set, true));
    assert_ok(optimizer_create_moments(&set, OPTIMIZER_ADAMW, &b->arena));
    for (int i = 0; i < set.n; i++) {
        assert_int_equal(tensor_is_null(set.at[i]->grad), !set.at[i]->trainable);
        assert_int_equal(tensor_is_null(set.at[i]->moment[1]), !set.at[i]->trainable);
    }
}

/* A stage that does not hold what a pattern matches knows that another does. */
static void optimizer__patterns_are_of_the_whole_model(void **state)
{
    Bench *b = *state;
    ParamSet set;
    assert_ok(apply(b, &set, NULL, &(OptimizerGroup){"lm_head.weight", 1, NAN, false}, 1,
                    (LayerRange){0, 2, true, false}));
    for (int i = 0; i < set.n; i++) assert_true(set.at[i]->trainable);
}

static void optimizer__a_tied_head_goes_with_the_embedding(void **state)
{
    Bench *b = *state;
    ParamSet set;
    assert_ok(apply(b, &set, "{\"tie_word_embeddings\": true}",
                    &(OptimizerGroup){"model.embed_tokens.weight", 3, NAN, false}, 1,
                    (LayerRange){2, 2, false, true}));
    assert_true(paramset_find(&set, "lm_head.weight")->lr_scale == 3);
    assert_false(paramset_find(&set, "lm_head.weight")->trainable);
}

static void optimizer__patterns_that_fit_nothing_or_a_part_are_refused(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *match, *word;
    } rows[] = {
        {"model.layers.9.*", "fits no parameter"},
        {"lm_head", "fits no parameter"},
        {"", "fits no parameter"},
        {"model.layers.0.mlp.experts.1.*",
         "takes only a part of model.layers.0.mlp.experts.gate_up_proj"},
        {"*.experts.*.up_proj.weight",
         "takes only a part of model.layers.0.mlp.experts.gate_up_proj"},
        {"model.layers.1.mlp.gate_proj.weight",
         "takes only a part of model.layers.1.mlp.gate_up_proj.weight"},
        {"*.up_proj.weight", "takes only a part"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ParamSet set;
        Status status =
            apply(b, &set, NULL, &(OptimizerGroup){rows[i].match, 1, NAN, true}, 1, all_layers);
        assert_fails(status, ERR_USAGE, rows[i].word);
        assert_fails(status, ERR_USAGE, "optimizer.groups");
    }
    ParamSet set;
    assert_fails(apply(b, &set, "{\"tie_word_embeddings\": true}",
                       &(OptimizerGroup){"lm_head.weight", 1, NAN, true}, 1, all_layers),
                 ERR_USAGE, "fits no parameter");
}

/* ---- learning rate --------------------------------------------------------------------------------- */

static void optimizer__learning_rate(void **state)
{
    (void)state;
    static const struct {
        LrScheduleType type;
        double warmup, lr_min;
        int64_t step, n_steps;
        double want; /* with base 0.8 */
    } rows[] = {
        /* warmup of int(0.3·10) = 3 steps, the first one not 0 */
        {LR_COSINE, 0.3, 0.2, 0, 10, 0.8 / 3},
        {LR_COSINE, 0.3, 0.2, 1, 10, 0.8 * 2 / 3},
        {LR_COSINE, 0.3, 0.2, 2, 10, 0.8},
        {LR_COSINE, 0.3, 0.2, 3, 10, 0.8},
        {LR_COSINE, 0.4, 0.2, 7, 10, 0.5}, /* half way: the mean of base and lr_min */
        {LR_COSINE, 0.4, 0.2, 5, 10,
         0.2 + 0.6 * (1 + 0.8660254037844387) / 2},              /* t = 1/6: cos 30° */
        {LR_COSINE, 0.4, 0.2, 8, 10, 0.2 + 0.6 * (1 - 0.5) / 2}, /* t = 2/3: cos 120° */
        {LR_LINEAR, 0.4, 0.2, 4, 10, 0.8},
        {LR_LINEAR, 0.4, 0.2, 7, 10, 0.5},
        {LR_LINEAR, 0.4, 0.2, 9, 10, 0.3},
        {LR_CONSTANT, 0.4, 0.2, 3, 10, 0.8},
        {LR_CONSTANT, 0.4, 0.2, 9, 10, 0.8},
        {LR_CONSTANT, 0.4, 0.2, 0, 10, 0.2},
        /* steps of warmup, not a ratio */
        {LR_LINEAR, 4, 0.2, 0, 10, 0.2},
        {LR_LINEAR, 4, 0.2, 7, 10, 0.5},
        {LR_LINEAR, 1, 0, 0, 10, 0.8},
        {LR_LINEAR, 1, 0, 1, 10, 0.8},
        /* none at all: int(0.03·33) is 0 */
        {LR_COSINE, 0.03, 0, 0, 33, 0.8},
        {LR_COSINE, 0, 0, 0, 1, 0.8},
        /* warmup of all steps, and of more */
        {LR_COSINE, 4, 0.2, 3, 4, 0.8},
        {LR_COSINE, 4, 0.2, 1, 4, 0.4},
        {LR_COSINE, 8, 0.2, 3, 4, 0.4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        LrScheduleSection schedule = {rows[i].type, rows[i].warmup, rows[i].lr_min};
        double got = lr_at(&schedule, 0.8, rows[i].step, rows[i].n_steps);
        if (!(fabs(got - rows[i].want) < 1e-15))
            fail_msg("row %d: %.17g, expected %.17g", (int)i, got, rows[i].want);
    }
}

static void optimizer__learning_rate_never_leaves_its_bounds(void **state)
{
    (void)state;
    for (LrScheduleType type = LR_COSINE; type <= LR_CONSTANT; type++)
        for (int64_t n = 1; n < 40; n++)
            for (double warmup = 0; warmup < 1; warmup += 0.17) {
                LrScheduleSection schedule = {type, warmup, 0.01};
                double last = 0;
                int64_t w = (int64_t)(warmup * (double)n);
                for (int64_t s = 0; s < n; s++) {
                    double lr = lr_at(&schedule, 1, s, n);
                    assert_true(lr > 0 && lr <= 1);
                    if (s < w)
                        assert_true(lr > last);
                    else
                        assert_true(lr >= 0.01 && (s == w || lr <= last));
                    last = lr;
                }
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(optimizer__adamw_is_torchs),
        BENCH_TEST(optimizer__sgd_has_no_memory),
        BENCH_TEST(optimizer__decay_of_vectors_can_be_left_out),
        BENCH_TEST(optimizer__the_first_group_that_matches_counts),
        BENCH_TEST(optimizer__patterns_are_of_the_whole_model),
        BENCH_TEST(optimizer__a_tied_head_goes_with_the_embedding),
        BENCH_TEST(optimizer__patterns_that_fit_nothing_or_a_part_are_refused),
        BENCH_TEST(optimizer__learning_rate),
        BENCH_TEST(optimizer__learning_rate_never_leaves_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
