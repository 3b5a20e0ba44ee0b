/*
 * Bytes as a configuration file, and each line of them as a --set. What is accepted is dumped, read back
 * and dumped again: the two texts must be the same.
 */
#include "fuzz_target.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>

static char *dump(const TrainConfig *config, Arena *arena)
{
    TextBuffer out;
    text_buffer_init(&out, arena);
    config_dump(&out, config);
    return out.text;
}

static void check_dump(const TrainConfig *config, Arena *arena)
{
    TrainConfig again;
    char *text = dump(config, arena);
    if (config_parse(&again, "dump", text, strlen(text), arena) != OK) abort();
    if (strcmp(text, dump(&again, arena))) abort();
    ConfigChange *change;
    int n;
    config_diff(config, &again, arena, &change, &n);
    if (n || config_check_resume(config, &again, (ResumePoint){0}, "dump", arena) != OK) abort();
}

/* Every refusal says something. */
static void check_message(Status st)
{
    if (st != OK && !*status_message()) abort();
}

static void as_file(const char *text, size_t n, Arena *arena)
{
    TrainConfig config;
    Status st = config_parse(&config, "fuzz.yaml", text, n, arena);
    check_message(st);
    if (st == OK) check_dump(&config, arena);
}

static void as_sets(const char *text, size_t n, Arena *arena)
{
    enum { MAX_SETS = 8 };
    const char *sets[MAX_SETS];
    int n_sets = 0;
    char *copy = text_copy_n(arena, text, n), *rest = copy;
    for (char *line; n_sets < MAX_SETS && (line = strtok_r(rest, "\n", &rest));)
        sets[n_sets++] = line;
    TrainConfig config;
    Status st = config_load(&config, NULL, sets, n_sets, arena);
    check_message(st);
    if (st == OK) check_dump(&config, arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *text = n ? (const char *)data : "";
    Arena arena;
    arena_init(&arena, "fuzz");
    as_file(text, n, &arena);
    as_sets(text, n, &arena);
    arena_free(&arena);
    return 0;
}
