#include "base/arena_state.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#endif

static void arena__blocks_are_aligned_apart_and_stay(void **state)
{
    Arena *a = *state;
    enum { N = 300 };
    unsigned char *block[N];
    size_t size[N], total = 0;
    for (int i = 0; i < N; i++) {
        size[i] = (size_t)(i * i) % 5000 + (i == 200 ? 3000000 : 0);
        total += size[i];
        block[i] = arena_take(a, size[i]);
        assert_int_equal((uintptr_t)block[i] % 64, 0);
        memset(block[i], i & 255, size[i]);
    }
    for (int i = 0; i < N; i++)
        for (size_t k = 0; k < size[i]; k++)
            if (block[i][k] != (i & 255)) fail_msg("block %d was overwritten at %zu", i, k);
    assert_true(a->used >= total);
    assert_int_equal(a->high_water, a->used);
    assert_true(a->reserved >= a->used);
    assert_true(a->growths > 1); /* several chunks, or the test tests nothing */
}

static void arena__rewind_over_chunks_gives_the_same_blocks_again(void **state)
{
    Arena *a = *state;
    arena_take(a, 1000);
    ArenaMark mark = arena_mark(a);
    size_t used = a->used;
    void *first[40], *again[40];
    for (int i = 0; i < 40; i++) first[i] = arena_take(a, 40000);
    assert_true(a->growths > 2);
    int growths = a->growths;
    size_t high = a->high_water;
    for (int round = 0; round < 3; round++) {
        arena_rewind(a, mark);
        assert_int_equal(a->used, used);
        for (int i = 0; i < 40; i++) again[i] = arena_take(a, 40000);
        assert_memory_equal(first, again, sizeof first);
    }
    assert_int_equal(a->growths, growths);
    assert_int_equal(a->high_water, high);
}

static void arena__marks_nest(void **state)
{
    Arena *a = *state;
    ArenaMark outer = arena_mark(a); /* before anything was taken */
    char *x = arena_take(a, 100);
    memcpy(x, "outer", 6);
    for (int i = 0; i < 5; i++) {
        ArenaMark inner = arena_mark(a);
        memset(arena_take(a, 100000 * (size_t)(i + 1)), 0xff, 100000 * (size_t)(i + 1));
        arena_rewind(a, inner);
    }
    assert_string_equal(x, "outer");
    arena_rewind(a, outer);
    assert_int_equal(a->used, 0);
    arena_take(a, 500000); /* all that came before fits into one chunk now, and so does this */
    assert_true(a->reserved < a->high_water + a->high_water / 8 + (2 << 20));
}

static void arena__warmed_up_it_asks_no_more(void **state)
{
    Arena *a = *state;
    for (int step = 0; step < 10; step++) {
        arena_reset(a);
        int growths = a->growths;
        for (int i = 0; i < 50; i++) arena_take(a, (size_t)(7919 * (i + 1)) % 300000);
        /* The first step grows in pieces, the second makes one of them. */
        if (step == 1) assert_int_equal(a->growths, growths + 1);
        if (step > 1) assert_int_equal(a->growths, growths);
    }
}

/* Rows that get longer step by step must not leave a chunk of each length behind. */
static void arena__growing_demand_keeps_no_outgrown_chunks(void **state)
{
    Arena *a = *state;
    for (size_t mib = 4; mib <= 40; mib++) {
        arena_reset(a);
        arena_take(a, 100);
        memset(arena_take(a, mib << 20), 1, mib << 20);
        /* at worst the chunk that just became too small, and the one that replaces it */
        assert_true(a->reserved <= 2 * a->high_water + (6 << 20));
    }
    arena_reset(a);
    arena_take(a, 100);
    assert_true(a->reserved <= a->high_water + a->high_water / 8);
}

/* A mark of the empty arena outlives the chunks there were. */
static void arena__mark_of_an_empty_arena_survives_merging(void **state)
{
    Arena *a = *state;
    for (int i = 0; i < 9; i++) arena_take(a, 60000);
    arena_reset(a);
    ArenaMark empty = arena_mark(a);
    memset(arena_take(a, 400000), 2, 400000);
    arena_rewind(a, empty);
    assert_int_equal(a->used, 0);
    memset(arena_take(a, 400000), 3, 400000);
}

