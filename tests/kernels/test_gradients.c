/** Every backward of the reference kernels against central differences of its forward, in f64. */
#include "kernels/kernel_check.h"

/* With step 1e-5 the differences are off by about 1e-10 (third derivative) and 1e-16/1e-5 = 1e-11 (rounding). */
static const double step = 1e-5, tolerance = 1e-8;

/** A function of tensors whose elements the check moves one by one. */
typedef struct Objective {
    double (*value)(void *context);
    void *context;
} Objective;

/** dx (of x) as backward left it, minus `before`, must be the slope of the objective. */
static void check_gradient(Objective objective, Tensor x, Tensor dx, double before,
                           const char *what)
{
    Arena arena;
    arena_init(&arena, "numeric");
    Tensor slope = x, moved = dx;
    slope.data = ARENA_NEW(&arena, double, tensor_size(x));
    moved.data = ARENA_NEW(&arena, double, tensor_size(x));
    for (int64_t i = 0; i < tensor_size(x); i++) {
        double at = element(x, i);
        set_element(x, i, at + step);
        double above = objective.value(objective.context);
        set_element(x, i, at - step);
        double below = objective.value(objective.context);
        set_element(x, i, at);
        set_element(slope, i, (above - below) / (2 * step));
        set_element(moved, i, element(dx, i) - before);
    }
    assert_near(moved, slope, tolerance, 1e-2, what);
    arena_free(&arena);
}

/** sum of weight * y: the objective whose gradient by y is weight. */
static double weighted_sum(Tensor y, Tensor weight)
{
    double sum = 0;
    for (int64_t i = 0; i < tensor_size(y); i++) sum += element(y, i) * element(weight, i);
    return sum;
}

static Tensor f64(Arena *arena, int64_t d0, int64_t d1, const char *name)
{
    return random_tensor(arena, DTYPE_F64, d0, d1, name);
}

typedef struct Context {
    Backend be;
    Arena arena;
    union {
        GroupedGemmArgs grouped;
        RmsNormArgs norm;
        AttentionArgs attention;
        RouterArgs router;
        SwiGluArgs swiglu;
        CrossEntropyArgs loss;
        GatherRowsArgs gather;
    };
    Tensor dy, down, product, logit, work;
    double balance[8], z_scale;
} Context;

static void context_init(Context *c)
{
    memset(c, 0, sizeof *c);
    arena_init(&c->arena, "gradients");
    backend_ref_init(&c->be, 1);
}

static double grouped_value(void *context)
{
    Context *c = context;
    c->be.grouped_gemm(&c->be, &c->grouped);
    return weighted_sum(c->grouped.c, c->dy);
}

static void grouped_gemm__gradients(void **state)
{
    (void)state;
    Context c;
    context_init(&c);
    int32_t offset[] = {0, 3, 3, 7};
    Tensor x = f64(&c.arena, 7, 5, "x"), w = f64(&c.arena, 3, 20, "w");
    w = tensor3(w.data, DTYPE_F64, 3, 4, 5);
    c.dy = f64(&c.arena, 7, 4, "dy");
    c.grouped = (GroupedGemmArgs){GROUPED_FORWARD, f64(&c.arena, 7, 4, "y"), x, w, offset, 3, 0};
    Tensor dx = f64(&c.arena, 7, 5, "dx"), dw = filled_tensor(&c.arena, DTYPE_F64, 3, 20, 0.5);
    dw = tensor3(dw.data, DTYPE_F64, 3, 4, 5);
    GroupedGemmArgs input = {GROUPED_BACKWARD_INPUT, dx, c.dy, w, offset, 3, 0};
    GroupedGemmArgs weight = {GROUPED_BACKWARD_WEIGHT, dw, c.dy, x, offset, 3, 0};
    c.be.grouped_gemm(&c.be, &input);
    c.be.grouped_gemm(&c.be, &weight);
    Objective objective = {grouped_value, &c};
    check_gradient(objective, x, dx, 0, "grouped dx");
    check_gradient(objective, w, dw, 0.5, "grouped dw");
    arena_free(&c.arena);
}

static double norm_value(void *context)
{
    Context *c = context;
    c->be.rmsnorm(&c->be, &c->norm);
    return weighted_sum(c->norm.y_nd, c->dy);
}

