/*
 * Stages driven by hand: however a model is cut, recomputed and ordered, the same bits come out. On both backends; what the
 * numbers should be is compared with HuggingFace elsewhere.
 */
#include "model_test.h"

#include <math.h>

enum { N_MB = 3, MAX_STAGES = 4, VOCAB = 50, TOKENS_MAX = 40 };

/* A model in n_stages stages on one thread, and the rows it runs. */
typedef struct Pipe {
    Arena arena;
    Backend be;
    ModelConfig *config;
    ParamSet set;
    RopeTables rope;
    Stage *stage[MAX_STAGES];
    StageMemory memory[MAX_STAGES]; /* each its own: all keep the same slots at once */
    int n_stages;
    MicroBatch mb[N_MB];
} Pipe;

typedef struct PipeSetup {
    const char *patch; /* on MOE_JSON */
    int64_t split[MAX_STAGES];
    double recompute;
    int64_t chunk;
    int n_threads;
    bool ref, together; /* together: balancing loss of all layers */
    DType dtype;
} PipeSetup;

static void make_row(MicroBatch *mb, int index, int n_segments, const int *length, Arena *arena)
{
    int32_t *cu = ARENA_NEW(arena, int32_t, n_segments + 1);
    for (int s = 0; s < n_segments; s++) cu[s + 1] = cu[s] + length[s];
    int64_t n = cu[n_segments];
    int32_t *id = ARENA_NEW(arena, int32_t, n), *position = ARENA_NEW(arena, int32_t, n),
            *target = ARENA_NEW(arena, int32_t, n);
    double *weight = ARENA_NEW(arena, double, n);
    *mb = (MicroBatch){.index = index,
                       .n_tokens = n,
                       .n_segments = n_segments,
                       .cu_seqlens = cu,
                       .id_t = id,
                       .position_t = position,
                       .target_t = target,
                       .weight_t = weight,
                       .balancing_scale = 0.02,
                       .z_scale = 0.003};
    for (int s = 0; s < n_segments; s++)
        for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
            id[t] = (t * 17 + 11 * index + t * t) % VOCAB;
            position[t] = t - cu[s];
            bool trained = t + 1 < cu[s + 1] && t % 5 != 2;
            target[t] = trained ? (t * 31 + 7 * index) % VOCAB : LABEL_NONE;
            weight[t] = trained ? 1.0 / 40 : 0;
            mb->n_trained += trained;
        }
}

static void pipe_open(Pipe *p, const PipeSetup *setup)
{
    *p = (Pipe){0};
    arena_init(&p->arena, "pipe");
    if (setup->ref)
        backend_ref_init(&p->be, 1);
    else
        backend_cpu_init(&p->be, kernel_path_best(), setup->n_threads ? setup->n_threads : 1);
    assert_ok(config_of(&p->config, &p->arena, MOE_JSON, setup->patch, NULL));
    assert_ok(rope_tables_build(&p->rope, &p->arena, &p->config->rope, p->config->head_dim,
                                TOKENS_MAX, setup->dtype));
    paramset_init(&p->set, &p->arena, setup->dtype, setup->dtype);
    ModelPart part[MAX_STAGES];
    int64_t first = 0;
    while (p->n_stages < MAX_STAGES && setup->split[p->n_stages]) {
        int64_t n = setup->split[p->n_stages];
        LayerRange range = {first, n, first == 0, first + n == p->config->n_layers};
        model_part_declare(&part[p->n_stages++], &p->set, p->config, range, &p->rope, setup->chunk);
        first += n;
    }
    model_link_tied(&p->set);
    assert_ok(paramset_layout(&p->set, true));
    hf_init(p->config, &p->set, 5, &p->arena);
    StageConfig slots = {.n_microbatches = N_MB,
                         .recompute_ratio = setup->recompute,
                         .balancing_together = setup->together};
    for (int s = 0; s < p->n_stages; s++) {
        assert_ok(stage_memory_create(&p->memory[s], N_MB, N_MB, N_MB, &p->arena));
        assert_ok(stage_create(&p->stage[s], p->config, &part[s], &slots, &p->memory[s], &p->be,
                               setup->dtype, &p->arena));
    }
    make_row(&p->mb[0], 0, 3, (int[]){9, 1, 13}, &p->arena);
    make_row(&p->mb[1], 1, 1, (int[]){1}, &p->arena); /* one token, nothing to learn */
    make_row(&p->mb[2], 2, 2, (int[]){20, 17}, &p->arena);
}

