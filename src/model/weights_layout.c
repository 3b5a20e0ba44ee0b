#include "base/text.h"
#include "io/file.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

Status hf_source_of_shards(HfSource *out, const ShardIndex *index, Arena *arena)
{
    HfSource s = {.place = index->path, .n = index->n, .sharded = index->has_index};
    TRY(arena_alloc(arena, &s.name, (size_t)s.n, sizeof *s.name));
    TRY(arena_alloc(arena, &s.dtype, (size_t)s.n, sizeof *s.dtype));
    TRY(arena_alloc(arena, &s.file, (size_t)s.n, sizeof *s.file));
    for (int i = 0; i < s.n; i++) {
        const ShardTensor *t = &index->tensor[i];
        const char *slash = strrchr(t->file->path, '/');
        s.name[i] = t->name;
        s.dtype[i] = t->entry->dtype;
        s.file[i] = slash ? slash + 1 : t->file->path;
    }
    *out = s;
    return OK;
}

Status hf_source_of_json(HfSource *out, const json_t *object, const char *place, Arena *arena)
{
    json_t *tensors, *value;
    HfSource s = {.place = place};
    TRY(json_get_bool(object, place, "sharded", &s.sharded));
    TRY(json_get_object(object, place, "tensors", &tensors));
    size_t n = json_object_size(tensors);
    TRY(arena_alloc(arena, &s.name, n, sizeof *s.name));
    TRY(arena_alloc(arena, &s.dtype, n, sizeof *s.dtype));
    TRY(arena_alloc(arena, &s.file, n, sizeof *s.file));
    const char *key;
    json_object_foreach(tensors, key, value)
    {
        const char *dtype, *file, *what = text_format(arena, "%s: tensor %s", place, key);
        TRY(json_expect_object(value, what));
        TRY(json_get_string(value, what, "dtype", &dtype));
        TRY(json_get_string_or(value, what, "file", NULL, &file));
        DType d = 0;
        while (d < DTYPE_COUNT && strcmp(dtype_name(d), dtype) != 0) d++;
        if (file && !shard_name_is_plain(file))
            return FAIL(ERR_FORMAT,
                        "%s: key file: not a plain name of weights (found %s, expected "
                        "NAME.safetensors)",
                        what, file);
        if (s.n && strcmp(s.name[s.n - 1], key) >= 0)
            return FAIL(ERR_FORMAT, "%s: tensors must be sorted by name (found %s after %s)", place,
                        key, s.name[s.n - 1]);
        s.name[s.n] = text_copy(arena, key);
        s.dtype[s.n] = d;
        s.file[s.n++] = file ? text_copy(arena, file) : NULL;
    }
    *out = s;
    return OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(HfTensor *const *)a)->name, (*(HfTensor *const *)b)->name);
}

json_t *hf_layout_to_json(const HfLayout *layout)
{
    HfTensor **sorted = calloc((size_t)layout->n + 1, sizeof(HfTensor *));
    if (!sorted) return NULL;
    for (int i = 0; i < layout->n; i++) sorted[i] = &layout->at[i];
    qsort(sorted, (size_t)layout->n, sizeof *sorted, by_name);
    json_t *object = json_object(), *tensors = json_object();
    for (int i = 0; i < layout->n; i++) {
        json_t *tensor = json_object();
        json_object_set_new(tensor, "dtype", json_string(dtype_name(sorted[i]->dtype)));
        if (sorted[i]->file) json_object_set_new(tensor, "file", json_string(sorted[i]->file));
        json_object_set_new(tensors, sorted[i]->name, tensor);
    }
    free(sorted);
    json_object_set_new(object, "sharded", json_boolean(layout->sharded));
    json_object_set_new(object, "tensors", tensors);
    return object;
}

Status hf_source_read(HfSource *out, const char *dir, const ShardIndex *index, Arena *arena)
{
    const char *path = path_join(arena, dir, "manifest.json");
    if (!file_exists(path)) return hf_source_of_shards(out, index, arena);
    JsonDoc doc;
    json_t *source;
    TRY(json_doc_read(&doc, path));
    Status status = json_expect_object(doc.root, path);
    if (status == OK) status = json_get_object(doc.root, path, "source", &source);
    if (status == OK) status = hf_source_of_json(out, source, path, arena);
    json_doc_free(&doc);
    return status;
}

