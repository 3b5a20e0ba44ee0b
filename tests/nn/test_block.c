#include "fixture.h"
#include "nn/block.h"

/* A block of few numbers: T 7 tokens, D 8, H 4 heads of 4. */
enum { T = 7, D = 8, H = 4, C = 4, F_DENSE = 6, F = 5, E = 4, LAYER = 2 };

/* Printed by: python3 scripts/golden/nn_block.py   (HF transformers 4.57.6 in f64). Norm and dot product with
   sin(0.37 i² + 99) of y, of dx and of each parameter's gradient, in order of declaration. */
// clang-format off
typedef struct Summary { double norm, dot; } Summary;
static const struct {
    const char *name;
    int n_kv_heads;
    bool bias, is_moe;
    int top_k;
    bool normalise;
    Summary expected[16];
} golden[] = {
    {"dense", 1, true, false, 1, false,
     {{18.2735428576677, -26.9028574753924},
      {8.77298108335744, -12.9141792355976},
      {6.06388069173855, 0.0210804082532281},
      {11.4697571709302, -4.02111994013641},
      {3.50998290520978, -2.56826371930653},
      {9.71426355604246, -17.7821356715829},
      {2.71564033920797, 0.789343828777658},
      {11.6229210258223, 19.3869036880499},
      {9.16910906033255, 7.1296882524119},
      {18.3005269494393, 1.93424082579927},
      {4.36026666687892, 1.53384762660256},
      {6.90118299890843, -2.8035991277876},
      {8.27090739873787, -5.83947919228511},
      {1.44408826641672, 0.97626142933781},
      {5.86401454343483, -0.579302214404021},
      {4.15330152394666, 0.291008925573285}}},
    {"moe normalised", 2, false, true, 2, true,
     {{10.6863778086132, 4.21139822996572},
      {11.2060002152917, 4.99101417087233},
      {8.12757413610336, -11.9691876875288},
      {11.90264356457, 2.6883039931616},
      {9.32621343577605, 2.67631412025145},
      {15.7161565556493, -27.9289017817017},
      {18.8744662527807, 9.46309948009134},
      {6.28604122384587, -3.2624509481028},
      {5.2691863126874, -1.19540553137964},
      {3.39463665749664, 4.57057076299574},
      {3.83409971050622, 1.36845833796084},
      {10.4901442252702, 7.89964612353577},
      {4.84482484942159, 5.09919492523945}}},
    {"moe plain", 4, false, true, 3, false,
     {{7.82487520485489, 6.89470059343673},
      {15.9710056972439, 4.69779889318575},
      {13.0697287493226, -17.3383829370986},
      {12.1511922080679, 12.0320198440833},
      {13.2286070690802, 9.16103311130379},
      {22.3924544932965, -20.3685003135648},
      {20.599078661211, 21.4605800605262},
      {3.34794799664463, -1.27206037503012},
      {3.03748745115012, 0.648553128571884},
      {4.83142813224231, -6.04598747865102},
      {5.39042882254603, -1.10336863475651},
      {10.9146998500495, -5.33223970720942},
      {4.719323775653, 3.74175003794349}}},
};
// clang-format on

static BlockConfig block_config(const RopeTables *rope, int n_kv_heads, bool bias, bool is_moe,
                                int top_k, bool normalise)
{
    return (BlockConfig){.layer = LAYER,
                         .hidden = D,
                         .norm_eps = 1e-6,
                         .attention = {.n_heads = H,
                                       .n_kv_heads = n_kv_heads,
                                       .head_dim = C,
                                       .bias = bias,
                                       .qk_norm = true,
                                       .norm_eps = 1e-6,
                                       .scale = 0.5,
                                       .rope = rope},
                         .is_moe = is_moe,
                         .ffn_dense = F_DENSE,
                         .moe = {.n_experts = E, .top_k = top_k, .ffn = F, .normalise = normalise}};
}

typedef struct Layer {
    Fixture f;
    RopeTables rope;
    Block block;
    BlockSaved saved;
    RouterStats stats;
    int64_t count_e[E];
    Tensor first_id_tk; /* choices of the first forward: none may flip under a difference */
} Layer;

