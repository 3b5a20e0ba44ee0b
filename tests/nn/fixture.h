#pragma once
/**
 * What the tests of nn share: arenas, a backend, a packed row and random parameters (Fixture), and a module
 * under test (Subject) that subject_check takes through everything the modules promise in common:
 *
 *   gradients of input and parameters against central differences of L = sum(r y) + extra terms;
 *   beta 1 adds to dx; a second backward adds to parameters' gradients; frozen parameters are skipped and
 *   change nothing else; a second run of the same shapes takes nothing from the system.
 *
 * Differences are taken in f64 on the ref backend with a step of 1e-5: truncation is about 1e-10 of a third derivative of
 * order 1, cancellation about 1e-16/1e-5 of L, both well below TOLERANCE times the largest gradient of a tensor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/rng.h"
#include "kernels/ref/ref.h"
#include "nn/run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double STEP = 1e-5, TOLERANCE = 1e-6;

typedef struct Fixture {
    Arena model, data, scratch, f_to_i, f_to_w, i_to_w;
    Backend be;
    ParamSet set;
    MicroBatch mb;
    Run run;
} Fixture;

/** dtype: of activations and weights; what a bf16 model has in f32 is f32. */
static inline void fixture_open(Fixture *f, DType dtype)
{
    DType acc = dtype == DTYPE_BF16 ? DTYPE_F32 : dtype;
    *f = (Fixture){0};
    arena_init(&f->model, "model");
    arena_init(&f->data, "data");
    arena_init(&f->scratch, "scratch");
    arena_init(&f->f_to_i, "f_to_i");
    arena_init(&f->f_to_w, "f_to_w");
    arena_init(&f->i_to_w, "i_to_w");
    backend_ref_init(&f->be, 1);
    paramset_init(&f->set, &f->model, dtype, acc);
    f->run =
        (Run){.be = &f->be, .scratch = &f->scratch, .mb = &f->mb, .dtype = dtype, .dtype_acc = acc};
}

static inline void fixture_close(Fixture *f)
{
    Arena *arenas[] = {&f->model, &f->data, &f->scratch, &f->f_to_i, &f->f_to_w, &f->i_to_w};
    for (size_t i = 0; i < sizeof arenas / sizeof *arenas; i++) arena_free(arenas[i]);
}

static inline int fixture_growths(const Fixture *f)
{
    return f->model.growths + f->data.growths + f->scratch.growths + f->f_to_i.growths +
           f->f_to_w.growths + f->i_to_w.growths;
}

static inline double load(Tensor t, int64_t i)
{
    return ref_load(t, i);
}

static inline void store(Tensor t, int64_t i, double value)
{
    ref_store(t, i, value);
}

/** mean + scale * normal, keyed by a name. */
static inline void fill(Tensor t, const char *name, double mean, double scale)
{
    uint64_t key = rng_key(7, name);
    for (int64_t i = 0; i < tensor_size(t); i++)
        store(t, i, mean + scale * rng_normal(key, (uint64_t)i));
}

static inline Tensor fixture_tensor(Fixture *f, int64_t rows, int64_t cols)
{
    Tensor t = arena_tensor2(&f->data, f->run.dtype, rows, cols);
    memset(t.data, 0, tensor_bytes(t));
    return t;
}

static inline Tensor fixture_random(Fixture *f, const char *name, int64_t rows, int64_t cols)
{
    Tensor t = fixture_tensor(f, rows, cols);
    fill(t, name, 0, 1);
    return t;
}

static inline Tensor fixture_copy(Fixture *f, Tensor x)
{
    Tensor t = x;
    t.data = arena_take(&f->data, tensor_bytes(x));
    memcpy(t.data, x.data, tensor_bytes(x));
    return t;
}

