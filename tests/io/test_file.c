#include "temp_dir.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static void file__written_bytes_are_read_and_mapped_again(void **state)
{
    Temp *temp = *state;
    char *path = temp_file(temp, "a", "one\0two", 7), *text;
    size_t n;
    assert_ok(file_read(&temp->arena, path, &text, &n));
    assert_int_equal(n, 7);
    assert_memory_equal(text, "one\0two", 8); /* and a NUL at the end */
    MappedFile map;
    assert_ok(file_map(&map, path));
    assert_int_equal(map.bytes, 7);
    assert_memory_equal(map.data, "one\0two", 7);
    file_unmap(&map);
    assert_null(map.data);
}

static void file__empty_files_are_fine(void **state)
{
    Temp *temp = *state;
    char *path = temp_file(temp, "a", NULL, 0), *text;
    size_t n = 9;
    assert_ok(file_read(&temp->arena, path, &text, &n));
    assert_int_equal(n, 0);
    assert_string_equal(text, "");
    MappedFile map;
    assert_ok(file_map(&map, path));
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    file_unmap(&map);
}

static void file__reads_what_says_it_has_no_size(void **state)
{
    Temp *temp = *state;
    char *text;
    size_t n;
    assert_ok(file_read(&temp->arena, "/proc/self/maps", &text, &n));
    assert_true(n > 0 && strlen(text) == n && text[n - 1] == '\n');
}

static void file__large_files_survive(void **state)
{
    Temp *temp = *state;
    size_t n = 300000, got;
    char *bytes = arena_take(&temp->arena, n), *text;
    for (size_t i = 0; i < n; i++) bytes[i] = (char)(i * 7 + i / 251);
    char *path = temp_file(temp, "a", bytes, n), *copy = temp_path(temp, "b");
    assert_ok(file_copy(copy, path));
    assert_ok(file_read(&temp->arena, copy, &text, &got));
    assert_int_equal(got, n);
    assert_memory_equal(text, bytes, n);
}

static void file__errors_name_the_path_and_the_reason(void **state)
{
    Temp *temp = *state;
    char *missing = temp_path(temp, "missing"), *text, **names;
    MappedFile map;
    int n;
    const char *reason = strerror(ENOENT);
    assert_int_equal(file_read(&temp->arena, missing, &text, NULL), ERR_IO);
    assert_message(missing);
    assert_message(reason);
    assert_int_equal(file_map(&map, missing), ERR_IO);
    assert_message(reason);
    assert_int_equal(file_copy(temp_path(temp, "to"), missing), ERR_IO);
    assert_message(missing);
    assert_false(file_exists(temp_path(temp, "to")));
    assert_int_equal(dir_list(&temp->arena, missing, &names, &n), ERR_IO);
    assert_message(reason);
    assert_int_equal(dir_sync(missing), ERR_IO);
    assert_int_equal(file_rename(temp_path(temp, "to"), missing), ERR_IO);
    assert_message(missing);
    assert_int_equal(file_map(&map, temp->dir), ERR_IO);
    assert_message(strerror(EISDIR));
    assert_int_equal(file_read(&temp->arena, temp->dir, &text, NULL), ERR_IO);
    assert_message(strerror(EISDIR));
}

static void file__failed_write_leaves_the_old_file_and_nothing_else(void **state)
{
    Temp *temp = *state;
    /* A folder in the file's place fails at the rename, after everything has been written. */
    char *path = temp_path(temp, "taken"), **names;
    int n;
    assert_ok(dir_create(path));
    temp_file(temp, "taken/inside", "x", 1);
    assert_int_equal(file_write_atomic(path, "new", 3), ERR_IO);
    assert_message(path);
    assert_ok(dir_list(&temp->arena, temp->dir, &names, &n));
    assert_int_equal(n, 1);
    assert_true(file_exists(temp_path(temp, "taken/inside")));
    /* A folder that is not there fails at the start. */
    char *nowhere = temp_path(temp, "none/file");
    assert_int_equal(file_write_atomic(nowhere, "new", 3), ERR_IO);
    assert_message(strerror(ENOENT));
}

static void file__unwritable_folder_is_an_error(void **state)
{
    Temp *temp = *state;
    if (geteuid() == 0) { /* root may write everywhere; /proc takes no files from anybody */
        assert_int_equal(file_write_atomic("/proc/sw-test", "new", 3), ERR_IO);
        assert_message("/proc/sw-test");
        return;
    }
    char *dir = temp_path(temp, "locked"), **names;
    int n;
    assert_ok(dir_create(dir));
    char *path = temp_file(temp, "locked/file", "old", 3), *text;
    assert_int_equal(chmod(dir, 0500), 0);
    assert_int_equal(file_write_atomic(path, "new", 3), ERR_IO);
    assert_message(strerror(EACCES));
    assert_int_equal(chmod(dir, 0700), 0);
    assert_ok(file_read(&temp->arena, path, &text, NULL));
    assert_string_equal(text, "old");
    assert_ok(dir_list(&temp->arena, dir, &names, &n));
    assert_int_equal(n, 1);
}

static void file__write_replaces(void **state)
{
    Temp *temp = *state;
    char *path = temp_file(temp, "a", "a longer old text", 17), *text;
    assert_ok(file_write_atomic(path, "new", 3));
    assert_ok(file_read(&temp->arena, path, &text, NULL));
    assert_string_equal(text, "new");
    assert_int_equal(unlink(path), 0);
    assert_false(file_exists(path));
}