static void layer_open(Layer *l, DType dtype, int n_segments, const int *length, BlockConfig config)
{
    *l = (Layer){0};
    fixture_open(&l->f, dtype);
    fixture_row(&l->f, n_segments, length, 10);
    const RopeConfig rope = {.kind = ROPE_DEFAULT, .theta = 1e4};
    assert_int_equal(rope_tables_build(&l->rope, &l->f.model, &rope, C, 16, dtype), OK);
    config.attention.rope = &l->rope;
    l->stats.count_e = l->count_e;
    block_declare(&l->block, &l->f.set, &config);
    fixture_layout(&l->f);
}

static void layer_reset(Layer *l)
{
    arena_reset(&l->f.f_to_i);
    arena_reset(&l->f.f_to_w);
    arena_reset(&l->f.i_to_w);
}

static void forward(Subject *s)
{
    Layer *l = s->saved;
    layer_reset(l);
    block_forward(&l->block, &l->saved, &s->f->run, &s->f->f_to_i, &s->f->f_to_w, &l->stats, s->y,
                  s->x);
    assert_int_equal(s->f->scratch.used, 0);
    if (!l->block.config.is_moe) return;
    if (tensor_is_null(l->first_id_tk))
        l->first_id_tk = fixture_copy(s->f, l->saved.moe.router.id_tk);
    assert_same_bits("choices under a step", l->saved.moe.router.id_tk, l->first_id_tk);
}

/* NaN over the first bytes of an empty arena. */
static void spoil(Arena *arena, size_t bytes)
{
    ArenaMark mark = arena_mark(arena);
    memset(arena_take(arena, bytes), 0xff, bytes);
    arena_rewind(arena, mark);
}

static void backward_input(Subject *s, Tensor dx, double beta)
{
    (void)beta;
    Layer *l = s->saved;
    Fixture *f = s->f;
    block_backward_input(&l->block, &l->saved, &f->run, &f->i_to_w, dx, s->r);
    assert_int_equal(f->scratch.used, 0);
    /* What lives only until here is gone: W must not look at it. */
    const size_t bytes = f->f_to_i.used;
    arena_reset(&f->f_to_i);
    spoil(&f->f_to_i, bytes);
    spoil(&f->scratch, f->scratch.high_water);
}

static void backward_weight(Subject *s)
{
    Layer *l = s->saved;
    block_backward_weight(&l->block, &l->saved, &s->f->run);
    assert_int_equal(s->f->scratch.used, 0);
}

static double extra_loss(Subject *s)
{
    const Layer *l = s->saved;
    return s->f->mb.balancing_scale * l->stats.balancing_raw + s->f->mb.z_scale * l->stats.z_raw;
}

static Subject layer_subject(Layer *l)
{
    Fixture *f = &l->f;
    return (Subject){.f = f,
                     .saved = l,
                     .x = fixture_random(f, "x", f->mb.n_tokens, D),
                     .y = fixture_tensor(f, f->mb.n_tokens, D),
                     .r = fixture_random(f, "r", f->mb.n_tokens, D),
                     .forward = forward,
                     .backward_input = backward_input,
                     .backward_weight = backward_weight,
                     .extra_loss = extra_loss};
}

static void block__gradients_are_difference_quotients(void **state)
{
    (void)state;
    static const struct {
        int n_kv_heads;
        bool bias, is_moe;
        int top_k;
        bool normalise;
        double balancing_scale, z_scale;
    } cases[] = {
        {1, true, false, 1, false, 0, 0},
        {4, false, true, 2, true, 0, 0},
        {1, false, true, 2, true, 0.7, 0.05},
        {2, true, true, 1, false, 0.7, 0.05},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Layer l;
        layer_open(&l, DTYPE_F64, 3, (const int[]){4, 1, 2},
                   block_config(NULL, cases[i].n_kv_heads, cases[i].bias, cases[i].is_moe,
                                cases[i].top_k, cases[i].normalise));
        l.f.mb.balancing_scale = cases[i].balancing_scale;
        l.f.mb.z_scale = cases[i].z_scale;
        Subject s = layer_subject(&l);
        subject_check(&s);
        fixture_close(&l.f);
    }
}

