#pragma once
/**
 * The program's commands run inside the test, many after the other in one process, and what they wrote
 * compared bit for bit. Include after cmocka.h.
 */
#include "base/arena.h"
#include "cases/fixtures.h"
#include "cases/harness.h"
#include "cli/args.h"
#include "comm/world.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* ---- running ------------------------------------------------------------------------------- */

static inline void print_arguments(const char *command, const Arguments *args)
{
    fprintf(stderr, "    stagewright %s", command);
    for (int i = 0; i < args->n; i++) fprintf(stderr, " %s", args->at[i]);
    fputc('\n', stderr);
}

/** Parse and run as main does, with stderr thrown away; status_message() says what was wrong. Collective over world. */
static inline Status command_inside(const Command *command, const Arguments *args,
                                    const World *world)
{
    Arena arena;
    arena_init(&arena, "command");
    void *parsed = arena_take_zeroed(&arena, command->args_size);
    fflush(stderr);
    int kept = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (kept < 0 || nowhere < 0 || dup2(nowhere, STDERR_FILENO) < 0) abort();
    close(nowhere);
    bool help;
    Status status = args_parse(command, args->n, args->at, parsed, &help, &arena);
    if (status == OK) status = command->run(parsed, world, &arena);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    arena_free(&arena);
    return status;
}

/* SW_TEST_ISA=avx2 ctest -R cases: everything by that kernel path. */
static inline void add_path(const Command *command, Arguments *args)
{
    const char *path = getenv("SW_TEST_ISA");
    for (const OptionSpec *o = command->options; path && o && o->name; o++)
        if (!strcmp(o->name, "set")) {
            arguments_add(args, "--set");
            arguments_add(args, "train.isa=%s", path);
        }
}

/** Runs, frees the arguments and says why if it fails. */
static inline bool command_runs(const Command *command, Arguments *args)
{
    add_path(command, args);
    const World alone = {.size = 1, .n_cpus = 2};
    Status status = command_inside(command, args, &alone);
    if (status != OK) {
        fprintf(stderr, "  %s\n", status_message());
        print_arguments(command->name, args);
    }
    arguments_free(args);
    return status == OK;
}

/** One line on stderr, ours, with exit status 2; the message is shown otherwise. Frees the arguments. */
static inline bool program_refuses(Arguments *args, const char *folder, const char *const *words)
{
    int status = program_run(SW_PROGRAM, args, folder, 120);
    static char text[8192];
    FILE *file = fopen(path_in(folder, "err.txt"), "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = '\0';
    static const char prefix[] = "stagewright: error: ";
    const char *line = strstr(text, prefix);
    /* Warnings and other news may come before; the error is the last line, and the only one. */
    bool ok = status == 2 && line && (line == text || line[-1] == '\n') &&
              strchr(line, '\n') == text + n - 1 && !strstr(line + 1, prefix);
    for (; *words && ok; words++) {
        ok = strstr(line, *words) != NULL;
        if (!ok) fprintf(stderr, "  the error does not say \"%s\"\n", *words);
    }
    if (!ok) {
        fprintf(stderr, "  exit %d, expected one line of error and 2:\n%s", status, text);
        print_arguments("", args);
    }
    arguments_free(args);
    return ok;
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

/** Runs the program; shows its messages if it does not end with `expected`. Frees the arguments. */
static inline bool program_ends(Arguments *args, const char *folder, int expected)
{
    int status = program_run(SW_PROGRAM, args, folder, 120);
    if (status != expected) {
        fprintf(stderr, "  exit %d, expected %d:\n", status, expected);
        print_arguments("", args);
        file_show(path_in(folder, "err.txt"));
    }
    arguments_free(args);
    return status == expected;
}

static inline void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) != 0) fail_msg("cannot write %s", path);
}

/** The file's text, NUL-terminated, to be freed; the test fails if it is not there. */
static inline char *read_text(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("no %s", path);
    char *text = NULL;
    size_t length = 0, capacity = 0;
    do {
        if (capacity - length < 4096) text = realloc(text, capacity += capacity + 8192);
        if (!text) abort();
        length += fread(text + length, 1, capacity - length - 1, file);
    } while (!feof(file) && !ferror(file));
    fclose(file);
    text[length] = '\0';
    if (n) *n = length;
    return text;
}

static inline bool path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

