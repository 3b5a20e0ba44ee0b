#include "fixture.h"
#include "nn/embedding.h"

enum { V = 7, D = 3 };

static void embedding__looks_up_rows_and_scatters_gradients(void **state)
{
    (void)state;
    Fixture f;
    Embedding m;
    fixture_open(&f, DTYPE_F64);
    fixture_row(&f, 2, (const int[]){6, 5}, V); /* more tokens than ids: some repeat */
    embedding_declare(&m, &f.set, V, D);
    assert_string_equal(f.set.at[0]->name, "model.embed_tokens.weight");
    fixture_layout(&f);
    const int64_t n = f.mb.n_tokens;
    Tensor y = fixture_tensor(&f, n, D), dy = fixture_random(&f, "dy", n, D);
    embedding_forward(&m, &f.run, y);
    Tensor expected = fixture_tensor(&f, V, D);
    for (int64_t t = 0; t < n; t++)
        for (int64_t d = 0; d < D; d++) {
            int64_t at = f.mb.id_t[t] * D + d;
            assert_true(load(y, t * D + d) == load(m.w_vd->value, at));
            store(expected, at, load(expected, at) + load(dy, t * D + d));
        }
    embedding_backward_weight(&m, &f.run, dy);
    assert_near("dw", m.w_vd->grad, expected, 1e-15);
    embedding_backward_weight(&m, &f.run, dy);
    for (int64_t i = 0; i < V * D; i++) store(expected, i, 2 * load(expected, i));
    assert_near("dw of two", m.w_vd->grad, expected, 1e-14);

    Tensor grad = m.w_vd->grad;
    m.w_vd->grad = (Tensor){0};
    embedding_backward_weight(&m, &f.run, dy);
    assert_near("dw while frozen", grad, expected, 1e-14);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding__looks_up_rows_and_scatters_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