/* The golden script's numbers. */
static void wave(Tensor t, double key)
{
    for (int64_t i = 0; i < tensor_size(t); i++)
        store(t, i, sin(0.37 * (double)i * (double)i + key));
}

static void check_summary(const char *name, const char *what, Tensor t, Summary expected)
{
    double norm = sqrt(dot(t, t)), sum = 0;
    for (int64_t i = 0; i < tensor_size(t); i++)
        sum += load(t, i) * sin(0.37 * (double)i * (double)i + 99);
    /* Both sides f64, printed with 15 digits. */
    if (!(fabs(norm - expected.norm) <= 1e-11 * expected.norm &&
          fabs(sum - expected.dot) <= 1e-11 * expected.norm))
        fail_msg("%s %s: norm %.15g dot %.15g, expected %.15g %.15g", name, what, norm, sum,
                 expected.norm, expected.dot);
}

static void block__equals_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        Layer l;
        layer_open(&l, DTYPE_F64, 1, (const int[]){T},
                   block_config(NULL, golden[i].n_kv_heads, golden[i].bias, golden[i].is_moe,
                                golden[i].top_k, golden[i].normalise));
        ParamSet *set = &l.f.set;
        for (int k = 0; k < set->n; k++) {
            Tensor w = set->at[k]->value;
            wave(w, k);
            for (int64_t j = 0; j < tensor_size(w); j++)
                store(w, j, set->at[k]->is_matrix ? 0.5 * load(w, j) : 1 + 0.3 * load(w, j));
        }
        Subject s = layer_subject(&l);
        Tensor dx = fixture_tensor(&l.f, T, D);
        wave(s.x, 50);
        wave(s.r, 60);
        subject_backward(&s, dx, 0);
        const Summary *expected = golden[i].expected;
        check_summary(golden[i].name, "y", s.y, expected[0]);
        check_summary(golden[i].name, "dx", dx, expected[1]);
        for (int k = 0; k < set->n; k++)
            check_summary(golden[i].name, set->at[k]->name, set->at[k]->grad, expected[2 + k]);
        fixture_close(&l.f);
    }
}

static void block__declares_in_the_order_of_the_model(void **state)
{
    (void)state;
    static const char *const names[2][11] = {
        {"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
         "self_attn.v_proj.weight", "self_attn.o_proj.weight", "self_attn.q_norm.weight",
         "self_attn.k_norm.weight", "post_attention_layernorm.weight", "mlp.gate_up_proj.weight",
         "mlp.down_proj.weight", NULL},
        {"input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
         "self_attn.v_proj.weight", "self_attn.o_proj.weight", "self_attn.q_norm.weight",
         "self_attn.k_norm.weight", "post_attention_layernorm.weight", "mlp.gate.weight",
         "mlp.experts.gate_up_proj", "mlp.experts.down_proj"}};
    for (int moe = 0; moe < 2; moe++) {
        Layer l;
        layer_open(&l, DTYPE_F32, 1, (const int[]){1}, block_config(NULL, 2, false, moe, 2, true));
        assert_int_equal(l.f.set.n, moe ? 11 : 10);
        for (int i = 0; i < l.f.set.n; i++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.%s", LAYER, names[moe][i]);
            assert_string_equal(l.f.set.at[i]->name, name);
        }
        fixture_close(&l.f);
    }
}

/* Bytes of an arena against the tensors that the plan puts there; each may be padded. */
static void check_bytes(const char *what, const Arena *arena, int64_t elements, int n_tensors)
{
    size_t least = (size_t)elements * sizeof(double), most = least + 128 * (size_t)n_tensors;
    if (arena->used < least || arena->used > most)
        fail_msg("%s: %zu bytes, expected %zu to %zu", what, arena->used, least, most);
}

