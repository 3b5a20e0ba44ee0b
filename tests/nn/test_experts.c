#include "fixture.h"
#include "nn/experts.h"

enum { R = 9, D = 4, F = 3, E = 4 };

static Dispatch dispatch;
static Tensor plain_y, weighted_r, weight_r, dweight_r;

/* The routing weight outside: y = weight * experts(x). */
static void scale(Tensor out, Tensor in)
{
    for (int64_t i = 0; i < tensor_size(in); i++)
        store(out, i, load(in, i) * load(weight_r, i / D));
}

static void forward(Subject *s)
{
    experts_forward(s->module, s->saved, &s->f->run, &dispatch, plain_y, s->x);
    scale(s->y, plain_y);
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    (void)beta;
    experts_backward_input(s->module, s->saved, &s->f->run, &dispatch, dx, dweight_r, s->r,
                           weight_r);
}

static void backward_weight(Subject *s)
{
    scale(weighted_r, s->r);
    experts_backward_weight(s->module, s->saved, &s->f->run, &dispatch, s->x, weighted_r);
}

static void experts__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    Fixture f;
    Experts m;
    int32_t offset_e[E + 1] = {0, 3, 3, 8, 9}; /* expert 1 has no rows */
    fixture_open(&f, DTYPE_F64);
    dispatch = (Dispatch){.n_rows = R, .offset_e = offset_e};
    experts_declare(&m, &f.set, 1, E, D, F);
    assert_string_equal(f.set.at[0]->name, "model.layers.1.mlp.experts.gate_up_proj");
    assert_string_equal(f.set.at[1]->name, "model.layers.1.mlp.experts.down_proj");
    assert_int_equal(f.set.at[0]->value.n_dims, 3);
    fixture_layout(&f);
    ExpertsSaved saved = {.h_r2f = fixture_tensor(&f, R, 2 * F),
                          .a_rf = fixture_tensor(&f, R, F),
                          .dh_r2f = fixture_tensor(&f, R, 2 * F)};
    plain_y = fixture_tensor(&f, R, D);
    weighted_r = fixture_tensor(&f, R, D);
    weight_r = arena_tensor1(&f.data, DTYPE_F64, R);
    dweight_r = arena_tensor1(&f.data, DTYPE_F64, R);
    fill(weight_r, "weight", 0.5, 0.2);
    Subject s = {.f = &f,
                 .module = &m,
                 .saved = &saved,
                 .x = fixture_random(&f, "x", R, D),
                 .y = fixture_tensor(&f, R, D),
                 .r = fixture_random(&f, "r", R, D),
                 .extra = weight_r,
                 .extra_grad = dweight_r,
                 .forward = forward,
                 .backward_input = backward_input,
                 .backward_weight = backward_weight};
    forward(&s);
    Tensor up = m.gate_up_eod->value, down = m.down_edf->value;
    for (int64_t e = 0; e < E; e++)
        for (int64_t r = offset_e[e]; r < offset_e[e + 1]; r++)
            for (int64_t d = 0; d < D; d++) {
                double expected = 0;
                for (int64_t j = 0; j < F; j++) {
                    double gate = 0, value = 0;
                    for (int64_t i = 0; i < D; i++) {
                        gate += load(s.x, r * D + i) * load(up, (e * 2 * F + j) * D + i);
                        value += load(s.x, r * D + i) * load(up, (e * 2 * F + F + j) * D + i);
                    }
                    expected += load(down, (e * D + d) * F + j) * gate / (1 + exp(-gate)) * value;
                }
                assert_true(fabs(load(plain_y, r * D + d) - expected) < 1e-13);
            }
    subject_check(&s);

    /* No rows, no gradient: exactly zero. */
    paramset_zero_grads(&f.set);
    subject_backward(&s, fixture_tensor(&f, R, D), 0);
    for (int64_t i = 0; i < 2 * F * D; i++)
        assert_true(load(m.gate_up_eod->grad, 2 * F * D + i) == 0);
    for (int64_t i = 0; i < D * F; i++) assert_true(load(m.down_edf->grad, D * F + i) == 0);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts__matches_the_formula_and_its_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