static int source_find(const HfSource *source, const char *name)
{
    int low = 0, high = source->n;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(source->name[middle], name);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* If name has the form of the pattern, its {l} in *layer (-1: the pattern has none). */
static bool pattern_layer(const char *pattern, const char *name, int64_t *layer)
{
    const char *mark = strstr(pattern, "{l}");
    *layer = -1;
    if (!mark) return strcmp(pattern, name) == 0;
    size_t before = (size_t)(mark - pattern);
    if (strncmp(pattern, name, before) != 0 || name[before] < '0' || name[before] > '9')
        return false;
    char *end;
    *layer = strtoll(name + before, &end, 10);
    return strcmp(mark + 3, end) == 0;
}

static const char *pattern_expand(Arena *arena, const char *pattern, int64_t layer, int64_t expert)
{
    TextBuffer text;
    text_buffer_init(&text, arena);
    for (const char *c = pattern; *c; c++) {
        int64_t number = strncmp(c, "{l}", 3) == 0   ? layer
                         : strncmp(c, "{e}", 3) == 0 ? expert
                                                     : -1;
        if (number >= 0) {
            text_append_format(&text, "%lld", (long long)number);
            c += 2;
        } else {
            text_append(&text, c, 1);
        }
    }
    return text.text;
}

typedef struct Builder {
    HfLayout *layout;
    int capacity;
    const HfSource *source;
    bool *used; /* [source->n] */
    DType fallback;
    Arena *arena;
} Builder;

static Status add(Builder *b, HfTensor t)
{
    if (b->source) {
        int at = source_find(b->source, t.name);
        if (at < 0) return FAIL(ERR_FORMAT, "%s: tensor %s: missing", b->source->place, t.name);
        DType dtype = b->source->dtype[at];
        bool loads = dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
        if (t.param ? !loads : dtype == DTYPE_COUNT)
            return FAIL(ERR_UNSUPPORTED,
                        "%s: tensor %s: dtype not available yet (expected F32, BF16 or F16)",
                        b->source->place, t.name);
        b->used[at] = true;
        t.dtype = dtype;
        t.file = b->source->file[at];
    } else {
        t.dtype = b->fallback;
    }
    if (b->layout->n == b->capacity) {
        int capacity = b->capacity ? 2 * b->capacity : 256;
        HfTensor *at;
        TRY(arena_alloc(b->arena, &at, (size_t)capacity, sizeof *at));
        if (b->layout->n) memcpy(at, b->layout->at, (size_t)b->layout->n * sizeof *at);
        b->layout->at = at;
        b->capacity = capacity;
    }
    b->layout->at[b->layout->n++] = t;
    return OK;
}

/* The slice that a part is; expert parts of [E, O, I] for one expert. */
static HfTensor slice_of(const Param *p, WeightPart part, int64_t expert)
{
    HfTensor t = {.param = p->name, .order = p->order, .n_dims = p->value.n_dims};
    memcpy(t.dim, p->value.dim, sizeof t.dim);
    if (part >= PART_EXPERT) {
        t.n_dims--;
        memmove(t.dim, t.dim + 1, 3 * sizeof *t.dim);
        t.dim[3] = 1;
        t.offset = expert * t.dim[0] * t.dim[1];
    }
    if (part == PART_UPPER_ROWS || part == PART_LOWER_ROWS || part == PART_EXPERT_UPPER_ROWS ||
        part == PART_EXPERT_LOWER_ROWS)
        t.dim[0] /= 2;
    t.count = t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3];
    if (part == PART_LOWER_ROWS || part == PART_EXPERT_LOWER_ROWS) t.offset += t.count;
    return t;
}

/* All of a folder's tensors that make up a parameter. */
static Status add_param(Builder *b, const ModelConfig *config, const Param *p, const char *as)
{
    int64_t layer;
    bool fused = false;
    for (const WeightSpec *w = config->family->weights; w->hf && b->source; w++)
        if (w->fused && pattern_layer(w->param, as, &layer) &&
            source_find(b->source, pattern_expand(b->arena, w->hf, layer, 0)) >= 0)
            fused = true;
    for (const WeightSpec *w = config->family->weights; w->hf; w++) {
        if (!pattern_layer(w->param, as, &layer)) continue;
        bool of_experts = w->fused || strstr(w->hf, "{e}");
        if (of_experts && w->fused != fused) continue;
        int64_t n = strstr(w->hf, "{e}") ? p->value.dim[0] : 1;
        for (int64_t e = 0; e < n; e++) {
            HfTensor t = slice_of(p, w->part, e);
            t.name = pattern_expand(b->arena, w->hf, layer, e);
            t.alias = as != p->name;
            TRY(add(b, t));
        }
    }
    return OK;
}

Status hf_layout_create(HfLayout **out, const ModelConfig *config, const ParamSet *whole,
                        const HfSource *source, DType fallback, bool carry, Arena *arena)
{
    HfLayout *layout;
    TRY(arena_alloc(arena, &layout, 1, sizeof *layout));
    Builder b = {.layout = layout, .source = source, .fallback = fallback, .arena = arena};
    if (source) {
        TRY(arena_alloc(arena, &b.used, (size_t)source->n, sizeof *b.used));
        layout->sharded = source->sharded;
    }
    const Param *embedding = NULL;
    for (int i = 0; i < whole->n; i++) {
        const Param *p = whole->at[i];
        if (strcmp(p->name, "model.embed_tokens.weight") == 0) embedding = p;
        if (!p->tied_copy)
            TRY(add_param(&b, config, p, p->name));
        else if (source && source_find(source, p->name) >= 0)
            TRY(add_param(&b, config, embedding, p->name));
    }
    for (int i = 0; source && i < source->n; i++) {
        if (b.used[i]) continue;
        if (!carry)
            return FAIL(ERR_FORMAT,
                        "%s: tensor %s: unknown to model_type %s (model.extra_tensors: carry "
                        "copies such tensors)",
                        source->place, source->name[i], config->family->model_type);
        HfTensor t = {.name = source->name[i], .order = INT64_MAX};
        TRY(add(&b, t));
    }
    *out = layout;
    return OK;
}