static void pipe_close(Pipe *p)
{
    for (int s = 0; s < p->n_stages; s++) stage_memory_free(&p->memory[s]);
    arena_free(&p->arena);
}

static Slots slots_of(int mb)
{
    return (Slots){.f_to_i = mb, .f_to_w = mb, .i_to_w = mb, .send = -1};
}

static void forward(Pipe *p, int m, ForwardMode mode)
{
    HandOver x = stage_ops.open_forward(p->stage[0], slots_of(m), &p->mb[m]);
    for (int s = 0; s < p->n_stages; s++) {
        HandOver y = {0};
        if (s + 1 < p->n_stages)
            y = stage_ops.open_forward(p->stage[s + 1], slots_of(m), &p->mb[m]);
        stage_ops.forward(p->stage[s], slots_of(m), &p->mb[m], y, x, mode);
        x = y;
    }
}

static void backward_input(Pipe *p, int m)
{
    HandOver dy = stage_ops.open_backward(p->stage[p->n_stages - 1], slots_of(m), &p->mb[m]);
    for (int s = p->n_stages - 1; s >= 0; s--) {
        HandOver dx = {0};
        if (s > 0) dx = stage_ops.open_backward(p->stage[s - 1], slots_of(m), &p->mb[m]);
        stage_ops.backward_input(p->stage[s], slots_of(m), &p->mb[m], dx, dy);
        dy = dx;
    }
}

static void backward_weight(Pipe *p, int m)
{
    for (int s = p->n_stages - 1; s >= 0; s--)
        stage_ops.backward_weight(p->stage[s], slots_of(m), &p->mb[m]);
}

/* Orders of the actions; weight gradients always in ascending microbatches. */
typedef enum { ORDER_ALL_F_FIRST, ORDER_ONE_BY_ONE, ORDER_W_LAST, ORDER_COUNT } Order;

static void step(Pipe *p, Order order)
{
    paramset_zero_grads(&p->set);
    for (int m = 0; m < N_MB; m++) {
        forward(p, m, FORWARD_TRAIN);
        if (order == ORDER_ONE_BY_ONE) {
            backward_input(p, m);
            backward_weight(p, m);
        }
    }
    for (int m = 0; m < N_MB && order != ORDER_ONE_BY_ONE; m++) {
        backward_input(p, m);
        if (order == ORDER_ALL_F_FIRST) backward_weight(p, m);
    }
    for (int m = 0; m < N_MB && order == ORDER_W_LAST; m++) backward_weight(p, m);
}

/* Where the results of a layer stand. */
static const Stage *stage_of(const Pipe *p, int64_t layer, int64_t *at)
{
    int s = 0;
    while (layer >= p->stage[s]->part.range.first + p->stage[s]->part.range.n) s++;
    *at = layer - p->stage[s]->part.range.first;
    return p->stage[s];
}

static void assert_same_results(const Pipe *got, const Pipe *want, const char *what)
{
    const Stage *x = got->stage[got->n_stages - 1], *y = want->stage[want->n_stages - 1];
    for (int m = 0; m < N_MB; m++)
        if (x->ce_m[m] != y->ce_m[m])
            fail_msg("%s: loss of row %d is %.17g, expected %.17g", what, m, x->ce_m[m],
                     y->ce_m[m]);
    assert_memory_equal(x->balancing_raw_m, y->balancing_raw_m, N_MB * sizeof(double));
    int64_t n_experts = want->config->n_experts;
    for (int64_t layer = 0; layer < want->config->n_layers; layer++)
        for (int m = 0; m < N_MB; m++) {
            int64_t i, k;
            const Stage *a = stage_of(got, layer, &i), *b = stage_of(want, layer, &k);
            i += m * a->part.range.n;
            k += m * b->part.range.n;
            assert_true(a->balancing_raw_ml[i] == b->balancing_raw_ml[k]);
            assert_true(a->z_raw_ml[i] == b->z_raw_ml[k]);
            assert_memory_equal(a->count_mle + i * n_experts, b->count_mle + k * n_experts,
                                (size_t)n_experts * sizeof(int64_t));
        }
    assert_int_equal(got->set.n, want->set.n);
    for (int i = 0; i < want->set.n; i++) {
        const Param *a = got->set.at[i], *b = want->set.at[i];
        assert_string_equal(a->name, b->name);
        if (memcmp(a->grad.data, b->grad.data, tensor_bytes(b->grad)) != 0)
            fail_msg("%s: gradient of %s differs", what, a->name);
    }
}

