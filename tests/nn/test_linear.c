#include "fixture.h"
#include "nn/linear.h"

static void forward(Subject *s)
{
    linear_forward(s->module, s->saved, &s->f->run, s->y, s->x);
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    linear_backward_input(s->module, s->saved, &s->f->run, dx, s->r, beta);
}

static void backward_weight(Subject *s)
{
    linear_backward_weight(s->module, s->saved, &s->f->run);
}

static void check(bool bias)
{
    enum { N = 5, IN = 4, OUT = 6 };
    Fixture f;
    Linear m;
    LinearSaved saved = {0};
    fixture_open(&f, DTYPE_F64);
    linear_declare(&m, &f.set, "layer", IN, OUT, bias);
    fixture_layout(&f);
    Subject s = {.f = &f,
                 .module = &m,
                 .saved = &saved,
                 .has_beta = true,
                 .x = fixture_random(&f, "x", N, IN),
                 .y = fixture_tensor(&f, N, OUT),
                 .r = fixture_random(&f, "r", N, OUT),
                 .forward = forward,
                 .backward_input = backward_input,
                 .backward_weight = backward_weight};
    forward(&s);
    for (int64_t n = 0; n < N; n++)
        for (int64_t o = 0; o < OUT; o++) {
            double expected = bias ? load(m.b_o->value, o) : 0;
            for (int64_t i = 0; i < IN; i++)
                expected += load(s.x, n * IN + i) * load(m.w_oi->value, o * IN + i);
            assert_true(fabs(load(s.y, n * OUT + o) - expected) < 1e-13);
        }
    subject_check(&s);
    fixture_close(&f);
}

static void linear__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    check(false);
    check(true);
}

static void linear__declares_names_and_shapes(void **state)
{
    (void)state;
    Fixture f;
    Linear m;
    fixture_open(&f, DTYPE_F32);
    linear_declare(&m, &f.set, "a.b", 3, 5, true);
    assert_int_equal(f.set.n, 2);
    assert_string_equal(f.set.at[0]->name, "a.b.weight");
    assert_int_equal(f.set.at[0]->value.dim[0], 5);
    assert_int_equal(f.set.at[0]->value.dim[1], 3);
    assert_int_equal(f.set.at[0]->init, PARAM_INIT_NORMAL);
    assert_string_equal(f.set.at[1]->name, "a.b.bias");
    assert_int_equal(f.set.at[1]->value.dim[0], 5);
    assert_int_equal(f.set.at[1]->init, PARAM_INIT_ZEROS);
    assert_false(f.set.at[1]->is_matrix);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear__matches_the_formula_and_its_gradients),
        cmocka_unit_test(linear__declares_names_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