static void arena__zeroed_and_alloc_are_zero_where_there_was_dirt(void **state)
{
    Arena *a = *state;
    ArenaMark mark = arena_mark(a);
    memset(arena_take(a, 5000), 0xff, 5000);
    arena_rewind(a, mark);
    char *zero = arena_take_zeroed(a, 2000);
    for (int i = 0; i < 2000; i++) assert_int_equal(zero[i], 0);
    int64_t *list = NULL;
    assert_int_equal(arena_alloc(a, &list, 200, sizeof *list), OK);
    for (int i = 0; i < 200; i++) assert_int_equal(list[i], 0);
}

static void arena__alloc_refuses_what_no_system_has(void **state)
{
    Arena *a = *state;
    arena_take(a, 100);
    size_t used = a->used;
    int64_t *list = (int64_t *)&used;
    static const size_t rows[][2] = {
        {SIZE_MAX, 8}, {SIZE_MAX / 8 + 1, 8}, {1, SIZE_MAX}, {SIZE_MAX / 2, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(arena_alloc(a, &list, rows[i][0], rows[i][1]), ERR_MEMORY);
        assert_non_null(strstr(status_message(), "arena test"));
        assert_ptr_equal(list, &used); /* outputs are set on success only */
    }
    assert_int_equal(a->used, used);
    assert_int_equal(arena_alloc(a, &list, 0, 8), OK);
    assert_ptr_not_equal(list, &used);
}

static void arena__free_gives_everything_back_and_it_works_again(void **state)
{
    Arena *a = *state;
    arena_take(a, 1 << 20);
    arena_free(a);
    assert_int_equal(a->used + a->reserved + a->high_water + (size_t)a->growths, 0);
    assert_string_equal(a->name, "test");
    arena_free(a);
    memset(arena_take(a, 100), 1, 100);
}

static void arena__size_mul_dies_on_overflow(void **state)
{
    (void)state;
    assert_int_equal(size_mul(1u << 20, 1u << 20), (size_t)1 << 40);
    assert_int_equal(size_mul(0, SIZE_MAX), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(STDERR_FILENO);
        _exit(size_mul(SIZE_MAX / 2, 3) ? 40 : 41);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

static void arena__what_is_rewound_or_behind_a_block_is_poisoned(void **state)
{
#ifdef WITH_ASAN
    Arena *a = *state;
    char *kept = arena_take(a, 100);
    ArenaMark mark = arena_mark(a);
    char *gone = arena_take(a, 100);
    assert_false(__asan_address_is_poisoned(gone + 99));
    assert_true(__asan_address_is_poisoned(kept + 100));
    assert_true(__asan_address_is_poisoned(gone + 100));
    char *far = arena_take(a, 1 << 20); /* another chunk */
    assert_false(__asan_address_is_poisoned(far));
    arena_rewind(a, mark);
    assert_true(__asan_address_is_poisoned(gone));
    assert_true(__asan_address_is_poisoned(far));
    assert_false(__asan_address_is_poisoned(kept + 99));
    arena_reset(a);
    assert_true(__asan_address_is_poisoned(kept));
#else
    (void)state;
    skip(); /* only in builds with AddressSanitizer */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(arena__blocks_are_aligned_apart_and_stay),
        ARENA_TEST(arena__rewind_over_chunks_gives_the_same_blocks_again),
        ARENA_TEST(arena__marks_nest),
        ARENA_TEST(arena__warmed_up_it_asks_no_more),
        ARENA_TEST(arena__growing_demand_keeps_no_outgrown_chunks),
        ARENA_TEST(arena__mark_of_an_empty_arena_survives_merging),
        ARENA_TEST(arena__zeroed_and_alloc_are_zero_where_there_was_dirt),
        ARENA_TEST(arena__alloc_refuses_what_no_system_has),
        ARENA_TEST(arena__free_gives_everything_back_and_it_works_again),
        ARENA_TEST(arena__size_mul_dies_on_overflow),
        ARENA_TEST(arena__what_is_rewound_or_behind_a_block_is_poisoned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
