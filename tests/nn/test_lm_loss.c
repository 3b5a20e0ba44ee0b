#include "fixture.h"
#include "nn/lm_loss.h"

enum { V = 11, D = 5 };

static void open(Fixture *f, LmLoss *m, int64_t chunk)
{
    fixture_open(f, DTYPE_F64);
    fixture_row(f, 3, (const int[]){7, 1, 6}, V);
    lm_loss_declare(m, &f->set, V, D, chunk);
    fixture_layout(f);
}

static double expected_loss(const LmLoss *m, const MicroBatch *mb, Tensor h)
{
    double loss = 0;
    for (int64_t t = 0; t < mb->n_tokens; t++) {
        if (mb->target_t[t] < 0) continue;
        double sum = 0, chosen = 0;
        for (int64_t v = 0; v < V; v++) {
            double logit = 0;
            for (int64_t d = 0; d < D; d++)
                logit += load(h, t * D + d) * load(m->w_vd->value, v * D + d);
            sum += exp(logit);
            if (v == mb->target_t[t]) chosen = logit;
        }
        loss += mb->weight_t[t] * (log(sum) - chosen);
    }
    return loss;
}

static void lm_loss__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    Fixture f;
    LmLoss m;
    open(&f, &m, 4);
    assert_string_equal(f.set.at[0]->name, "lm_head.weight");
    const int64_t n = f.mb.n_tokens;
    Tensor h = fixture_random(&f, "h", n, D), dh = fixture_tensor(&f, n, D);
    memset(dh.data, 0xff, tensor_bytes(dh)); /* NaN: overwritten, untrained rows too */
    double loss = lm_loss_train(&m, &f.run, dh, h);
    assert_true(fabs(loss - expected_loss(&m, &f.mb, h)) < 1e-13);
    assert_true(loss == lm_loss_eval(&m, &f.run, h));
    int64_t untrained = 0;
    for (int64_t t = 0; t < n; t++)
        if (f.mb.target_t[t] < 0) {
            untrained++;
            for (int64_t d = 0; d < D; d++) assert_true(load(dh, t * D + d) == 0);
        }
    assert_true(untrained > 3);

    Tensor grad = fixture_copy(&f, m.w_vd->grad);
    Tensor inputs[] = {h, m.w_vd->value}, grads[] = {dh, grad};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < tensor_size(inputs[k]); i++) {
            double keep = load(inputs[k], i);
            store(inputs[k], i, keep + STEP);
            double up = lm_loss_eval(&m, &f.run, h);
            store(inputs[k], i, keep - STEP);
            double down = lm_loss_eval(&m, &f.run, h);
            store(inputs[k], i, keep);
            double error = fabs(load(grads[k], i) - (up - down) / (2 * STEP));
            assert_true(error <= TOLERANCE * largest(grads[k]));
        }

    int growths = fixture_growths(&f);
    lm_loss_train(&m, &f.run, dh, h);
    assert_int_equal(fixture_growths(&f), growths);
    Tensor twice = fixture_copy(&f, grad);
    for (int64_t i = 0; i < tensor_size(grad); i++) store(twice, i, 2 * load(grad, i));
    assert_near("dw of two", m.w_vd->grad, twice, 1e-13);

    Tensor kept = m.w_vd->grad, dh_frozen = fixture_tensor(&f, n, D);
    m.w_vd->grad.data = NULL;
    assert_true(loss == lm_loss_train(&m, &f.run, dh_frozen, h));
    assert_same_bits("dh of a frozen head", dh_frozen, dh);
    assert_near("dw while frozen", kept, twice, 1e-13);
    fixture_close(&f);
}

static void lm_loss__does_not_depend_on_the_chunk(void **state)
{
    (void)state;
    static const int64_t chunks[] = {0, 1, 3, 5, 14, 100};
    Tensor first_dh = {0}, first_dw = {0};
    double first_loss = 0;
    Fixture f[sizeof chunks / sizeof *chunks];
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        LmLoss m;
        open(&f[i], &m, chunks[i]);
        Tensor h = fixture_random(&f[i], "h", f[i].mb.n_tokens, D);
        Tensor dh = fixture_tensor(&f[i], f[i].mb.n_tokens, D);
        double loss = lm_loss_train(&m, &f[i].run, dh, h);
        if (i == 0) first_dh = dh, first_dw = m.w_vd->grad, first_loss = loss;
        /* Rows are computed alone; sums over rows are formed in another order. */
        assert_true(fabs(loss - first_loss) <= 1e-14 * first_loss);
        assert_near("dh", dh, first_dh, 1e-14);
        assert_near("dw", m.w_vd->grad, first_dw, 1e-14);
    }
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) fixture_close(&f[i]);
}

static void lm_loss__logits_are_the_product(void **state)
{
    (void)state;
    Fixture f;
    LmLoss m;
    open(&f, &m, 2);
    Tensor h = fixture_random(&f, "h", 3, D), logit = fixture_tensor(&f, 3, V);
    lm_loss_logits(&m, &f.run, logit, h);
    for (int64_t n = 0; n < 3; n++)
        for (int64_t v = 0; v < V; v++) {
            double expected = 0;
            for (int64_t d = 0; d < D; d++)
                expected += load(h, n * D + d) * load(m.w_vd->value, v * D + d);
            assert_true(fabs(load(logit, n * V + v) - expected) < 1e-13);
        }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lm_loss__matches_the_formula_and_its_gradients),
        cmocka_unit_test(lm_loss__does_not_depend_on_the_chunk),
        cmocka_unit_test(lm_loss__logits_are_the_product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
