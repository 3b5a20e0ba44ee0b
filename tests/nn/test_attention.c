#include "fixture.h"
#include "nn/attention.h"

enum { D = 6, C = 4 };
static const RopeConfig plain_rope = {.kind = ROPE_DEFAULT, .theta = 50};

static void forward(Subject *s)
{
    attention_forward(s->module, s->saved, &s->f->run, s->y, s->x);
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    attention_backward_input(s->module, s->saved, &s->f->run, dx, s->r, beta);
}

static void backward_weight(Subject *s)
{
    attention_backward_weight(s->module, s->saved, &s->f->run);
}

/* Every tensor that the header lets the caller set, for n tokens. */
static void take(Fixture *f, AttentionSaved *s, const AttentionConfig *c, int64_t n)
{
    const int64_t q = c->n_heads * C, kv = c->n_kv_heads * C;
    *s = (AttentionSaved){.q_tq = fixture_tensor(f, n, q),
                          .k_tk = fixture_tensor(f, n, kv),
                          .v_tk = fixture_tensor(f, n, kv),
                          .lse_ht = fixture_tensor(f, c->n_heads, n),
                          .o_tq = fixture_tensor(f, n, q),
                          .dq_tq = fixture_tensor(f, n, q),
                          .dk_tk = fixture_tensor(f, n, kv),
                          .dv_tk = fixture_tensor(f, n, kv)};
    if (!c->qk_norm) return;
    s->q_raw_tq = fixture_tensor(f, n, q);
    s->k_raw_tk = fixture_tensor(f, n, kv);
    s->q_norm.rstd_n = arena_tensor1(&f->data, f->run.dtype_acc, n * c->n_heads);
    s->k_norm.rstd_n = arena_tensor1(&f->data, f->run.dtype_acc, n * c->n_kv_heads);
}

/* One head vector of token t: projection, bias, norm, rope; in plain loops. norm NULL: none. */
static void head_vector(const Attention *m, const Linear *p, const RmsNorm *norm, bool rope,
                        Tensor x, int64_t t, int64_t h, int position, double *out_c)
{
    double squares = 0, turned[C];
    for (int64_t c = 0; c < C; c++) {
        out_c[c] = p->b_o ? load(p->b_o->value, h * C + c) : 0;
        for (int64_t d = 0; d < D; d++)
            out_c[c] += load(x, t * D + d) * load(p->w_oi->value, (h * C + c) * D + d);
        squares += out_c[c] * out_c[c];
    }
    for (int64_t c = 0; norm && c < C; c++)
        out_c[c] *= load(norm->w_d->value, c) / sqrt(squares / C + m->config.norm_eps);
    for (int64_t c = 0; rope && c < C; c++) {
        int64_t i = c % (C / 2);
        double cosine = load(m->config.rope->cos_pc, position * (C / 2) + i);
        double sine = load(m->config.rope->sin_pc, position * (C / 2) + i);
        double other = c < C / 2 ? -out_c[c + C / 2] : out_c[c - C / 2];
        turned[c] = out_c[c] * cosine + other * sine;
    }
    if (rope) memcpy(out_c, turned, sizeof turned);
}

static void check_forward(const Attention *m, const MicroBatch *mb, Tensor y, Tensor x)
{
    const AttentionConfig *config = &m->config;
    const int64_t n_heads = config->n_heads, group = n_heads / config->n_kv_heads;
    const RmsNorm *q_norm = config->qk_norm ? &m->q_norm : NULL;
    const RmsNorm *k_norm = config->qk_norm ? &m->k_norm : NULL;
    for (int s = 0; s < mb->n_segments; s++)
        for (int32_t t = mb->cu_seqlens[s]; t < mb->cu_seqlens[s + 1]; t++) {
            double o[64];
            for (int64_t h = 0; h < n_heads; h++) {
                double q[C], k[C], v[C], sum = 0, mean[C] = {0};
                head_vector(m, &m->q_proj, q_norm, true, x, t, h, mb->position_t[t], q);
                for (int32_t j = mb->cu_seqlens[s]; j <= t; j++) {
                    head_vector(m, &m->k_proj, k_norm, true, x, j, h / group, mb->position_t[j], k);
                    head_vector(m, &m->v_proj, NULL, false, x, j, h / group, 0, v);
                    double score = 0;
                    for (int c = 0; c < C; c++) score += q[c] * k[c];
                    double p = exp(config->scale * score);
                    sum += p;
                    for (int c = 0; c < C; c++) mean[c] += p * v[c];
                }
                for (int c = 0; c < C; c++) o[h * C + c] = mean[c] / sum;
            }
            for (int64_t d = 0; d < D; d++) {
                double expected = m->o_proj.b_o ? load(m->o_proj.b_o->value, d) : 0;
                for (int64_t i = 0; i < n_heads * C; i++)
                    expected += o[i] * load(m->o_proj.w_oi->value, d * n_heads * C + i);
                assert_true(fabs(load(y, t * D + d) - expected) < 1e-12);
            }
        }
}

