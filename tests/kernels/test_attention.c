#include "kernels/kernel_check.h"

/* Sums of up to 600 products and e^x to 1 ulp with scores up to about 10: 1e-6 of a score is 1e-6 of e^score. */
static const double tolerance = 3e-6;

typedef struct Setup {
    Tensor q, k, v, o, lse, d_o, dq, dk, dv;
    int32_t *cu_q, *cu_k;
    double scale;
} Setup;

static Setup make_setup(const AttentionCase *c, DType dtype, Arena *arena)
{
    Setup s = {.cu_q = ARENA_NEW(arena, int32_t, c->n_segments + 1),
               .cu_k = ARENA_NEW(arena, int32_t, c->n_segments + 1),
               .scale = 1 / sqrt((double)c->head_dim)};
    for (int i = 0; i < c->n_segments; i++) {
        s.cu_q[i + 1] = s.cu_q[i] + c->nq + (c->nq == c->nk ? i * c->grow : 0);
        s.cu_k[i + 1] = s.cu_k[i] + c->nk + i * c->grow;
    }
    int64_t nq = s.cu_q[c->n_segments], nk = s.cu_k[c->n_segments];
    int64_t q_cols = c->n_heads * c->head_dim, k_cols = c->n_kv_heads * c->head_dim;
    s.q = random_tensor(arena, dtype, nq, q_cols, "q");
    s.k = random_tensor(arena, dtype, nk, k_cols, "k");
    s.v = random_tensor(arena, dtype, nk, k_cols, "v");
    s.d_o = random_tensor(arena, dtype, nq, q_cols, "do");
    s.o = filled_tensor(arena, dtype, nq, q_cols, (double)NAN);
    s.dq = filled_tensor(arena, dtype, nq, q_cols, (double)NAN);
    s.dk = filled_tensor(arena, dtype, nk, k_cols, (double)NAN);
    s.dv = filled_tensor(arena, dtype, nk, k_cols, (double)NAN);
    s.lse =
        filled_tensor(arena, dtype == DTYPE_F64 ? dtype : DTYPE_F32, c->n_heads, nq, (double)NAN);
    return s;
}

static void forward(const Backend *be, const AttentionCase *c, const Setup *s, Arena *arena)
{
    be->attention(be, &(AttentionArgs){.o_tq = s->o,
                                       .lse_ht = s->lse,
                                       .q_tq = s->q,
                                       .k_tk = s->k,
                                       .v_tk = s->v,
                                       .n_heads = c->n_heads,
                                       .n_kv_heads = c->n_kv_heads,
                                       .head_dim = c->head_dim,
                                       .cu_q = s->cu_q,
                                       .cu_k = s->cu_k,
                                       .n_segments = c->n_segments,
                                       .scale = s->scale,
                                       .scratch = arena});
}

static void backward(const Backend *be, const AttentionCase *c, const Setup *s, Arena *arena)
{
    be->attention_backward(be, &(AttentionBackwardArgs){.dq_tq = s->dq,
                                                        .dk_tk = s->dk,
                                                        .dv_tk = s->dv,
                                                        .do_tq = s->d_o,
                                                        .o_tq = s->o,
                                                        .lse_ht = s->lse,
                                                        .q_tq = s->q,
                                                        .k_tk = s->k,
                                                        .v_tk = s->v,
                                                        .n_heads = c->n_heads,
                                                        .n_kv_heads = c->n_kv_heads,
                                                        .head_dim = c->head_dim,
                                                        .cu_q = s->cu_q,
                                                        .cu_k = s->cu_k,
                                                        .n_segments = c->n_segments,
                                                        .scale = s->scale,
                                                        .scratch = arena});
}

static Outputs run_attention(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    Setup s = make_setup(one_case, dtype, arena), b = make_setup(one_case, dtype, arena);
    forward(be, one_case, &s, arena);
    /* o and lse as inputs of backward are the same for all backends */
    Backend ref;
    backend_ref_init(&ref, 1);
    forward(&ref, one_case, &b, arena);
    backward(be, one_case, &b, arena);
    Outputs out = {0};
    add_output(&out, s.o, tolerance);
    add_output(&out, s.lse, tolerance);
    add_output(&out, b.dq, tolerance);
    add_output(&out, b.dk, tolerance);
    out.floor[2] = out.floor[3] = 1; /* dp - do * o is 0 for a token alone */
    add_output(&out, b.dv, tolerance);
    return out;
}

static void attention__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES_BOTH(run_attention, attention_cases);
}

/** The last query alone against all keys gives the last row of the whole: what generation relies on. */
static void attention__one_query_with_a_cache_is_the_last_row(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        AttentionCase whole = {4, 2, 32, 1, 100, 100, 0, 0}, last = {4, 2, 32, 1, 1, 100, 0, 0};
        Setup s = make_setup(&whole, DTYPE_F32, &arena);
        forward(&be[i], &whole, &s, &arena);
        Setup one = make_setup(&last, DTYPE_F32, &arena);
        one.q = tensor_rows(s.q, 99, 1);
        forward(&be[i], &last, &one, &arena);
        assert_near(one.o, tensor_rows(s.o, 99, 1), tolerance, 0, "last row");
    }
    arena_free(&arena);
}