/* Nothing above means anything if the gradients were zero. */
static void assert_all_learn(const Pipe *p)
{
    for (int i = 0; i < p->set.n; i++) {
        const float *g = p->set.at[i]->grad.data;
        double sum = 0;
        for (int64_t k = 0; k < tensor_size(p->set.at[i]->grad); k++) sum += fabs((double)g[k]);
        if (!(sum > 1e-12 && isfinite(sum)))
            fail_msg("gradient of %s: %g", p->set.at[i]->name, sum);
    }
}

static void check_cuts(bool ref, bool together, const char *patch)
{
    static const PipeSetup cuts[] = {
        {.split = {1, 3}},
        {.split = {3, 1}},
        {.split = {2, 2}, .recompute = 0.5},
        {.split = {1, 1, 1, 1}},
        {.split = {1, 1, 1, 1}, .recompute = 1},
        {.split = {4}, .recompute = 1},
        {.split = {4}, .recompute = 0.3},
        {.split = {4}, .n_threads = 3},
        {.split = {2, 2}, .n_threads = 2, .recompute = 0.75},
    };
    Pipe whole, cut;
    pipe_open(
        &whole,
        &(PipeSetup){.split = {4}, .ref = ref, .together = together, .patch = patch, .chunk = 8});
    step(&whole, ORDER_ALL_F_FIRST);
    assert_all_learn(&whole);
    for (int m = 0; m < N_MB; m++)
        assert_true((whole.stage[0]->balancing_raw_m[m] > 0) == together);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        PipeSetup setup = cuts[i];
        setup.ref = ref;
        setup.together = together;
        setup.patch = patch;
        setup.chunk = 8;
        pipe_open(&cut, &setup);
        for (Order order = 0; order < ORDER_COUNT; order++) {
            char what[64];
            snprintf(what, sizeof what, "%s, cut %d, order %d", ref ? "ref" : "cpu", (int)i,
                     (int)order);
            step(&cut, order);
            assert_same_results(&cut, &whole, what);
        }
        pipe_close(&cut);
    }
    pipe_close(&whole);
}

static void stage__any_cut_order_and_recompute_gives_the_same_bits_on_ref(void **state)
{
    (void)state;
    check_cuts(true, false, "{\"attention_bias\": true}");
    check_cuts(true, true, NULL);
}

static void stage__any_cut_order_and_recompute_gives_the_same_bits_on_cpu(void **state)
{
    (void)state;
    check_cuts(false, false, "{\"attention_bias\": true}");
    check_cuts(false, false, "{\"tie_word_embeddings\": true, \"mlp_only_layers\": []}");
    check_cuts(false, true, "{\"mlp_only_layers\": []}");
    check_cuts(false, true, "{\"mlp_only_layers\": [0, 3]}");
}

/* Of a step whose rows weigh as make_row says. */
static double total_loss(Pipe *p)
{
    double sum = 0;
    for (int m = 0; m < N_MB; m++) {
        const Stage *last = p->stage[p->n_stages - 1];
        forward(p, m, FORWARD_LOSS);
        sum += last->ce_m[m] + p->mb[m].balancing_scale * last->balancing_raw_m[m];
        for (int64_t layer = 0; layer < p->config->n_layers; layer++) {
            int64_t i;
            const Stage *s = stage_of(p, layer, &i);
            i += m * s->part.range.n;
            sum += p->mb[m].balancing_scale * s->balancing_raw_ml[i] +
                   p->mb[m].z_scale * s->z_raw_ml[i];
        }
    }
    return sum;
}

/*
 * Gradients against central differences, in double precision: two layers of experts on two stages, a dense
 * one between. A third of the routers' elements, a few of the others; truncation and cancellation are as
 * tests/nn/fixture.h says.
 */
