#pragma once
/**
 * Numbers and tensors that are to agree to rounding, as section 13 of the numerics has it. Include after cmocka.h.
 */
#include "cases/runs.h"

#include <math.h>

static inline json_t *read_json(const char *path)
{
    json_error_t error;
    json_t *value = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!value) fail_msg("%s: %s", path, error.text);
    return value;
}

static inline double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

/** How far a tensor of this name may be off, as a share of its norm. */
static inline double tolerance(const char *name)
{
    static const char *const narrow[] = {"embed_tokens", "lm_head", "model.norm", "q_proj",
                                         "k_proj",       "v_proj",  "o_proj"};
    for (size_t i = 0; i < COUNT(narrow); i++)
        if (strstr(name, narrow[i])) return 5e-6;
    return 1e-5;
}

static inline double norm_of_all(const TensorFile *file)
{
    double squares = 0;
    for (int i = 0; i < file->n; i++) {
        double norm = tensor_error(file->at[i].value, file->at[i].value, file->at[i].n).reference;
        squares += norm * norm;
    }
    return sqrt(squares);
}

/** got against want, tensor by tensor; the tensors of `rounded` (NULL: none) may be off by their own rounding besides. */
static inline bool close_tensors(const TensorFile *got, const TensorFile *want,
                                 const TensorFile *rounded)
{
    double all = norm_of_all(want);
    bool ok = got->n == want->n;
    if (!ok) fprintf(stderr, "  %d tensors, expected %d\n", got->n, want->n);
    for (int i = 0; i < want->n; i++) {
        const FileTensor *w = &want->at[i], *g = tensor_file_find(got, w->name);
        if (!g || g->n != w->n) {
            fprintf(stderr, "  %s: not there, or not of that size\n", w->name);
            ok = false;
            continue;
        }
        TensorError e = tensor_error(g->value, w->value, w->n);
        double allowed = tolerance(w->name) * e.reference + 1e-9 * all;
        if (rounded) {
            const FileTensor *r = tensor_file_find(rounded, w->name);
            allowed += 1.2e-7 * tensor_error(r->value, r->value, r->n).reference;
        } else if (e.reference == 0) {
            allowed = 0;
        }
        if (e.difference <= allowed) continue;
        fprintf(stderr, "  %s: off by %.3g of %.3g; worst at %lld: %.9g, expected %.9g\n", w->name,
                e.difference, e.reference, (long long)e.worst_at, (double)e.worst_got,
                (double)e.worst_want);
        ok = false;
    }
    return ok;
}

/** to = to + factor * from, tensor by tensor. */
static inline void add_scaled(TensorFile *to, const TensorFile *from, double factor)
{
    for (int i = 0; i < to->n; i++) {
        const FileTensor *t = tensor_file_find(from, to->at[i].name);
        if (!t || t->n != to->at[i].n) fail_msg("%s", to->at[i].name);
        for (int64_t k = 0; k < t->n; k++)
            to->at[i].value[k] = (float)(to->at[i].value[k] + factor * t->value[k]);
    }
}

static inline TensorFile read_file(const char *path)
{
    TensorFile file;
    if (!tensor_file_read(&file, path)) fail_msg("cannot read %s", path);
    return file;
}

static inline TensorFile read_folder(const char *path)
{
    TensorFile file;
    if (!tensor_folder_read(&file, path)) fail_msg("cannot read %s", path);
    return file;
}

/** Whether a run's export is `before` plus `change`, to the rounding of the weights besides. */
static inline bool close_change(const char *run, const TensorFile *before, const TensorFile *change)
{
    TensorFile after = read_folder(path_in(run, "hf/final"));
    TensorFile got = read_folder(path_in(run, "hf/final"));
    add_scaled(&got, before, -1);
    bool ok = close_tensors(&got, change, &after);
    tensor_file_free(&after);
    tensor_file_free(&got);
    return ok;
}

/* ---- probes -------------------------------------------------------------------------------- */

static inline json_t *read_losses(const char *folder, const char *out)
{
    return read_json(path_in(folder, "%s/losses.json", out));
}

static inline TensorFile read_grads(const char *folder, const char *out)
{
    return read_file(path_in(folder, "%s/grads.safetensors", out));
}

/** How many decisions of the routers differ, at least: tokens that experts of folder/OUT lack beside those of folder/WANT. */
static inline int flips_between(const char *folder, const char *out, const char *want)
{
    json_t *got = read_losses(folder, out), *wanted = read_losses(folder, want), *layer;
    json_t *counts = json_object_get(got, "tokens_per_expert");
    json_t *wanted_counts = json_object_get(wanted, "tokens_per_expert");
    assert_int_equal(json_object_size(counts), json_object_size(wanted_counts));
    const char *name;
    json_int_t lacking = 0;
    json_object_foreach(wanted_counts, name, layer) for (size_t e = 0; e < json_array_size(layer);
                                                         e++)
    {
        json_t *own = json_array_get(json_object_get(counts, name), e);
        json_int_t n = json_integer_value(json_array_get(layer, e)) - json_integer_value(own);
        if (n > 0) lacking += n;
    }
    json_decref(got);
    json_decref(wanted);
    return (int)lacking;
}

typedef struct Bound {
    const char *key; /* of a JSON object */
    double relative;
} Bound;

static inline bool close_numbers(const json_t *got, const json_t *want, const Bound *bounds,
                                 size_t n)
{
    bool ok = true;
    for (size_t i = 0; i < n; i++) {
        double g = number(got, bounds[i].key), w = number(want, bounds[i].key);
        if (fabs(g - w) <= bounds[i].relative * fabs(w)) continue;
        fprintf(stderr, "  %s: %.17g, expected %.17g\n", bounds[i].key, g, w);
        ok = false;
    }
    return ok;
}

