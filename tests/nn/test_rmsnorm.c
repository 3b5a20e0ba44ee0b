#include "fixture.h"
#include "nn/rmsnorm.h"

static void forward(Subject *s)
{
    rmsnorm_forward(s->module, s->saved, &s->f->run, s->y, s->x);
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    rmsnorm_backward_input(s->module, s->saved, &s->f->run, dx, s->r, beta);
}

static void rmsnorm__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    enum { N = 7, D = 6 };
    const double eps = 0.3; /* large enough that leaving it out is seen */
    Fixture f;
    RmsNorm m;
    fixture_open(&f, DTYPE_F64);
    rmsnorm_declare(&m, &f.set, "norm", D, eps);
    assert_string_equal(f.set.at[0]->name, "norm.weight");
    assert_int_equal(f.set.at[0]->init, PARAM_INIT_ONES);
    fixture_layout(&f);
    RmsNormSaved saved = {.rstd_n = arena_tensor1(&f.data, DTYPE_F64, N)};
    Subject s = {.f = &f,
                 .module = &m,
                 .saved = &saved,
                 .has_beta = true,
                 .x = fixture_random(&f, "x", N, D),
                 .y = fixture_tensor(&f, N, D),
                 .r = fixture_random(&f, "r", N, D),
                 .forward = forward,
                 .backward_input = backward_input};
    forward(&s);
    for (int64_t n = 0; n < N; n++) {
        double squares = 0;
        for (int64_t d = 0; d < D; d++) squares += pow(load(s.x, n * D + d), 2);
        for (int64_t d = 0; d < D; d++) {
            double expected =
                load(m.w_d->value, d) * load(s.x, n * D + d) / sqrt(squares / D + eps);
            assert_true(fabs(load(s.y, n * D + d) - expected) < 1e-14);
        }
    }
    subject_check(&s);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm__matches_the_formula_and_its_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