static void check_differences(bool together)
{
    const double step_size = 1e-5, tolerance = 1e-6;
    Pipe p;
    pipe_open(&p, &(PipeSetup){.split = {2, 1},
                               .ref = true,
                               .together = together,
                               .dtype = DTYPE_F64,
                               .patch = "{\"num_hidden_layers\": 3}"});
    for (int m = 0; m < N_MB; m++) p.mb[m].balancing_scale = 2; /* as strong as the rest */
    step(&p, ORDER_ONE_BY_ONE);
    for (int i = 0; i < p.set.n; i++) {
        const Param *param = p.set.at[i];
        double *value = param->value.data, largest = 0;
        const double *grad = param->grad.data;
        int64_t n = tensor_size(param->value),
                stride = strstr(param->name, "gate.weight") ? 3 : 307;
        for (int64_t k = 0; k < n; k++) largest = fmax(largest, fabs(grad[k]));
        assert_true(largest > 0);
        for (int64_t k = 0; k < n; k += stride) {
            double keep = value[k];
            value[k] = keep + step_size;
            double up = total_loss(&p);
            value[k] = keep - step_size;
            double down = total_loss(&p);
            value[k] = keep;
            double want = (up - down) / (2 * step_size);
            if (!(fabs(grad[k] - want) <= tolerance * largest))
                fail_msg("%s[%lld]: %.12g, difference quotient %.12g, largest %.3g", param->name,
                         (long long)k, grad[k], want, largest);
        }
    }
    pipe_close(&p);
}

static void stage__gradients_are_difference_quotients(void **state)
{
    (void)state;
    check_differences(false);
    check_differences(true);
}