static void check(int n_heads, int n_kv_heads, bool bias, bool qk_norm, RopeConfig rope)
{
    Fixture f;
    Attention m;
    AttentionSaved saved;
    RopeTables tables;
    fixture_open(&f, DTYPE_F64);
    fixture_row(&f, 3, (const int[]){4, 1, 3}, 10);
    assert_int_equal(rope_tables_build(&tables, &f.model, &rope, C, 4, DTYPE_F64), OK);
    AttentionConfig config = {.n_heads = n_heads,
                              .n_kv_heads = n_kv_heads,
                              .head_dim = C,
                              .bias = bias,
                              .qk_norm = qk_norm,
                              .norm_eps = 0.1,
                              .scale = 0.6,
                              .rope = &tables};
    attention_declare(&m, &f.set, 4, D, &config);
    fixture_layout(&f);
    take(&f, &saved, &config, f.mb.n_tokens);
    Subject s = {.f = &f,
                 .module = &m,
                 .saved = &saved,
                 .has_beta = true,
                 .x = fixture_random(&f, "x", f.mb.n_tokens, D),
                 .y = fixture_tensor(&f, f.mb.n_tokens, D),
                 .r = fixture_random(&f, "r", f.mb.n_tokens, D),
                 .forward = forward,
                 .backward_input = backward_input,
                 .backward_weight = backward_weight};
    forward(&s);
    check_forward(&m, &f.mb, s.y, s.x);
    subject_check(&s);
    fixture_close(&f);
}

static void attention__matches_the_formula_and_its_gradients(void **state)
{
    (void)state;
    const RopeConfig yarn = {.kind = ROPE_YARN,
                             .theta = 50,
                             .factor = 4,
                             .beta_fast = 32,
                             .beta_slow = 1,
                             .original_max_positions = 8};
    check(2, 2, false, false, plain_rope);
    check(4, 1, false, true, plain_rope);
    check(4, 2, true, true, plain_rope);
    check(4, 1, true, false, yarn); /* attention factor: cos² + sin² is not 1 */
}

static void attention__declares_in_the_order_of_the_model(void **state)
{
    (void)state;
    static const char *const names[] = {
        "q_proj.weight", "q_proj.bias",   "k_proj.weight", "k_proj.bias",   "v_proj.weight",
        "v_proj.bias",   "o_proj.weight", "o_proj.bias",   "q_norm.weight", "k_norm.weight"};
    Fixture f;
    Attention m;
    fixture_open(&f, DTYPE_F32);
    attention_declare(
        &m, &f.set, 12, D,
        &(AttentionConfig){
            .n_heads = 4, .n_kv_heads = 2, .head_dim = C, .bias = true, .qk_norm = true});
    assert_int_equal(f.set.n, 10);
    for (int i = 0; i < 10; i++) {
        char name[80];
        snprintf(name, sizeof name, "model.layers.12.self_attn.%s", names[i]);
        assert_string_equal(f.set.at[i]->name, name);
    }
    assert_int_equal(f.set.at[2]->value.dim[0], 2 * C);
    assert_int_equal(f.set.at[6]->value.dim[1], 4 * C);
    assert_int_equal(f.set.at[8]->value.dim[0], C);
    fixture_close(&f);
}

/* The sequence in the pieces of `piece` through a cache equals the whole at once. */
static void check_cache(const int *piece, int n_pieces, bool qk_norm)
{
    enum { N = 9, CAPACITY = 10, LAYER = 4 };
    Fixture f;
    Attention m;
    AttentionSaved saved;
    RopeTables tables;
    fixture_open(&f, DTYPE_F64);
    fixture_row(&f, 1, (const int[]){N}, 10);
    assert_int_equal(rope_tables_build(&tables, &f.model, &plain_rope, C, N, DTYPE_F64), OK);
    AttentionConfig config = {.n_heads = 4,
                              .n_kv_heads = 2,
                              .head_dim = C,
                              .qk_norm = qk_norm,
                              .norm_eps = 1e-6,
                              .scale = 0.5,
                              .rope = &tables};
    attention_declare(&m, &f.set, LAYER, D, &config);
    fixture_layout(&f);
    Tensor x = fixture_random(&f, "x", N, D), whole = fixture_tensor(&f, N, D);
    Tensor y = fixture_tensor(&f, N, D);
    take(&f, &saved, &config, N);
    attention_forward(&m, &saved, &f.run, whole, x);

    Tensor k[2], v[2];
    for (int i = 0; i < 2; i++) {
        k[i] = fixture_tensor(&f, CAPACITY, 2 * C);
        v[i] = fixture_tensor(&f, CAPACITY, 2 * C);
    }
    KvCache cache = {
        .capacity = CAPACITY, .first_layer = LAYER - 1, .n_layers = 2, .k_tk = k, .v_tk = v};
    MicroBatch row = f.mb, part = f.mb;
    f.run.kv = &cache;
    f.run.mb = &part;
    for (int i = 0; i < n_pieces; i++) {
        int32_t cu[2] = {0, piece[i]};
        part.n_tokens = piece[i];
        part.cu_seqlens = cu;
        part.position_t = row.position_t + cache.length;
        take(&f, &saved, &config, piece[i]);
        saved.k_tk = saved.v_tk = (Tensor){0};
        attention_forward(&m, &saved, &f.run, tensor_rows(y, cache.length, piece[i]),
                          tensor_rows(x, cache.length, piece[i]));
        cache.length += piece[i];
    }
    assert_int_equal(cache.length, N);
    assert_near("in pieces", y, whole, 1e-14);
    for (int64_t i = 0; i < CAPACITY * 2 * C; i++) assert_true(load(k[0], i) == 0);
    fixture_close(&f);
}

static void attention__cache_in_pieces_equals_the_whole(void **state)
{
    (void)state;
    check_cache((const int[]){1, 1, 1, 1, 1, 1, 1, 1, 1}, 9, true);
    check_cache((const int[]){4, 1, 3, 1}, 4, true);
    check_cache((const int[]){5, 4}, 2, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention__matches_the_formula_and_its_gradients),
        cmocka_unit_test(attention__declares_in_the_order_of_the_model),
        cmocka_unit_test(attention__cache_in_pieces_equals_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
