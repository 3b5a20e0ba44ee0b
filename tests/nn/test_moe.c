#include "fixture.h"
#include "nn/moe.h"

enum { T = 8, D = 5, F = 4, E = 5 };

static RouterStats stats;
static int64_t count_e[E];
static Tensor first_id_tk; /* choices of the first forward */

static void forward(Subject *s)
{
    MoeSaved *saved = s->saved;
    moe_route(s->module, saved, &s->f->run, &stats, s->x);
    moe_forward(s->module, saved, &s->f->run, s->y, s->x);
    if (tensor_is_null(first_id_tk)) first_id_tk = fixture_copy(s->f, saved->router.id_tk);
    assert_same_bits("choices under a step", saved->router.id_tk, first_id_tk);
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    moe_backward_input(s->module, s->saved, &s->f->run, dx, s->r, beta);
}

static void backward_weight(Subject *s)
{
    moe_backward_weight(s->module, s->saved, &s->f->run);
}

static double extra_loss(Subject *s)
{
    return s->f->mb.balancing_scale * stats.balancing_raw + s->f->mb.z_scale * stats.z_raw;
}

static double expert_output(const Moe *m, int64_t e, Tensor x, int64_t t, int64_t d)
{
    Tensor up = m->experts.gate_up_eod->value, down = m->experts.down_edf->value;
    double sum = 0;
    for (int64_t j = 0; j < F; j++) {
        double gate = 0, value = 0;
        for (int64_t i = 0; i < D; i++) {
            gate += load(x, t * D + i) * load(up, (e * 2 * F + j) * D + i);
            value += load(x, t * D + i) * load(up, (e * 2 * F + F + j) * D + i);
        }
        sum += load(down, (e * D + d) * F + j) * gate / (1 + exp(-gate)) * value;
    }
    return sum;
}

static void check(int64_t top_k, bool normalise, double balancing_scale, double z_scale)
{
    Fixture f;
    Moe m;
    const int64_t n_rows = T * top_k;
    fixture_open(&f, DTYPE_F64);
    fixture_row(&f, 1, (const int[]){T}, 10);
    f.mb.balancing_scale = balancing_scale;
    f.mb.z_scale = z_scale;
    stats.count_e = count_e;
    first_id_tk = (Tensor){0};
    moe_declare(&m, &f.set, 0, D,
                &(MoeConfig){.n_experts = E, .top_k = top_k, .ffn = F, .normalise = normalise});
    fixture_layout(&f);
    MoeSaved saved = {
        .router = {.p_te = fixture_tensor(&f, T, E),
                   .lse_t = arena_tensor1(&f.data, DTYPE_F64, T),
                   .weight_tk = fixture_tensor(&f, T, top_k),
                   .id_tk = arena_tensor2(&f.data, DTYPE_I32, T, top_k),
                   .count_e = ARENA_NEW(&f.data, int64_t, E),
                   .dlogit_te = fixture_tensor(&f, T, E)},
        .dispatch = {.offset_e = ARENA_NEW(&f.data, int32_t, E + 1),
                     .token_r = ARENA_NEW(&f.data, int32_t, n_rows),
                     .pair_r = ARENA_NEW(&f.data, int32_t, n_rows),
                     .row_nk = ARENA_NEW(&f.data, int32_t, n_rows)},
        .exchange = {.n_ranks = 1},
        .experts = {.h_r2f = fixture_tensor(&f, n_rows, 2 * F),
                    .a_rf = fixture_tensor(&f, n_rows, F),
                    .dh_r2f = fixture_tensor(&f, n_rows, 2 * F)},
        .weight_r = arena_tensor1(&f.data, DTYPE_F64, n_rows),
    };
    Subject s = {.f = &f,
                 .module = &m,
                 .saved = &saved,
                 .has_beta = true,
                 .x = fixture_random(&f, "x", T, D),
                 .y = fixture_tensor(&f, T, D),
                 .r = fixture_random(&f, "r", T, D),
                 .forward = forward,
                 .backward_input = backward_input,
                 .backward_weight = backward_weight,
                 .extra_loss = extra_loss};
    saved.x_nd = s.x;
    saved.dy_nd = s.r;
    forward(&s);
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) {
            double expected = 0;
            for (int64_t k = 0; k < top_k; k++)
                expected += load(saved.router.weight_tk, t * top_k + k) *
                            expert_output(&m, ((int32_t *)saved.router.id_tk.data)[t * top_k + k],
                                          s.x, t, d);
            assert_true(fabs(load(s.y, t * D + d) - expected) < 1e-13);
        }
    subject_check(&s);
    fixture_close(&f);
}

static void moe__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    check(2, true, 0, 0);
    check(2, false, 0, 0);
    check(3, true, 0.7, 0.05);
    check(2, false, 0.7, 0.05);
    check(1, false, 0.7, 0.05);
    check(E, true, 0, 0); /* every expert for every token */
}

/* With all that normalisation leaves to a single choice, weights are 1 and only balancing and z reach the router. */
static void moe__top_1_normalised_passes_balancing_and_z(void **state)
{
    (void)state;
    check(1, true, 0.7, 0.05);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moe__matches_the_formula_and_its_gradients),
        cmocka_unit_test(moe__top_1_normalised_passes_balancing_and_z),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