static void block__keeps_what_the_plan_says_and_no_more(void **state)
{
    (void)state;
    enum { N = 256, G = 2, K = 2, R = N * K };
    for (int moe = 0; moe < 2; moe++) {
        Layer l;
        const int length[] = {16};
        layer_open(&l, DTYPE_F64, 1, length, block_config(NULL, G, false, moe, K, true));
        Fixture *f = &l.f;
        int segments[N / 16];
        for (int i = 0; i < N / 16; i++) segments[i] = 16;
        fixture_row(f, N / 16, segments, 10);
        Subject s = layer_subject(&l);
        forward(&s);
        /* x2 and two rstd; q k v, raw q k and their rstd, lse; then h, or p lse weight id count and h */
        int64_t to_i = N * (D + 2) + N * (2 * H * C + 3 * G * C + H + G + H);
        to_i += moe ? N * (E + 1 + K) + R / 2 + E + R * 2 * F : N * 2 * F_DENSE;
        /* h1 h2 o; then a, or a weight and lists */
        int64_t to_w = N * (2 * D + H * C);
        to_w += moe ? R * (F + 1) + 3 * R / 2 : N * F_DENSE;
        /* dx2, dq dk dv; then dh, or dlogit dh */
        int64_t i_to_w = N * (D + H * C + 2 * G * C);
        i_to_w += moe ? N * E + R * 2 * F : N * 2 * F_DENSE;
        check_bytes("f_to_i", &f->f_to_i, to_i, 18);
        check_bytes("f_to_w", &f->f_to_w, to_w, 10);
        block_backward_input(&l.block, &l.saved, &f->run, &f->i_to_w, fixture_tensor(f, N, D), s.r);
        check_bytes("i_to_w", &f->i_to_w, i_to_w, 6);
        fixture_close(f);
    }
}

/* A recomputed layer keeps nothing but x and runs its forward again in I, all in the arena I -> W. */
static void block__recomputed_gives_the_same_bits(void **state)
{
    (void)state;
    for (int moe = 0; moe < 2; moe++) {
        Layer l;
        layer_open(&l, DTYPE_F64, 2, (const int[]){5, 4},
                   block_config(NULL, 2, false, moe, 2, true));
        Fixture *f = &l.f;
        f->mb.balancing_scale = 0.7;
        f->mb.z_scale = 0.05;
        Subject s = layer_subject(&l);
        Tensor dx = fixture_tensor(f, f->mb.n_tokens, D), dx_again = fixture_copy(f, dx);
        Tensor y_again = fixture_copy(f, dx);
        subject_backward(&s, dx, 0);
        Tensor grads = fixture_copy(f, f->set.grads);

        paramset_zero_grads(&f->set);
        layer_reset(&l);
        ArenaMark mark = arena_mark(&f->f_to_i);
        block_forward(&l.block, &l.saved, &f->run, &f->f_to_i, &f->f_to_i, &l.stats, y_again, s.x);
        arena_rewind(&f->f_to_i, mark);
        assert_same_bits("y", y_again, s.y);
        block_forward(&l.block, &l.saved, &f->run, &f->i_to_w, &f->i_to_w, NULL, y_again, s.x);
        block_backward_input(&l.block, &l.saved, &f->run, &f->i_to_w, dx_again, s.r);
        block_backward_weight(&l.block, &l.saved, &f->run);
        assert_same_bits("y again", y_again, s.y);
        assert_same_bits("dx", dx_again, dx);
        assert_same_bits("gradients", f->set.grads, grads);
        fixture_close(&l.f);
    }
}

