#include "cli/inspect.h"

#include "io/json.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- for programs ---------------------------------------------------------------------------------- */

static void append_count(TextBuffer *out, int64_t value)
{
    if (value < 0)
        text_append_format(out, "null");
    else
        text_append_format(out, "%lld", (long long)value);
}

static void append_text(TextBuffer *out, const char *text)
{
    if (text)
        json_append_string(out, text);
    else
        text_append_format(out, "null");
}

static void append_messages(TextBuffer *out, const char *key, const Messages *messages)
{
    text_append_format(out, "\"%s\": [", key);
    for (int i = 0; i < messages->n; i++) {
        if (i) text_append(out, ", ", 2);
        json_append_string(out, messages->at[i]);
    }
    text_append_format(out, "], ");
}

void inspect_print_json(TextBuffer *out, const Inspection *found)
{
    text_append_format(out, "{\"path\": ");
    append_text(out, found->path);
    text_append_format(out, ", \"kind\": \"%s\", \"valid\": %s, ", found->kind,
                       found->errors.n ? "false" : "true");
    append_messages(out, "errors", &found->errors);
    append_messages(out, "warnings", &found->warnings);
    text_append_format(out, "\"model_type\": ");
    append_text(out, found->model_type);
    text_append_format(out, ", \"step\": ");
    append_count(out, found->step);
    text_append_format(out, ", \"parameters\": {\"total\": ");
    append_count(out, found->total);
    text_append_format(out, ", \"active\": ");
    append_count(out, found->active);
    text_append_format(out, "}, \"bytes\": ");
    append_count(out, found->index ? found->index->total_size : -1);
    text_append_format(out, ", \"files\": ");
    append_count(out, found->index ? found->index->n_files : -1);
    text_append_format(out, ", \"tensors\": [");
    for (int i = 0; i < found->n; i++) {
        const InspectTensor *t = &found->tensor[i];
        const SafetensorsEntry *entry = t->tensor->entry;
        text_append_format(out, "%s\n  {\"name\": ", i ? "," : "");
        append_text(out, entry->name);
        text_append_format(out, ", \"dtype\": \"%s\", \"shape\": %s, \"bytes\": %zu, \"file\": ",
                           entry->dtype_name, shape_text(out->arena, entry->n_dims, entry->dim),
                           entry->bytes);
        append_text(out, t->file);
        text_append_format(out, ", \"hash\": ");
        append_text(out, t->hash);
        text_append_format(out, ", \"nonfinite\": ");
        append_count(out, t->n_bad);
        text_append(out, "}", 1);
    }
    text_append_format(out, "%s]}\n", found->n ? "\n" : "");
}

/* ---- for people ------------------------------------------------------------------------------------ */

static const char *amount(Arena *arena, int64_t n, const char *unit)
{
    static const char *const powers[] = {"", " k", " M", " G", " T", " P"};
    double value = (double)n;
    int power = 0;
    for (; value >= 999.95 && power < 5; power++) value /= 1000;
    if (!power) return text_format(arena, "%lld%s%s", (long long)n, *unit ? " " : "", unit);
    return text_format(arena, "%.1f%s%s", value, powers[power], unit);
}

/* "model.layers.3.mlp" -> "model.layers.*.mlp": what repeats differs in these numbers alone. */
static const char *pattern_of(Arena *arena, const char *name)
{
    char *pattern = text_copy(arena, name), *to = pattern;
    for (const char *from = name; *from;) {
        size_t digits = strspn(from, "0123456789");
        bool whole =
            digits && (from == name || from[-1] == '.') && (from[digits] == '.' || !from[digits]);
        if (whole) {
            *to++ = '*';
            from += digits;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
    return pattern;
}

typedef struct Group {
    const char *pattern, *dtype, *shape;
    int n;
    int64_t elements, bytes;
} Group;

static int group_tensors(const Inspection *found, Group *groups, Arena *arena)
{
    int n = 0;
    for (int i = 0; i < found->n; i++) {
        const SafetensorsEntry *entry = found->tensor[i].tensor->entry;
        const char *pattern = pattern_of(arena, entry->name);
        const char *shape = shape_text(arena, entry->n_dims, entry->dim);
        int k = 0;
        while (k < n && (strcmp(groups[k].pattern, pattern) || strcmp(groups[k].shape, shape) ||
                         strcmp(groups[k].dtype, entry->dtype_name)))
            k++;
        if (k == n)
            groups[n++] = (Group){.pattern = pattern, .dtype = entry->dtype_name, .shape = shape};
        groups[k].n++;
        groups[k].elements += entry->n_elements;
        groups[k].bytes += (int64_t)entry->bytes;
    }
    return n;
}

static int widest(int width, const char *text)
{
    int n = (int)strlen(text);
    return n > width ? n : width;
}

static void print_groups(TextBuffer *out, const Inspection *found)
{
    Arena *arena = out->arena;
    Group *groups = ARENA_NEW(arena, Group, found->n + 1);
    int n = group_tensors(found, groups, arena), name_width = 6, shape_width = 5;
    for (int i = 0; i < n; i++) {
        name_width = widest(name_width, groups[i].pattern);
        shape_width = widest(shape_width, groups[i].shape);
    }
    text_append_format(out, "\n%-*s  %-5s  %-*s  %6s  %12s  %10s\n", name_width, "tensor", "dtype",
                       shape_width, "shape", "count", "parameters", "size");
    for (int i = 0; i < n; i++)
        text_append_format(out, "%-*s  %-5s  %-*s  %6d  %12lld  %10s\n", name_width,
                           groups[i].pattern, groups[i].dtype, shape_width, groups[i].shape,
                           groups[i].n, (long long)groups[i].elements,
                           amount(arena, groups[i].bytes, "B"));
}

static void print_each(TextBuffer *out, const Inspection *found)
{
    text_append_format(out, "\n");
    for (int i = 0; i < found->n; i++)
        text_append_format(out, "%s  %s\n", found->tensor[i].hash,
                           found->tensor[i].tensor->entry->name);
}

static void print_messages(TextBuffer *out, const char *label, const Messages *messages)
{
    for (int i = 0; i < messages->n; i++)
        text_append_format(out, "%s: %s\n", label, messages->at[i]);
}

void inspect_print(TextBuffer *out, const Inspection *found)
{
    Arena *arena = out->arena;
    text_append_format(out, "%s: %s", found->path, found->kind);
    if (found->model_type) text_append_format(out, " (%s)", found->model_type);
    if (found->step >= 0) text_append_format(out, " of step %lld", (long long)found->step);
    text_append_format(out, "\n");
    if (found->total >= 0)
        text_append_format(out, "parameters: %lld (%s)", (long long)found->total,
                           amount(arena, found->total, ""));
    if (found->active >= 0)
        text_append_format(out, ", active per token: %lld (%s)", (long long)found->active,
                           amount(arena, found->active, ""));
    if (found->total >= 0) text_append_format(out, "\n");
    if (found->index)
        text_append_format(out, "tensors: %d, %s in %d file%s\n", found->n,
                           amount(arena, found->index->total_size, "B"), found->index->n_files,
                           found->index->n_files == 1 ? "" : "s");
    if (found->n) print_groups(out, found);
    if (found->n && found->tensor[0].hash) print_each(out, found);
    if (found->errors.n || found->warnings.n) text_append_format(out, "\n");
    print_messages(out, "wrong", &found->errors);
    print_messages(out, "note", &found->warnings);
    if (!found->errors.n)
        text_append_format(out, "\nnothing wrong with it%s\n",
                           found->verified ? "" : " (its data was not read: --verify)");
}