/** A packed row of segments of the given lengths; ids and targets below vocab; about a quarter untrained. */
static inline void fixture_row(Fixture *f, int n_segments, const int *length, int32_t vocab)
{
    int32_t *cu = ARENA_NEW(&f->data, int32_t, n_segments + 1);
    for (int s = 0; s < n_segments; s++) cu[s + 1] = cu[s] + length[s];
    const int64_t n = cu[n_segments];
    int32_t *id = ARENA_NEW(&f->data, int32_t, n), *position = ARENA_NEW(&f->data, int32_t, n);
    int32_t *target = ARENA_NEW(&f->data, int32_t, n);
    double *weight = ARENA_NEW(&f->data, double, n);
    for (int s = 0; s < n_segments; s++)
        for (int32_t t = cu[s]; t < cu[s + 1]; t++) {
            uint64_t bits = rng_bits(rng_key(3, "row"), (uint64_t)t);
            id[t] = (int32_t)(bits % (uint64_t)vocab);
            position[t] = t - cu[s];
            bool trained = t + 1 < cu[s + 1] && (bits >> 40) % 4 != 0;
            target[t] = trained ? (int32_t)((bits >> 20) % (uint64_t)vocab) : LABEL_NONE;
            weight[t] = trained ? 0.05 + 0.01 * t : 0;
        }
    f->mb = (MicroBatch){.n_tokens = n,
                         .n_segments = n_segments,
                         .cu_seqlens = cu,
                         .id_t = id,
                         .position_t = position,
                         .target_t = target,
                         .weight_t = weight};
}

/** Memory for all parameters; matrices normal with deviation 0.4, vectors 1 or 0 and a bit. */
static inline void fixture_layout(Fixture *f)
{
    assert_int_equal(paramset_layout(&f->set, true), OK);
    for (int i = 0; i < f->set.n; i++) {
        Param *p = f->set.at[i];
        fill(p->value, p->name, p->init == PARAM_INIT_ONES ? 1 : 0, p->is_matrix ? 0.4 : 0.2);
    }
}

static inline double dot(Tensor a, Tensor b)
{
    double sum = 0;
    for (int64_t i = 0; i < tensor_size(a); i++) sum += load(a, i) * load(b, i);
    return sum;
}

static inline double largest(Tensor t)
{
    double most = 0;
    for (int64_t i = 0; i < tensor_size(t); i++) most = fmax(most, fabs(load(t, i)));
    return most;
}

/** |a - b| <= tolerance * max|b| everywhere; prints the worst place. */
static inline void assert_near(const char *what, Tensor a, Tensor b, double tolerance)
{
    double worst = 0;
    int64_t place = 0;
    assert_int_equal(tensor_size(a), tensor_size(b));
    for (int64_t i = 0; i < tensor_size(a); i++) {
        double error = fabs(load(a, i) - load(b, i));
        if (!(error <= worst)) worst = error, place = i;
    }
    if (!(worst <= tolerance * largest(b)))
        fail_msg("%s [%lld]: %.17g, expected %.17g, tolerance %g of %g", what, (long long)place,
                 load(a, place), load(b, place), tolerance, largest(b));
}

static inline void assert_same_bits(const char *what, Tensor a, Tensor b)
{
    assert_int_equal(tensor_bytes(a), tensor_bytes(b));
    if (memcmp(a.data, b.data, tensor_bytes(a)) != 0) fail_msg("%s: bits differ", what);
}

typedef struct Subject Subject;
struct Subject {
    Fixture *f;
    const void *module;
    void *saved;
    bool has_beta;               /* backward_input knows beta */
    Tensor x, y, r;              /* input, output, dL/dy */
    Tensor extra, extra_grad;    /* a second input and where its gradient appears; null: none */
    void (*forward)(Subject *s); /* x -> y */
    void (*backward_input)(Subject *s, Tensor dx, double beta); /* from r */
    void (*backward_weight)(Subject *s);                        /* NULL: nothing in W */
    double (*extra_loss)(Subject *s); /* terms of L beside sum(r y), after forward; NULL: none */
};

static inline double subject_loss(Subject *s)
{
    s->forward(s);
    return dot(s->y, s->r) + (s->extra_loss ? s->extra_loss(s) : 0);
}