/* Counts first: one token that went another way explains all that follows. */
static inline bool close_losses(const char *folder, const char *out, const char *want,
                                const Bound *bounds, size_t n)
{
    int flips = flips_between(folder, out, want);
    json_t *got = read_losses(folder, out), *wanted = read_losses(folder, want);
    bool ok = flips == 0 && json_equal(json_object_get(got, "trained_tokens"),
                                       json_object_get(wanted, "trained_tokens"));
    if (!ok) fprintf(stderr, "  %s: other counts than %s, %d flips\n", out, want, flips);
    ok = ok && close_numbers(got, wanted, bounds, n);
    json_decref(got);
    json_decref(wanted);
    return ok;
}

/** Losses and gradients of the probe folder/OUT against folder/WANT, both in f32. */
static inline bool close_probe(const char *folder, const char *out, const char *want)
{
    static const Bound bounds[] = {{"ce", 1e-6}, {"balancing", 1e-6}, {"balancing_raw", 1e-6},
                                   {"z", 1e-6},  {"total", 1e-6},     {"grad_norm", 1e-6}};
    if (!close_losses(folder, out, want, bounds, COUNT(bounds))) return false;
    TensorFile got = read_grads(folder, out), wanted = read_grads(folder, want);
    bool ok = close_tensors(&got, &wanted, NULL);
    tensor_file_free(&got);
    tensor_file_free(&wanted);
    return ok;
}

/* A gradient in bf16 against that in f32; *least: the smallest cosine so far. */
static inline bool close_direction(const FileTensor *got, const FileTensor *want, double *least)
{
    static const char *const narrow[] = {"embed_tokens", "lm_head", "model.norm", "v_proj",
                                         "o_proj"};
    TensorError e = tensor_error(got->value, want->value, want->n);
    double norm = e.reference, own = tensor_error(got->value, got->value, got->n).reference;
    if (norm == 0) return own == 0; /* an expert without tokens */
    double dot = 0, needed = 0.999;
    for (int64_t k = 0; k < want->n; k++) dot += (double)want->value[k] * (double)got->value[k];
    for (size_t k = 0; k < COUNT(narrow); k++)
        if (strstr(want->name, narrow[k])) needed = 0.9995;
    double cosine = dot / (norm * own);
    *least = fmin(*least, cosine);
    bool ok =
        cosine >= needed && fabs(own / norm - 1) <= (strstr(want->name, "norm") ? 0.05 : 0.02);
    if (!ok)
        fprintf(stderr, "  %s: cosine %.6f, norm %.6g, in f32 %.6g\n", want->name, cosine, own,
                norm);
    return ok;
}

/**
 * Losses and gradients of folder/OUT in bf16 against folder/WANT in f32, of a model whose routing no rounding changes.
 * *least becomes the smallest cosine if that is smaller.
 */
static inline bool close_in_bf16(const char *folder, const char *out, const char *want,
                                 double *least)
{
    static const Bound bounds[] = {{"ce", 2e-4}, {"total", 2e-4}, {"grad_norm", 0.01}};
    bool ok = close_losses(folder, out, want, bounds, COUNT(bounds));
    TensorFile got = read_grads(folder, out), wanted = read_grads(folder, want);
    assert_int_equal(got.n, wanted.n);
    for (int i = 0; i < wanted.n; i++) {
        const FileTensor *w = &wanted.at[i], *g = tensor_file_find(&got, w->name);
        if (!g || g->n != w->n) fail_msg("%s: not there, or not of that size", w->name);
        ok = close_direction(g, w, least) && ok;
    }
    tensor_file_free(&got);
    tensor_file_free(&wanted);
    return ok;
}

/**
 * FIXTURE_ROUTER's logits are 8·(0.2, 0.1, 0, 0) for every token and layer, all tokens go to experts 0 and 1. Per layer
 * E/K·sum_e f_e·P_e with f = (1, 1, 0, 0) is 2·(p_0 + p_1) = 1.564, and the gradient at gate[e,0] is
 * alpha·8·2·p_e·((e < 2) - (p_0 + p_1)) up to the norm's 1e-3: here for alpha 0.1, times `share`. Experts 2 and 3 get no
 * token, and so no gradient at all.
 */
static inline bool close_router_fixture(const TensorFile *grads, double share)
{
    static const double want[4] = {0.18812, 0.0845, -0.1363, -0.1363};
    static const char *const projections[] = {"gate", "up", "down"};
    bool ok = true;
    for (int l = 0; l < 4; l++) {
        char name[80];
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        const FileTensor *gate = tensor_file_find(grads, name);
        assert_non_null(gate);
        for (int e = 0; e < 4; e++) {
            double got = gate->value[e * FIXTURE_HIDDEN];
            if (fabs(got - share * want[e]) <= 1e-3 * fabs(share * want[e])) continue;
            fprintf(stderr, "  %s: [%d,0] is %.6g, expected %.6g\n", name, e, got, share * want[e]);
            ok = false;
        }
        for (int i = 0; i < 6; i++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s_proj.weight", l,
                     2 + i / 3, projections[i % 3]);
            const FileTensor *t = tensor_file_find(grads, name);
            assert_non_null(t);
            if (tensor_error(t->value, t->value, t->n).reference == 0) continue;
            fprintf(stderr, "  %s is not 0\n", name);
            ok = false;
        }
    }
    return ok;
}
