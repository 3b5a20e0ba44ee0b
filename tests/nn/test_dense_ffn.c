#include "fixture.h"
#include "nn/dense_ffn.h"

enum { T = 5, D = 4, F = 6 };

static void forward(Subject *s)
{
    dense_ffn_forward(s->module, s->saved, &s->f->run, s->y, s->x);
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    dense_ffn_backward_input(s->module, s->saved, &s->f->run, dx, s->r, beta);
}

static void backward_weight(Subject *s)
{
    dense_ffn_backward_weight(s->module, s->saved, &s->f->run);
}

static void dense_ffn__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    Fixture f;
    DenseFfn m;
    fixture_open(&f, DTYPE_F64);
    dense_ffn_declare(&m, &f.set, 3, D, F);
    assert_int_equal(f.set.n, 2);
    assert_string_equal(f.set.at[0]->name, "model.layers.3.mlp.gate_up_proj.weight");
    assert_string_equal(f.set.at[1]->name, "model.layers.3.mlp.down_proj.weight");
    fixture_layout(&f);
    DenseFfnSaved saved = {.h_t2f = fixture_tensor(&f, T, 2 * F),
                           .a_tf = fixture_tensor(&f, T, F),
                           .dh_t2f = fixture_tensor(&f, T, 2 * F)};
    Subject s = {.f = &f,
                 .module = &m,
                 .saved = &saved,
                 .has_beta = true,
                 .x = fixture_random(&f, "x", T, D),
                 .y = fixture_tensor(&f, T, D),
                 .r = fixture_random(&f, "r", T, D),
                 .forward = forward,
                 .backward_input = backward_input,
                 .backward_weight = backward_weight};
    forward(&s);
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) {
            double expected = 0;
            for (int64_t j = 0; j < F; j++) {
                double gate = 0, up = 0;
                for (int64_t i = 0; i < D; i++) {
                    gate += load(s.x, t * D + i) * load(m.gate_up.w_oi->value, j * D + i);
                    up += load(s.x, t * D + i) * load(m.gate_up.w_oi->value, (F + j) * D + i);
                }
                expected += load(m.down.w_oi->value, d * F + j) * gate / (1 + exp(-gate)) * up;
            }
            assert_true(fabs(load(s.y, t * D + d) - expected) < 1e-13);
        }
    subject_check(&s);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_ffn__matches_the_formula_and_its_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
