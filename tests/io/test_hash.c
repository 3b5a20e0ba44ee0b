#include "temp_dir.h"
#include "io/hash.h"

/* Values of the xxhsum program (XXH3 with seed 0). */
static void hash__known_values(void **state)
{
    Temp *temp = *state;
    char hex[HASH_HEX_BYTES];
    assert_true(hash_bytes("", 0) == UINT64_C(0x2d06800538d394c2));
    hash_hex(hex, "", 0);
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    hash_hex(hex, "abc", 3);
    assert_string_equal(hex, "06b05ab6733a618578af5f94892f3950");
    assert_ok(hash_file(hex, temp_file(temp, "abc", "abc", 3)));
    assert_string_equal(hex, "06b05ab6733a618578af5f94892f3950");
    assert_ok(hash_file(hex, temp_file(temp, "empty", "", 0)));
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    assert_int_equal(hash_file(hex, temp_path(temp, "none")), ERR_IO);
    assert_message("none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {TEMP_TEST(hash__known_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