static void rmsnorm__gradients(void **state)
{
    (void)state;
    Context c;
    context_init(&c);
    Tensor x = f64(&c.arena, 5, 7, "x"), w = as_vector(f64(&c.arena, 1, 7, "w"));
    Tensor rstd = as_vector(f64(&c.arena, 5, 1, "rstd"));
    c.norm = (RmsNormArgs){f64(&c.arena, 5, 7, "y"), rstd, x, w, 0.1};
    c.dy = f64(&c.arena, 5, 7, "dy");
    c.be.rmsnorm(&c.be, &c.norm);
    Tensor dx = filled_tensor(&c.arena, DTYPE_F64, 5, 7, 3);
    Tensor dw = as_vector(filled_tensor(&c.arena, DTYPE_F64, 1, 7, 3));
    c.be.rmsnorm_backward(&c.be, &(RmsNormBackwardArgs){dx, dw, c.dy, x, w, rstd, 1, &c.arena});
    Objective objective = {norm_value, &c};
    check_gradient(objective, x, dx, 3, "rmsnorm dx");
    check_gradient(objective, w, dw, 3, "rmsnorm dw");
    arena_free(&c.arena);
}

static double attention_value(void *context)
{
    Context *c = context;
    c->be.attention(&c->be, &c->attention);
    return weighted_sum(c->attention.o_tq, c->dy);
}

static void attention__gradients(void **state)
{
    (void)state;
    Context c;
    context_init(&c);
    /* segments of 1, 4 and 2 queries; the middle one with 3 more keys before them; 4 heads on 2 */
    int32_t cu_q[] = {0, 1, 5, 7}, cu_k[] = {0, 1, 8, 10};
    Tensor q = f64(&c.arena, 7, 12, "q"), k = f64(&c.arena, 10, 6, "k"),
           v = f64(&c.arena, 10, 6, "v");
    c.dy = f64(&c.arena, 7, 12, "do");
    AttentionArgs *a = &c.attention;
    *a = (AttentionArgs){.o_tq = f64(&c.arena, 7, 12, "o"),
                         .lse_ht = f64(&c.arena, 4, 7, "lse"),
                         .q_tq = q,
                         .k_tk = k,
                         .v_tk = v,
                         .n_heads = 4,
                         .n_kv_heads = 2,
                         .head_dim = 3,
                         .cu_q = cu_q,
                         .cu_k = cu_k,
                         .n_segments = 3,
                         .scale = 0.6,
                         .scratch = &c.arena};
    c.be.attention(&c.be, a);
    Tensor dq = f64(&c.arena, 7, 12, "dq"), dk = f64(&c.arena, 10, 6, "dk"),
           dv = f64(&c.arena, 10, 6, "dv");
    AttentionBackwardArgs back = {dq, dk, dv, c.dy, a->o_tq, a->lse_ht, q,   k,       v,
                                  4,  2,  3,  cu_q, cu_k,    3,         0.6, &c.arena};
    c.be.attention_backward(&c.be, &back);
    Objective objective = {attention_value, &c};
    check_gradient(objective, q, dq, 0, "attention dq");
    check_gradient(objective, k, dk, 0, "attention dk");
    check_gradient(objective, v, dv, 0, "attention dv");
    arena_free(&c.arena);
}

/** Gate weights, balancing and z-loss together, as a layer uses them. */
static double router_value(void *context)
{
    Context *c = context;
    c->be.router(&c->be, &c->router);
    double value = weighted_sum(c->router.weight_tk, c->dy);
    for (int64_t t = 0; t < c->router.p_te.dim[0]; t++) {
        double lse = element(c->router.lse_t, t);
        value += c->z_scale * lse * lse;
    }
    for (int64_t e = 0; e < c->router.p_te.dim[1]; e++)
        value += c->balance[e] * c->router.prob_sum_e[e];
    return value;
}

static void router__gradients(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        Context c;
        context_init(&c);
        int64_t count[6];
        double prob_sum[6];
        c.z_scale = mode & 1 ? 0.3 : 0;
        for (int e = 0; e < 6; e++) c.balance[e] = mode & 1 ? 0.2 * e : 0;
        c.dy = f64(&c.arena, 5, 3, "dweight");
        RouterArgs *a = &c.router;
        *a = (RouterArgs){.p_te = f64(&c.arena, 5, 6, "p"),
                          .lse_t = as_vector(f64(&c.arena, 5, 1, "lse")),
                          .weight_tk = f64(&c.arena, 5, 3, "weight"),
                          .id_tk = arena_tensor2(&c.arena, DTYPE_I32, 5, 3),
                          .count_e = count,
                          .prob_sum_e = prob_sum,
                          .logit_te = f64(&c.arena, 5, 6, "logit"),
                          .normalise = mode & 2,
                          .scratch = &c.arena};
        c.be.router(&c.be, a);
        Tensor dlogit = f64(&c.arena, 5, 6, "dlogit");
        RouterBackwardArgs back = {dlogit,
                                   c.dy,
                                   a->p_te,
                                   a->lse_t,
                                   a->weight_tk,
                                   a->id_tk,
                                   mode & 1 ? c.balance : NULL,
                                   c.z_scale,
                                   a->normalise};
        c.be.router_backward(&c.be, &back);
        check_gradient((Objective){router_value, &c}, a->logit_te, dlogit, 0, "router dlogit");
        arena_free(&c.arena);
    }
}