/** The names in a folder without . and .., NULL-terminated; freed with names_free. */
static inline char **folder_names(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, alphasort), kept = 0;
    if (n < 0) fail_msg("no folder %s", path);
    char **names = n < 0 ? NULL : calloc((size_t)n + 1, sizeof *names);
    if (!names) abort();
    for (int i = 0; i < n; i++) {
        if (strcmp(entries[i]->d_name, ".") != 0 && strcmp(entries[i]->d_name, "..") != 0)
            names[kept++] = strdup(entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return names;
}

static inline void names_free(char **names)
{
    for (char **name = names; *name; name++) free(*name);
    free(names);
}

/* ---- layouts ------------------------------------------------------------------------------- */

/** How a model is cut and run; by section 12 of the numerics no result depends on it. */
typedef struct Layout {
    int pp;
    const char *schedule;
    double recompute;
    int threads;
    const char *split; /* NULL: balanced */
    int n_virtual;     /* 0: what the schedule needs */
} Layout;

static inline void add_layout(Arguments *args, const Layout *layout)
{
    const char *set = "--set";
    arguments_add(args, "%s", set);
    arguments_add(args, "parallel.pp_size=%d", layout->pp);
    arguments_add(args, "%s", set);
    arguments_add(args, "parallel.schedule=%s", layout->schedule);
    arguments_add(args, "%s", set);
    arguments_add(args, "train.recompute_ratio=%g", layout->recompute);
    arguments_add(args, "%s", set);
    arguments_add(args, "train.threads=%d", layout->threads);
    if (layout->split) {
        arguments_add(args, "%s", set);
        arguments_add(args, "parallel.layer_split=%s", layout->split);
    }
    if (layout->n_virtual) {
        arguments_add(args, "%s", set);
        arguments_add(args, "parallel.num_virtual_stages=%d", layout->n_virtual);
    }
}

static inline void print_layout(const char *what, const Layout *layout)
{
    fprintf(stderr, "  %s: pp %d %s, %d virtual stages, recompute %g, %d threads, split %s\n", what,
            layout->pp, layout->schedule, layout->n_virtual, layout->recompute, layout->threads,
            layout->split ? layout->split : "balanced");
}

__attribute__((format(printf, 2, 3))) static inline void add_set(Arguments *args,
                                                                 const char *format, ...)
{
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    arguments_add(args, "--set");
    arguments_add(args, "%s", text);
}

/* ---- comparing ----------------------------------------------------------------------------- */

/** The same bytes; else the first tensor and element that differ are printed. */
static inline bool same_safetensors(const char *path, const char *want_path)
{
    if (files_equal(path, want_path)) return true;
    TensorFile got, want;
    if (!tensor_file_read(&want, want_path)) return false;
    if (!tensor_file_read(&got, path)) {
        tensor_file_free(&want);
        return false;
    }
    const char *why = got.n == want.n ? NULL : "other tensors";
    for (int i = 0; i < want.n && !why; i++) {
        const FileTensor *w = &want.at[i], *g = tensor_file_find(&got, w->name);
        if (!g || g->n != w->n || strcmp(g->dtype, w->dtype) != 0) {
            why = w->name;
            continue;
        }
        for (int64_t k = 0; k < w->n && !why; k++)
            if (memcmp(&g->value[k], &w->value[k], sizeof *g->value) != 0) {
                why = w->name;
                fprintf(stderr, "  element %lld is %.9g, expected %.9g\n", (long long)k,
                        (double)g->value[k], (double)w->value[k]);
            }
    }
    fprintf(stderr, "  %s: differs in %s\n", path, why ? why : "its header or order");
    tensor_file_free(&got);
    tensor_file_free(&want);
    return false;
}

/** Both folders hold the same safetensors files, byte for byte. */
static inline bool same_weights(const char *folder_path, const char *want_path)
{
    char *folder = strdup(folder_path), *want = strdup(want_path); /* path_in's last a few calls */
    char **names = folder_names(want), **own = folder_names(folder);
    bool ok = true;
    int n = 0;
    for (char **name = names; *name; name++) {
        const char *end = strstr(*name, ".safetensors");
        if (!end || strcmp(end, ".safetensors") != 0) continue;
        n++;
        ok = same_safetensors(path_in(folder, "%s", *name), path_in(want, "%s", *name)) && ok;
    }
    for (char **name = own; *name; name++) {
        const char *end = strstr(*name, ".safetensors");
        n -= end && strcmp(end, ".safetensors") == 0;
    }
    if (n != 0) fprintf(stderr, "  %s and %s hold other files\n", folder, want);
    names_free(names);
    names_free(own);
    free(folder);
    free(want);
    return ok && n == 0;
}

/**
 * Both folders hold the same tensors: names, dtypes, shapes and bits, in whatever files and order.
 */
static inline bool same_tensors(const char *folder, const char *want_folder)
{
    TensorFile got, want;
    if (!tensor_folder_read(&want, want_folder)) return false;
    if (!tensor_folder_read(&got, folder)) {
        tensor_file_free(&want);
        return false;
    }
    bool ok = got.n == want.n;
    if (!ok) fprintf(stderr, "  %s: %d tensors, expected %d\n", folder, got.n, want.n);
    for (int i = 0; i < want.n; i++) {
        const FileTensor *w = &want.at[i], *g = tensor_file_find(&got, w->name);
        const char *what = !g                                ? "missing"
                           : strcmp(g->dtype, w->dtype) != 0 ? g->dtype
                           : g->n_dims != w->n_dims ||
                                   memcmp(g->dim, w->dim, (size_t)g->n_dims * sizeof *g->dim) != 0
                               ? "of another shape"
                           : memcmp(g->value, w->value, (size_t)g->n * sizeof *g->value) != 0
                               ? "of other values"
                               : NULL;
        if (!what) continue;
        fprintf(stderr, "  %s: %s is %s\n", folder, w->name, what);
        ok = false;
    }
    tensor_file_free(&got);
    tensor_file_free(&want);
    return ok;
}

/** Keys of metrics.jsonl that the promise of equality leaves out. */
static inline bool metric_of_the_machine(const char *key)
{
    static const char *const prefixes[] = {"time/", "tokens_per_second", "flops_per_second",
                                           "pipeline/", "memory/"};
    for (size_t i = 0; i < COUNT(prefixes); i++)
        if (strncmp(key, prefixes[i], strlen(prefixes[i])) == 0) return true;
    return false;
}

/** All lines of a metrics.jsonl; the test fails if a line is no object. */
static inline json_t *read_metrics(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) fail_msg("no %s", path);
    json_t *lines = json_array();
    char *text = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&text, &capacity, file)) > 0;) {
        json_t *line = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        if (!json_is_object(line) || text[n - 1] != '\n')
            fail_msg("%s:%zu: %s", path, json_array_size(lines) + 1, text);
        json_array_append_new(lines, line);
    }
    free(text);
    fclose(file);
    return lines;
}

