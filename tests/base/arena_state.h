#pragma once
/** An arena as the state of a test, made before it and freed after it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/arena.h"

static inline int arena_setup(void **state)
{
    static Arena arena;
    arena_init(&arena, "test");
    *state = &arena;
    return 0;
}

static inline int arena_teardown(void **state)
{
    arena_free(*state);
    return 0;
}

#define ARENA_TEST(test) cmocka_unit_test_setup_teardown(test, arena_setup, arena_teardown)
