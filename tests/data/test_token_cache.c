#include "fixture.h"

#include "data/token_cache.h"

static const TokenCounts counts_written = {.n_lines = 9, .n_bad = 1, .n_empty = 2, .n_no_eos = 3};

/** Three items: a plain one, one of two segments, and, if asked for, one with labels of its own. */
static void fill(TokenStore *store, bool labels)
{
    static const int32_t id[] = {1, 2, 3, 4, 5}, label[] = {-100, 7, 8, -100, 9};
    static const int32_t one[] = {0, 3}, two[] = {0, 1, 5};
    static const uint8_t trained[] = {0, 1, 1, 0, 1};
    Row row = {
        .n_tokens = 3, .id_t = id + 1, .trained_t = trained, .n_segments = 1, .cu_seqlens = one};
    assert_ok(token_store_add(store, &row, false));
    row =
        (Row){.n_tokens = 5, .id_t = id, .trained_t = trained, .n_segments = 2, .cu_seqlens = two};
    assert_ok(token_store_add(store, &row, true));
    row.label_t = label;
    if (labels) assert_ok(token_store_add(store, &row, true));
}

static void assert_same(const TokenStore *a, int64_t first, const TokenStore *b)
{
    for (int64_t i = 0; i < b->n_items; i++) {
        Row x = token_store_row(a, first + i), y = token_store_row(b, i);
        assert_int_equal(x.n_tokens, y.n_tokens);
        assert_int_equal(x.n_segments, y.n_segments);
        assert_int_equal(a->fixed[first + i], b->fixed[i]);
        assert_memory_equal(x.id_t, y.id_t, (size_t)x.n_tokens * sizeof *x.id_t);
        assert_memory_equal(x.trained_t, y.trained_t, (size_t)x.n_tokens);
        assert_memory_equal(x.cu_seqlens, y.cu_seqlens,
                            ((size_t)x.n_segments + 1) * sizeof *x.cu_seqlens);
        for (int64_t t = 0; t < x.n_tokens; t++)
            assert_int_equal(row_label(&x, t), row_label(&y, t));
    }
}

static void token_cache__gives_back_what_was_written(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    char *dir = fixture_dir();
    char *data = fixture_write(&arena, dir, "train.jsonl", "{}\n");
    char *cache_dir = text_format(&arena, "%s/a/b", dir);
    for (int labels = 0; labels < 2; labels++) {
        TokenStore written, read;
        token_store_init(&written);
        token_store_init(&read);
        TokenCacheFile file;
        TokenCounts counts = {0};
        bool found = true;
        assert_ok(token_cache_find(&file, cache_dir, data, labels ? "x" : "y", &arena));
        assert_ok(token_cache_read(&read, &counts, &found, &file, 10, NULL));
        assert_false(found);
        fill(&written, labels);
        assert_ok(token_cache_write(&written, &counts_written, &file));
        fill(&read, false); /* reading appends */
        assert_ok(token_cache_read(&read, &counts, &found, &file, 10, NULL));
        assert_true(found);
        assert_memory_equal(&counts, &counts_written, sizeof counts);
        assert_int_equal(read.n_items, 2 + written.n_items);
        assert_int_equal(read.n_tokens, 8 + written.n_tokens);
        assert_same(&read, 2, &written);
        token_store_free(&written);
        token_store_free(&read);
    }
    /* A file without samples is cached too. */
    TokenStore empty;
    token_store_init(&empty);
    TokenCacheFile file;
    TokenCounts counts;
    bool found;
    assert_ok(token_cache_find(&file, cache_dir, data, "z", &arena));
    assert_ok(token_cache_write(&empty, &counts_written, &file));
    assert_ok(token_cache_read(&empty, &counts, &found, &file, 10, NULL));
    assert_true(found);
    assert_int_equal(empty.n_items, 0);
    token_store_free(&empty);
    fixture_remove(dir);
    arena_free(&arena);
}

static void token_cache__name_depends_on_content_and_options(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    char *dir = fixture_dir();
    char *data = fixture_write(&arena, dir, "train.jsonl", "{}\n");
    char *same = fixture_write(&arena, dir, "other.jsonl", "{}\n");
    char *changed = fixture_write(&arena, dir, "changed.jsonl", "{} \n");
    TokenCacheFile a, b;
    assert_ok(token_cache_find(&a, dir, data, "options", &arena));
    assert_non_null(strstr(a.path, "/train.jsonl-"));
    assert_ok(token_cache_find(&b, dir, same, "options", &arena));
    assert_string_equal(a.key, b.key);
    assert_ok(token_cache_find(&b, dir, changed, "options", &arena));
    assert_string_not_equal(a.key, b.key);
    assert_ok(token_cache_find(&b, dir, data, "Options", &arena));
    assert_string_not_equal(a.key, b.key);
    assert_fails(token_cache_find(&b, dir, "/nonexistent/x", "options", &arena), ERR_IO, "x");
    fixture_remove(dir);
    arena_free(&arena);
}

/* Every single byte turned over, every shorter length, and some longer ones. */
static void token_cache__notices_any_damage(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    char *dir = fixture_dir();
    char *data = fixture_write(&arena, dir, "train.jsonl", "{}\n");
    TokenStore written, read;
    token_store_init(&written);
    token_store_init(&read);
    fill(&written, true);
    TokenCacheFile file;
    TokenCounts counts = {0};
    bool found;
    assert_ok(token_cache_find(&file, dir, data, "", &arena));
    assert_ok(token_cache_write(&written, &counts_written, &file));
    char *bytes;
    size_t n;
    assert_ok(file_read(&arena, file.path, &bytes, &n));
    for (size_t i = 0; i < 2 * n + 2; i++) {
        size_t length = i < n ? n : i < 2 * n ? i - n : i == 2 * n ? n + 1 : n + 8;
        char *damaged = ARENA_NEW(&arena, char, n + 8);
        memcpy(damaged, bytes, n);
        if (i < n) damaged[i] ^= 0x10;
        /* Not atomically: 700 files are written here. */
        FILE *out = fopen(file.path, "wb");
        assert_non_null(out);
        assert_int_equal(fwrite(damaged, 1, length, out), length);
        assert_int_equal(fclose(out), 0);
        assert_ok(token_cache_read(&read, &counts, &found, &file, 10, NULL));
        assert_false(found);
        assert_int_equal(read.n_items, 0);
        token_store_free(&read);
    }
    /* Written for a larger vocabulary: right bytes, wrong ids (up to 5) or labels (up to 9). */
    for (int labels = 0; labels < 2; labels++) {
        token_store_free(&written);
        fill(&written, labels);
        assert_ok(token_cache_write(&written, &counts_written, &file));
        assert_ok(token_cache_read(&read, &counts, &found, &file, labels ? 9 : 5, NULL));
        assert_false(found);
        assert_ok(token_cache_read(&read, &counts, &found, &file, labels ? 10 : 6, NULL));
        assert_true(found);
        token_store_free(&read);
    }
    token_store_free(&written);
    fixture_remove(dir);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_cache__gives_back_what_was_written),
        cmocka_unit_test(token_cache__name_depends_on_content_and_options),
        cmocka_unit_test(token_cache__notices_any_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
