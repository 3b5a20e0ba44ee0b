#pragma once
/** A folder of the test's own under /tmp, an arena, and cmocka's headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/text.h"
#include "io/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Temp {
    Arena arena;
    char dir[64];
} Temp;

static inline int temp_setup(void **state)
{
    Temp *temp = calloc(1, sizeof *temp);
    if (!temp) return -1;
    arena_init(&temp->arena, "test");
    strcpy(temp->dir, "/tmp/sw-test-XXXXXX");
    if (!mkdtemp(temp->dir)) return -1;
    *state = temp;
    return 0;
}

static inline int temp_teardown(void **state)
{
    Temp *temp = *state;
    Status st = dir_remove_tree(temp->dir);
    arena_free(&temp->arena);
    free(temp);
    return st == OK ? 0 : -1;
}

static inline char *temp_path(Temp *temp, const char *name)
{
    return path_join(&temp->arena, temp->dir, name);
}

/** Write a file of the temporary folder; its path. */
static inline char *temp_file(Temp *temp, const char *name, const void *bytes, size_t n)
{
    char *path = temp_path(temp, name);
    assert_int_equal(file_write_atomic(path, bytes, n), OK);
    return path;
}

static inline void assert_ok(Status st)
{
    if (st != OK) fail_msg("failed: %s", status_message());
}

/** The message of the last error must hold the text. */
static inline void assert_message(const char *text)
{
    if (!strstr(status_message(), text))
        fail_msg("message \"%s\" does not hold \"%s\"", status_message(), text);
}

#define TEMP_TEST(function) cmocka_unit_test_setup_teardown(function, temp_setup, temp_teardown)