static void block__cache_token_by_token_equals_the_whole(void **state)
{
    (void)state;
    enum { N = 8 };
    for (int moe = 0; moe < 2; moe++) {
        Layer l;
        layer_open(&l, DTYPE_F64, 1, (const int[]){N}, block_config(NULL, 2, false, moe, 2, true));
        Fixture *f = &l.f;
        Subject s = layer_subject(&l);
        forward(&s);
        Tensor k = fixture_tensor(f, N, 2 * C), v = fixture_tensor(f, N, 2 * C);
        Tensor y = fixture_tensor(f, N, D);
        KvCache cache = {
            .capacity = N, .first_layer = LAYER, .n_layers = 1, .k_tk = &k, .v_tk = &v};
        MicroBatch row = f->mb;
        f->run.kv = &cache;
        for (; cache.length < N; cache.length++) {
            f->mb.n_tokens = 1;
            f->mb.cu_seqlens = (const int32_t[]){0, 1};
            f->mb.position_t = row.position_t + cache.length;
            layer_reset(&l);
            block_forward(&l.block, &l.saved, &f->run, &f->f_to_i, &f->f_to_i, NULL,
                          tensor_rows(y, cache.length, 1), tensor_rows(s.x, cache.length, 1));
        }
        assert_near("token by token", y, s.y, 1e-14);
        fixture_close(&l.f);
    }
}

static double distance(Tensor a, Tensor b)
{
    double squares = 0;
    assert_int_equal(tensor_size(a), tensor_size(b));
    for (int64_t i = 0; i < tensor_size(a); i++) squares += pow(load(a, i) - load(b, i), 2);
    return sqrt(squares / dot(b, b));
}

/* f32 on the cpu backend against f64 on ref, per tensor, relative to its norm. Inputs and weights are the same f32 numbers;
   sums have at most a few hundred terms, so errors are some roundings of 6e-8. */
static void block__f32_on_cpu_is_near_f64_on_ref(void **state)
{
    (void)state;
    const double tolerance = 2e-6;
    for (int moe = 0; moe < 2; moe++) {
        Layer exact, fast;
        Layer *layers[2] = {&exact, &fast};
        Subject s[2];
        Tensor dx[2];
        for (int i = 0; i < 2; i++) {
            Layer *l = layers[i];
            layer_open(l, i ? DTYPE_F32 : DTYPE_F64, 3, (const int[]){30, 1, 17},
                       block_config(NULL, 2, true, moe, 2, true));
            const RopeConfig rope = {.kind = ROPE_DEFAULT, .theta = 1e4};
            assert_int_equal(rope_tables_build(&l->rope, &l->f.model, &rope, C, 30, l->f.run.dtype),
                             OK);
            l->f.mb.balancing_scale = 0.7;
            l->f.mb.z_scale = 0.05;
            s[i] = layer_subject(l);
            if (i) backend_cpu_init(&l->f.be, kernel_path_best(), 2);
            Tensor rounded[80] = {s[i].x, s[i].r};
            int n = 2;
            for (int k = 0; k < l->f.set.n; k++) rounded[n++] = l->f.set.at[k]->value;
            for (int k = 0; k < n; k++)
                for (int64_t j = 0; j < tensor_size(rounded[k]); j++)
                    store(rounded[k], j, (double)(float)load(rounded[k], j));
            dx[i] = fixture_tensor(&l->f, l->f.mb.n_tokens, D);
            subject_backward(&s[i], dx[i], 0);
        }
        if (moe) assert_same_bits("choices", fast.first_id_tk, exact.first_id_tk);
        double worst = fmax(distance(s[1].y, s[0].y), distance(dx[1], dx[0]));
        for (int k = 0; k < exact.f.set.n; k++)
            worst = fmax(worst, distance(fast.f.set.at[k]->grad, exact.f.set.at[k]->grad));
        if (!(worst <= tolerance)) fail_msg("moe %d: worst tensor is off by %g", moe, worst);
        if (moe) {
            assert_true(fabs(fast.stats.balancing_raw / exact.stats.balancing_raw - 1) < 1e-6);
            assert_true(fabs(fast.stats.z_raw / exact.stats.z_raw - 1) < 1e-6);
        }
        fixture_close(&exact.f);
        fixture_close(&fast.f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(block__gradients_are_difference_quotients),
        cmocka_unit_test(block__equals_transformers),
        cmocka_unit_test(block__declares_in_the_order_of_the_model),
        cmocka_unit_test(block__keeps_what_the_plan_says_and_no_more),
        cmocka_unit_test(block__recomputed_gives_the_same_bits),
        cmocka_unit_test(block__cache_token_by_token_equals_the_whole),
        cmocka_unit_test(block__f32_on_cpu_is_near_f64_on_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