static void dir__create_makes_all_parents(void **state)
{
    Temp *temp = *state;
    char *path = temp_path(temp, "a/b//c/");
    assert_ok(dir_create(path));
    assert_true(dir_exists(temp_path(temp, "a/b/c")));
    assert_ok(dir_create(path));
    char *file = temp_file(temp, "file", "", 0);
    assert_false(dir_exists(file));
    assert_int_equal(dir_create(file), ERR_IO);
    assert_int_equal(dir_create(temp_path(temp, "file/below")), ERR_IO);
    assert_message(file);
    assert_int_equal(dir_create(""), ERR_IO);
}

static void dir__remove_tree_does_not_follow_links(void **state)
{
    Temp *temp = *state;
    assert_ok(dir_create(temp_path(temp, "kept")));
    char *kept = temp_file(temp, "kept/file", "x", 1);
    assert_ok(dir_create(temp_path(temp, "tree/deep/er")));
    temp_file(temp, "tree/deep/er/file", "x", 1);
    assert_int_equal(symlink(temp_path(temp, "kept"), temp_path(temp, "tree/link")), 0);
    assert_ok(dir_remove_tree(temp_path(temp, "tree")));
    assert_false(dir_exists(temp_path(temp, "tree")));
    assert_true(file_exists(kept));
    assert_ok(dir_remove_tree(temp_path(temp, "tree")));
}

static void dir__list_is_sorted_by_bytes(void **state)
{
    Temp *temp = *state;
    const char *const want[] = {"10", "2", "B", "a", "b"};
    for (int i = 4; i >= 0; i--) temp_file(temp, want[(i * 3) % 5], "", 0);
    char **names;
    int n;
    assert_ok(dir_list(&temp->arena, temp->dir, &names, &n));
    assert_int_equal(n, 5);
    for (int i = 0; i < 5; i++) assert_string_equal(names[i], want[i]);
}

static void paths__files_folders_and_patterns(void **state)
{
    Temp *temp = *state;
    // clang-format off
    static const struct { const char *pattern; int n; const char *name[4]; } rows[] = {
        {"d",           2, {"d/1.jsonl", "d/2.jsonl"}},
        {"d/",          2, {"d/1.jsonl", "d/2.jsonl"}},
        {"d/notes.txt", 1, {"d/notes.txt"}},
        {"d/*",         3, {"d/1.jsonl", "d/2.jsonl", "d/notes.txt"}},
        {"d/?.jsonl",   2, {"d/1.jsonl", "d/2.jsonl"}},
        {"[de]",        3, {"d/1.jsonl", "d/2.jsonl", "e/3.jsonl"}},
        {"x[1].jsonl",  1, {"x[1].jsonl"}}, /* a file of that very name */
        {"*/*.jsonl",   3, {"d/1.jsonl", "d/2.jsonl", "e/3.jsonl"}},
    };
    // clang-format on
    assert_ok(dir_create(temp_path(temp, "d/sub.jsonl")));
    assert_ok(dir_remove_tree(temp_path(temp, "d/sub.jsonl")));
    assert_ok(dir_create(temp_path(temp, "e/sub")));
    temp_file(temp, "d/2.jsonl", "", 0);
    temp_file(temp, "d/1.jsonl", "", 0);
    temp_file(temp, "d/notes.txt", "", 0);
    temp_file(temp, "e/3.jsonl", "", 0);
    temp_file(temp, "e/sub/4.jsonl", "", 0); /* folders are not searched deeper */
    temp_file(temp, "x[1].jsonl", "", 0);
    temp_file(temp, "x1.jsonl", "", 0);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char **path;
        int n;
        assert_ok(
            paths_expand(&temp->arena, temp_path(temp, rows[r].pattern), ".jsonl", &path, &n));
        assert_int_equal(n, rows[r].n);
        for (int i = 0; i < n; i++) {
            /* "d/" gives one slash, as path_join does. */
            assert_string_equal(path[i], temp_path(temp, rows[r].name[i]));
        }
    }
}

static void paths__nothing_found_is_an_error(void **state)
{
    Temp *temp = *state;
    char **path;
    int n;
    static const char *const patterns[] = {"none", "*.jsonl", "empty"};
    assert_ok(dir_create(temp_path(temp, "empty")));
    for (int i = 0; i < 3; i++) {
        char *pattern = temp_path(temp, patterns[i]);
        assert_int_equal(paths_expand(&temp->arena, pattern, ".jsonl", &path, &n), ERR_IO);
        assert_message(pattern);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(file__written_bytes_are_read_and_mapped_again),
        TEMP_TEST(file__empty_files_are_fine),
        TEMP_TEST(file__reads_what_says_it_has_no_size),
        TEMP_TEST(file__large_files_survive),
        TEMP_TEST(file__errors_name_the_path_and_the_reason),
        TEMP_TEST(file__failed_write_leaves_the_old_file_and_nothing_else),
        TEMP_TEST(file__unwritable_folder_is_an_error),
        TEMP_TEST(file__write_replaces),
        TEMP_TEST(dir__create_makes_all_parents),
        TEMP_TEST(dir__remove_tree_does_not_follow_links),
        TEMP_TEST(dir__list_is_sorted_by_bytes),
        TEMP_TEST(paths__files_folders_and_patterns),
        TEMP_TEST(paths__nothing_found_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
