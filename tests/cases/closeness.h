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