static inline void subject_backward(Subject *s, Tensor dx, double beta)
{
    s->forward(s);
    s->backward_input(s, dx, beta);
    if (s->backward_weight) s->backward_weight(s);
}

/** grad against differences of L as x moves, each element against the largest of the tensor. */
static inline void check_gradient(Subject *s, const char *what, Tensor x, Tensor grad)
{
    const double most = largest(grad);
    assert_true(most > 0);
    for (int64_t i = 0; i < tensor_size(x); i++) {
        double keep = load(x, i);
        store(x, i, keep + STEP);
        double up = subject_loss(s);
        store(x, i, keep - STEP);
        double down = subject_loss(s);
        store(x, i, keep);
        double expected = (up - down) / (2 * STEP);
        if (!(fabs(load(grad, i) - expected) <= TOLERANCE * most))
            fail_msg("d%s[%lld]: %.12g, difference quotient %.12g, largest %.3g", what,
                     (long long)i, load(grad, i), expected, most);
    }
}

static inline void subject_check(Subject *s)
{
    Fixture *f = s->f;
    ParamSet *set = &f->set;
    Tensor dx = fixture_tensor(f, s->x.dim[0], s->x.dim[1]);
    memset(dx.data, 0xff, tensor_bytes(dx)); /* NaN: beta 0 must not read it */
    paramset_zero_grads(set);
    subject_backward(s, dx, 0);
    Tensor grads = set->n ? fixture_copy(f, set->grads) : (Tensor){0};

    check_gradient(s, "x", s->x, dx);
    for (int i = 0; i < set->n; i++)
        check_gradient(s, set->at[i]->name, set->at[i]->value, set->at[i]->grad);
    if (!tensor_is_null(s->extra)) {
        Tensor extra_grad = fixture_copy(f, s->extra_grad);
        check_gradient(s, "extra", s->extra, extra_grad);
    }

    /* Once more: parameters' gradients double (x + x is exact), dx is the same bit for bit. */
    Tensor again = fixture_copy(f, dx), twice = {0};
    int growths = fixture_growths(f);
    subject_backward(s, again, 0);
    assert_int_equal(fixture_growths(f), growths);
    assert_same_bits("dx of a second run", again, dx);
    if (set->n) {
        twice = fixture_copy(f, grads);
        for (int64_t i = 0; i < tensor_size(twice); i++) store(twice, i, 2 * load(grads, i));
        /* Products that add to what is there may round it in another order. */
        assert_near("gradients of two runs", set->grads, twice, 1e-13);
    }
    if (s->has_beta) {
        fill(again, "beta", 0, 1);
        Tensor sum = fixture_copy(f, again);
        for (int64_t i = 0; i < tensor_size(sum); i++) store(sum, i, load(sum, i) + load(dx, i));
        subject_backward(s, again, 1);
        assert_near("dx with beta 1", again, sum, 1e-13);
    }

    /* Frozen: each parameter alone, then all; what is left is what it was. */
    for (int frozen = 0; frozen <= set->n && set->n; frozen++) {
        Tensor kept[64];
        assert_true(set->n <= 64);
        paramset_zero_grads(set);
        for (int i = 0; i < set->n; i++) {
            kept[i] = set->at[i]->grad;
            if (i == frozen || frozen == set->n) set->at[i]->grad.data = NULL;
        }
        subject_backward(s, again, 0);
        assert_same_bits("dx with frozen parameters", again, dx);
        for (int i = 0; i < set->n; i++) set->at[i]->grad = kept[i];
        Tensor expected = fixture_copy(f, grads);
        for (int i = 0; i < set->n; i++)
            if (i == frozen || frozen == set->n)
                memset((char *)expected.data + ((char *)kept[i].data - (char *)set->grads.data), 0,
                       tensor_bytes(kept[i]));
        assert_same_bits("gradients beside a frozen one", set->grads, expected);
    }
}
