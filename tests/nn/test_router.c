#include "fixture.h"
#include "nn/router.h"

enum { T = 9, D = 5, E = 6, K_MAX = 3 };

static RouterStats stats;
static int64_t count_e[E];

static void forward(Subject *s)
{
    RouterSaved *saved = s->saved;
    router_forward(s->module, saved, &s->f->run, &stats, s->x);
    memcpy(s->y.data, saved->weight_tk.data, tensor_bytes(s->y));
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    router_backward_input(s->module, s->saved, &s->f->run, dx, s->r, beta);
}

static void backward_weight(Subject *s)
{
    router_backward_weight(s->module, s->saved, &s->f->run);
}

static double extra_loss(Subject *s)
{
    return s->f->mb.balancing_scale * stats.balancing_raw + s->f->mb.z_scale * stats.z_raw;
}

static void check(int64_t top_k, bool normalise, double balancing_scale, double z_scale)
{
    Fixture f;
    Router m;
    fixture_open(&f, DTYPE_F64);
    fixture_row(&f, 1, (const int[]){T}, 10);
    f.mb.balancing_scale = balancing_scale;
    f.mb.z_scale = z_scale;
    stats.count_e = count_e;
    router_declare(&m, &f.set, 2, D, E, top_k, normalise);
    assert_string_equal(f.set.at[0]->name, "model.layers.2.mlp.gate.weight");
    fixture_layout(&f);
    RouterSaved saved = {.p_te = fixture_tensor(&f, T, E),
                         .lse_t = arena_tensor1(&f.data, DTYPE_F64, T),
                         .weight_tk = fixture_tensor(&f, T, top_k),
                         .id_tk = arena_tensor2(&f.data, DTYPE_I32, T, top_k),
                         .count_e = ARENA_NEW(&f.data, int64_t, E),
                         .dlogit_te = fixture_tensor(&f, T, E)};
    Subject s = {.f = &f,
                 .module = &m,
                 .saved = &saved,
                 .has_beta = true,
                 .x = fixture_random(&f, "x", T, D),
                 .y = fixture_tensor(&f, T, top_k),
                 .r = fixture_random(&f, "r", T, top_k),
                 .forward = forward,
                 .backward_input = backward_input,
                 .backward_weight = backward_weight,
                 .extra_loss = extra_loss};
    forward(&s);

    double balancing = 0, z = 0, gap = 1;
    int64_t count[E] = {0};
    double prob_sum[E] = {0};
    for (int64_t t = 0; t < T; t++) {
        double logit[E], sum = 0, chosen = 0;
        bool is_chosen[E] = {false};
        for (int64_t e = 0; e < E; e++) {
            logit[e] = 0;
            for (int64_t d = 0; d < D; d++)
                logit[e] += load(s.x, t * D + d) * load(m.gate.w_oi->value, e * D + d);
            sum += exp(logit[e]);
        }
        z += pow(log(sum), 2);
        for (int64_t e = 0; e < E; e++) prob_sum[e] += exp(logit[e]) / sum;
        for (int64_t k = 0; k < top_k; k++) {
            int32_t id = ((int32_t *)saved.id_tk.data)[t * top_k + k];
            assert_false(is_chosen[id]);
            is_chosen[id] = true;
            count[id]++;
            chosen += exp(logit[id]) / sum;
        }
        for (int64_t k = 0; k < top_k; k++) {
            int32_t id = ((int32_t *)saved.id_tk.data)[t * top_k + k];
            double expected = exp(logit[id]) / sum / (normalise ? chosen : 1);
            assert_true(fabs(load(s.y, t * top_k + k) - expected) < 1e-14);
            if (k) assert_true(load(s.y, t * top_k + k) <= load(s.y, t * top_k + k - 1));
            for (int64_t e = 0; e < E; e++)
                if (!is_chosen[e]) gap = fmin(gap, logit[id] - logit[e]);
        }
    }
    for (int64_t e = 0; e < E; e++) balancing += (double)count[e] * prob_sum[e];
    balancing *= (double)E / (double)(T * top_k) / T;
    /* A step of 1e-5 moves a logit by less than 1e-4: no choice flips under the differences. */
    assert_true(gap > 1e-3);
    assert_memory_equal(stats.count_e, count, sizeof count);
    assert_memory_equal(saved.count_e, count, sizeof count);
    assert_true(fabs(stats.balancing_raw - balancing) < 1e-13);
    assert_true(fabs(stats.z_raw - z) < 1e-12);
    subject_check(&s);
    fixture_close(&f);
}

static void router__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    check(2, true, 0, 0);
    check(2, false, 0, 0);
    check(K_MAX, true, 0.7, 0);
    check(K_MAX, false, 0, 0.05);
    check(1, false, 0.7, 0.05);
    check(1, true, 0.7, 0.05); /* weights are all 1: only balancing and z have gradients */
}

static void router__is_the_same_without_statistics(void **state)
{
    (void)state;
    Fixture f;
    Router m;
    fixture_open(&f, DTYPE_F64);
    fixture_row(&f, 1, (const int[]){T}, 10);
    router_declare(&m, &f.set, 0, D, E, 2, true);
    fixture_layout(&f);
    Tensor x = fixture_random(&f, "x", T, D);
    RouterSaved saved[2];
    stats.count_e = count_e;
    for (int i = 0; i < 2; i++) {
        saved[i] = (RouterSaved){.p_te = fixture_tensor(&f, T, E),
                                 .lse_t = arena_tensor1(&f.data, DTYPE_F64, T),
                                 .weight_tk = fixture_tensor(&f, T, 2),
                                 .id_tk = arena_tensor2(&f.data, DTYPE_I32, T, 2),
                                 .count_e = ARENA_NEW(&f.data, int64_t, E)};
        router_forward(&m, &saved[i], &f.run, i ? &stats : NULL, x);
    }
    assert_same_bits("p", saved[0].p_te, saved[1].p_te);
    assert_same_bits("lse", saved[0].lse_t, saved[1].lse_t);
    assert_same_bits("weight", saved[0].weight_tk, saved[1].weight_tk);
    assert_same_bits("id", saved[0].id_tk, saved[1].id_tk);
    assert_memory_equal(saved[0].count_e, saved[1].count_e, sizeof count_e);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router__matches_the_formula_and_its_gradients),
        cmocka_unit_test(router__is_the_same_without_statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