/** y = weight_n * (a down^T): the expert's second half, with the routing weight outside. */
static double swiglu_value(void *context)
{
    Context *c = context;
    c->be.swiglu(&c->be, &c->swiglu);
    c->be.gemm(&c->be,
               &(GemmArgs){.c = c->product, .a = c->swiglu.a_nf, .b = c->down, .trans_b = true});
    double value = 0;
    for (int64_t n = 0; n < 4; n++) {
        double weight = tensor_is_null(c->work) ? 1 : element(c->work, n);
        value += weight * weighted_sum(tensor_rows(c->product, n, 1), tensor_rows(c->dy, n, 1));
    }
    return value;
}

static void swiglu__gradients(void **state)
{
    (void)state;
    for (int weighted = 0; weighted < 2; weighted++) {
        Context c;
        context_init(&c);
        Tensor h = f64(&c.arena, 4, 10, "h"), a = f64(&c.arena, 4, 5, "a");
        Tensor da = f64(&c.arena, 4, 5, "da"), dh = f64(&c.arena, 4, 10, "dh");
        Tensor dweight = as_vector(f64(&c.arena, 4, 1, "dw"));
        c.down = f64(&c.arena, 3, 5, "down");
        c.product = f64(&c.arena, 4, 3, "product");
        c.dy = f64(&c.arena, 4, 3, "dy");
        if (weighted) c.work = as_vector(f64(&c.arena, 4, 1, "weight"));
        c.swiglu = (SwiGluArgs){a, h};
        c.be.swiglu(&c.be, &c.swiglu);
        c.be.gemm(&c.be, &(GemmArgs){.c = da, .a = c.dy, .b = c.down});
        SwiGluBackwardArgs back = {dh, dweight, da, h, a, c.work};
        c.be.swiglu_backward(&c.be, &back);
        Objective objective = {swiglu_value, &c};
        check_gradient(objective, h, dh, 0, "swiglu dh");
        if (weighted) check_gradient(objective, c.work, dweight, 0, "swiglu dweight");
        arena_free(&c.arena);
    }
}

static double loss_value(void *context)
{
    Context *c = context;
    memcpy(c->work.data, c->logit.data, tensor_bytes(c->logit));
    c->loss.want_grad = false;
    c->be.cross_entropy(&c->be, &c->loss);
    return *c->loss.loss;
}

static void cross_entropy__gradients(void **state)
{
    (void)state;
    Context c;
    context_init(&c);
    int32_t target[4] = {2, -100, 0, 5};
    double weight[4] = {0.3, 9, 1, 2}, loss;
    c.logit = f64(&c.arena, 4, 6, "logit");
    c.work = arena_tensor2(&c.arena, DTYPE_F64, 4, 6);
    c.loss = (CrossEntropyArgs){c.work, target, weight, &loss, true, &c.arena};
    memcpy(c.work.data, c.logit.data, tensor_bytes(c.logit));
    c.be.cross_entropy(&c.be, &c.loss);
    Tensor dlogit = arena_tensor2(&c.arena, DTYPE_F64, 4, 6);
    memcpy(dlogit.data, c.work.data, tensor_bytes(c.work));
    check_gradient((Objective){loss_value, &c}, c.logit, dlogit, 0, "dlogit");
    arena_free(&c.arena);
}

/** The gradient of a gather is a scatter_add; of a scaled gather by another gather and combine. */
static double gather_value(void *context)
{
    Context *c = context;
    c->be.gather_rows(&c->be, &c->gather);
    return weighted_sum(c->gather.y_nd, c->dy);
}

static void gather_rows__gradient_is_scatter_add(void **state)
{
    (void)state;
    Context c;
    context_init(&c);
    int32_t index[6] = {3, 0, 3, 1, 3, 0};
    Tensor x = f64(&c.arena, 4, 5, "x"), dx = filled_tensor(&c.arena, DTYPE_F64, 4, 5, 0.5);
    c.dy = f64(&c.arena, 6, 5, "dy");
    c.gather = (GatherRowsArgs){f64(&c.arena, 6, 5, "y"), x, {0}, index};
    c.be.scatter_add_rows(&c.be, &(ScatterAddRowsArgs){dx, c.dy, index});
    check_gradient((Objective){gather_value, &c}, x, dx, 0.5, "gather dx");
    arena_free(&c.arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_gemm__gradients),
        cmocka_unit_test(rmsnorm__gradients),
        cmocka_unit_test(attention__gradients),
        cmocka_unit_test(router__gradients),
        cmocka_unit_test(swiglu__gradients),
        cmocka_unit_test(cross_entropy__gradients),
        cmocka_unit_test(gather_rows__gradient_is_scatter_add),
    };
    return RUN_ON_EACH_PATH("kernels/gradients", tests);
}