/** Neither later tokens nor other segments are seen. */
static void attention__sees_only_its_past_in_its_segment(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        AttentionCase c = {2, 1, 16, 3, 70, 70, 0, 0};
        Setup a = make_setup(&c, DTYPE_F32, &arena), b = make_setup(&c, DTYPE_F32, &arena);
        /* tokens 0 … 69 (another segment) and 100 … 209 (the future) differ */
        for (int64_t t = 0; t < 210; t++)
            if (t < 70 || t >= 100)
                for (int64_t d = 0; d < 16; d++) {
                    set_element(b.k, t * 16 + d, 1e3);
                    set_element(b.v, t * 16 + d, 1e3);
                }
        forward(&be[i], &c, &a, &arena);
        forward(&be[i], &c, &b, &arena);
        assert_same_bits(tensor_rows(b.o, 70, 30), tensor_rows(a.o, 70, 30), "rows 70 to 99");
        assert_true(element(b.o, 100 * 32) != element(a.o, 100 * 32));
    }
    arena_free(&arena);
}

static void attention__huge_scores_stay_finite_and_nan_stays_nan(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be[2];
    backend_ref_init(&be[0], 1);
    tested_backend_init(&be[1], 1);
    for (int i = 0; i < 2; i++) {
        AttentionCase c = {1, 1, 16, 1, 300, 300, 0, 0};
        Setup s = make_setup(&c, DTYPE_F32, &arena);
        for (int64_t j = 0; j < tensor_size(s.q); j++) set_element(s.q, j, 300 * element(s.q, j));
        forward(&be[i], &c, &s, &arena);
        backward(&be[i], &c, &s, &arena);
        for (int64_t j = 0; j < tensor_size(s.o); j++)
            assert_true(isfinite(element(s.o, j)) && isfinite(element(s.dq, j)) &&
                        isfinite(element(s.dk, j)));
        set_element(s.k, 5 * 16, (double)NAN);
        forward(&be[i], &c, &s, &arena);
        assert_true(isfinite(element(s.o, 4 * 16)) && isnan(element(s.o, 5 * 16)) &&
                    isnan(element(s.o, 299 * 16)));
    }
    arena_free(&arena);
}

static Outputs run_rope(const Backend *be, DType dtype, const void *one_case, Arena *arena)
{
    const RowsCase *c = one_case;
    int64_t rows = c->rows, dim = 2 * c->cols, heads = 3;
    Tensor x = arena_tensor3(arena, dtype, rows, heads, dim);
    fill_random(x, "x");
    Tensor cosine = random_tensor(arena, DTYPE_F32, 10, c->cols, "cos");
    Tensor sine = random_tensor(arena, DTYPE_F32, 10, c->cols, "sin");
    int32_t *position = ARENA_NEW(arena, int32_t, rows);
    for (int64_t t = 0; t < rows; t++) position[t] = (int32_t)(t * 7 % 10);
    RopeArgs args = {
        .x_thc = x, .cos_pc = cosine, .sin_pc = sine, .position_t = position, .inverse = rows % 2};
    be->rope(be, &args);
    Outputs out = {0};
    add_output(&out, x, 2e-7); /* two products and a sum */
    return out;
}

static void rope__cpu_is_ref_and_ignores_threads(void **state)
{
    (void)state;
    CHECK_CASES_BOTH(run_rope, rows_cases);
}

static void rope__inverse_turns_back(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Backend be;
    backend_ref_init(&be, 1);
    Tensor x = arena_tensor3(&arena, DTYPE_F64, 2, 1, 4),
           before = arena_tensor3(&arena, DTYPE_F64, 2, 1, 4);
    fill_random(x, "x");
    fill_random(before, "x");
    Tensor cosine = arena_tensor2(&arena, DTYPE_F64, 2, 2),
           sine = arena_tensor2(&arena, DTYPE_F64, 2, 2);
    for (int64_t i = 0; i < 4; i++)
        set_element(cosine, i, cos((double)i)), set_element(sine, i, sin((double)i));
    int32_t position[2] = {1, 0};
    RopeArgs args = {.x_thc = x, .cos_pc = cosine, .sin_pc = sine, .position_t = position};
    be.rope(&be, &args);
    /* token 0 is turned by angles 2 and 3: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin) */
    double x0 = element(before, 0), x2 = element(before, 2);
    assert_true(fabs(element(x, 0) - (x0 * cos(2) - x2 * sin(2))) < 1e-14);
    assert_true(fabs(element(x, 2) - (x2 * cos(2) + x0 * sin(2))) < 1e-14);
    args.inverse = true;
    be.rope(&be, &args);
    assert_near(x, before, 1e-14, 0, "turned back");
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(attention__one_query_with_a_cache_is_the_last_row),
        cmocka_unit_test(attention__sees_only_its_past_in_its_segment),
        cmocka_unit_test(attention__huge_scores_stay_finite_and_nan_stays_nan),
        cmocka_unit_test(rope__cpu_is_ref_and_ignores_threads),
        cmocka_unit_test(rope__inverse_turns_back),
    };
    return RUN_ON_EACH_PATH("kernels/attention", tests);
}