static void stage__layers_below_the_ratio_are_recomputed_but_never_the_last(void **state)
{
    (void)state;
    static const struct {
        double ratio;
        int n;
    } rows[] = {{0, 0}, {0.24, 0}, {0.25, 1}, {0.5, 2}, {0.99, 3}, {1, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Pipe p;
        pipe_open(&p, &(PipeSetup){.split = {4}, .recompute = rows[i].ratio});
        assert_int_equal(p.stage[0]->n_recomputed, rows[i].n);
        pipe_close(&p);
    }
    Pipe p;
    /* int(100 * 0.29) is 28 in double precision */
    pipe_open(&p, &(PipeSetup){
                      .split = {100}, .recompute = 0.29, .patch = "{\"num_hidden_layers\": 100}"});
    assert_int_equal(p.stage[0]->n_recomputed, 28);
    pipe_close(&p);
}

/* A recomputed layer keeps its input alone: the more, the less is held from F to I and W. */
static void stage__recomputing_holds_less(void **state)
{
    (void)state;
    size_t held[2];
    for (int k = 0; k < 2; k++) {
        Pipe p;
        pipe_open(&p, &(PipeSetup){.split = {4}, .recompute = k});
        step(&p, ORDER_ALL_F_FIRST);
        held[k] = p.memory[0].f_to_i[2].high_water + p.memory[0].f_to_w[2].high_water;
        pipe_close(&p);
    }
    assert_true(held[1] < held[0] / 2);
}

static void stage__a_third_step_asks_for_no_memory(void **state)
{
    (void)state;
    Pipe p;
    pipe_open(&p, &(PipeSetup){.split = {2, 2}, .recompute = 0.5});
    for (int k = 0; k < 2; k++)
        step(&p, ORDER_W_LAST); /* arenas grow, then make one chunk of their pieces */
    int64_t growths = 0, again = 0;
    for (int s = 0; s < 2; s++) growths += stage_memory_growths(&p.memory[s]);
    assert_true(growths > 0 && stage_memory_high_water(&p.memory[0]) > 0);
    for (int k = 0; k < 3; k++) step(&p, ORDER_W_LAST);
    for (int s = 0; s < 2; s++) again += stage_memory_growths(&p.memory[s]);
    assert_int_equal(again, growths);
    pipe_close(&p);
}

static void stage__forward_only_loses_as_much_as_training(void **state)
{
    (void)state;
    for (int cut = 0; cut < 4; cut++) {
        Pipe p;
        pipe_open(&p, &(PipeSetup){
                          .split = {cut % 2 ? 1 : 4, cut % 2 ? 3 : 0}, .ref = cut > 1, .chunk = 8});
        Stage *last = p.stage[p.n_stages - 1];
        double ce[N_MB];
        step(&p, ORDER_ALL_F_FIRST);
        memcpy(ce, last->ce_m, sizeof ce);
        assert_true(ce[0] > 0 && ce[2] > 0 && ce[1] == 0);
        void *grads = arena_take(&p.arena, tensor_bytes(p.set.grads));
        memcpy(grads, p.set.grads.data, tensor_bytes(p.set.grads));
        memset(last->ce_m, 0, sizeof ce);
        for (int m = 0; m < N_MB; m++) forward(&p, m, FORWARD_LOSS);
        for (int m = 0; m < N_MB; m++) assert_true(last->ce_m[m] == ce[m]);
        assert_memory_equal(grads, p.set.grads.data, tensor_bytes(p.set.grads));
        pipe_close(&p);
    }
}

static float *logits_of(Pipe *p, ForwardMode mode, int m)
{
    Stage *last = p->stage[p->n_stages - 1];
    last->logits_m = ARENA_NEW(&p->arena, Tensor, N_MB);
    for (int k = 0; k < N_MB; k++)
        last->logits_m[k] = arena_tensor2(&p->arena, DTYPE_F32, p->mb[k].n_tokens, VOCAB);
    forward(p, m, mode);
    return last->logits_m[m].data;
}

static void stage__logits_are_the_same_in_all_modes(void **state)
{
    (void)state;
    Pipe p;
    pipe_open(&p, &(PipeSetup){.split = {2, 2}, .chunk = 8});
    size_t bytes = (size_t)p.mb[2].n_tokens * VOCAB * 4;
    float *train = logits_of(&p, FORWARD_TRAIN, 2), *loss = logits_of(&p, FORWARD_LOSS, 2),
          *logits = logits_of(&p, FORWARD_LOGITS, 2);
    assert_memory_equal(train, loss, bytes);
    assert_memory_equal(train, logits, bytes);
    pipe_close(&p);
}

/* A prompt of `first` tokens, then one by one, through a cache: the logits of the whole row's forward. */
static void check_decode(bool ref, int first)
{
    Pipe p;
    pipe_open(&p, &(PipeSetup){.split = {4}, .ref = ref});
    make_row(&p.mb[0], 0, 1, (int[]){21}, &p.arena);
    const float *want = logits_of(&p, FORWARD_LOGITS, 0);
    p.stage[0]->logits_m = NULL;
    int64_t row = p.config->n_kv_heads * p.config->head_dim;
    Tensor k[4], v[4];
    for (int l = 0; l < 4; l++) {
        k[l] = arena_tensor2(&p.arena, DTYPE_F32, 21, row);
        v[l] = arena_tensor2(&p.arena, DTYPE_F32, 21, row);
    }
    KvCache kv = {.capacity = 21, .n_layers = 4, .k_tk = k, .v_tk = v};
    Tensor logit = arena_tensor2(&p.arena, DTYPE_F32, 1, VOCAB);
    double largest = 0;
    for (int i = 0; i < 21 * VOCAB; i++) largest = fmax(largest, fabs((double)want[i]));
    for (int32_t at = 0, n = first; at < 21; at += n, n = 1) {
        MicroBatch mb = {.n_tokens = n,
                         .n_segments = 1,
                         .cu_seqlens = (int32_t[]){0, n},
                         .id_t = p.mb[0].id_t + at,
                         .position_t = p.mb[0].position_t + at};
        stage_decode(p.stage[0], &mb, &kv, logit);
        assert_int_equal(kv.length, at + n);
        for (int i = 0; i < VOCAB; i++) {
            double got = (double)((float *)logit.data)[i],
                   w = (double)want[(at + n - 1) * VOCAB + i];
            /* f32 products in other shapes: some 1e-7 of the largest logit. */
            if (!(fabs(got - w) <= 2e-6 * largest))
                fail_msg("token %d, id %d: %g, expected %g", at + n - 1, i, got, w);
        }
    }
    pipe_close(&p);
}

static void stage__decoding_token_by_token_gives_the_forwards_logits(void **state)
{
    (void)state;
    for (int ref = 0; ref < 2; ref++) {
        check_decode(ref, 1);
        check_decode(ref, 8);
        check_decode(ref, 21);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stage__any_cut_order_and_recompute_gives_the_same_bits_on_ref),
        cmocka_unit_test(stage__any_cut_order_and_recompute_gives_the_same_bits_on_cpu),
        cmocka_unit_test(stage__gradients_are_difference_quotients),
        cmocka_unit_test(stage__layers_below_the_ratio_are_recomputed_but_never_the_last),
        cmocka_unit_test(stage__recomputing_holds_less),
        cmocka_unit_test(stage__a_third_step_asks_for_no_memory),
        cmocka_unit_test(stage__forward_only_loses_as_much_as_training),
        cmocka_unit_test(stage__logits_are_the_same_in_all_modes),
        cmocka_unit_test(stage__decoding_token_by_token_gives_the_forwards_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