/** The same steps with the same keys and, but for those of the machine, the same values bit for bit. */
static inline bool same_metrics(const char *path, const char *want_path)
{
    json_t *got = read_metrics(path), *want = read_metrics(want_path);
    bool ok = json_array_size(got) == json_array_size(want) && json_array_size(want) > 0;
    if (!ok)
        fprintf(stderr, "  %s: %zu steps, expected %zu\n", path, json_array_size(got),
                json_array_size(want));
    for (size_t i = 0; i < json_array_size(want) && ok; i++) {
        json_t *line = json_array_get(got, i), *wanted = json_array_get(want, i), *value;
        const char *key;
        ok = json_object_size(line) == json_object_size(wanted);
        if (!ok) fprintf(stderr, "  %s: line %zu: other keys\n", path, i + 1);
        json_object_foreach(wanted, key, value)
        {
            json_t *own = json_object_get(line, key);
            if (own && (metric_of_the_machine(key) || json_equal(own, value))) continue;
            fprintf(stderr, "  %s: step %zu: %s is %.17g (%s), expected %.17g\n", path, i + 1, key,
                    json_number_value(own), own ? "there" : "missing", json_number_value(value));
            ok = false;
        }
    }
    json_decref(got);
    json_decref(want);
    return ok;
}

/** Losses, counts and gradients of two probes. */
static inline bool same_probe(const char *probe_path, const char *want_path)
{
    char probe[512], want[512];
    snprintf(probe, sizeof probe, "%s", probe_path);
    snprintf(want, sizeof want, "%s", want_path);
    bool ok = files_equal(path_in(probe, "losses.json"), path_in(want, "losses.json"));
    if (!ok) {
        fprintf(stderr, "  losses.json differs:\n");
        file_show(path_in(probe, "losses.json"));
        file_show(path_in(want, "losses.json"));
    }
    return same_safetensors(path_in(probe, "grads.safetensors"),
                            path_in(want, "grads.safetensors")) &&
           ok;
}

/** Metrics, weights and moments of the checkpoint after `step`, and the exported folder. */
static inline bool same_run(const char *run_path, const char *want_path, int step)
{
    char run[512], want[512], own[1024], other[1024]; /* path_in's are gone a few calls later */
    snprintf(run, sizeof run, "%s", run_path);
    snprintf(want, sizeof want, "%s", want_path);
    bool ok = same_metrics(path_in(run, "metrics.jsonl"), path_in(want, "metrics.jsonl"));
    static const char *const parts[] = {"", "/exp_avg", "/exp_avg_sq"};
    for (size_t i = 0; i < COUNT(parts); i++) {
        snprintf(own, sizeof own, "%s/checkpoints/step-%06d%s", run, step, parts[i]);
        snprintf(other, sizeof other, "%s/checkpoints/step-%06d%s", want, step, parts[i]);
        if (i && !path_exists(other)) continue; /* an optimizer without moments */
        ok = same_weights(own, other) && ok;
    }
    snprintf(own, sizeof own, "%s/hf/final", run);
    snprintf(other, sizeof other, "%s/hf/final", want);
    return same_weights(own, other) && ok;
}
