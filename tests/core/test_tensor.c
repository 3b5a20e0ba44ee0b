#include "core/tensor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static void tensor__dtypes_have_bytes_and_names(void **state)
{
    (void)state;
    static const struct {
        DType dtype;
        size_t bytes;
        const char *name;
    } rows[] = {{DTYPE_F32, 4, "f32"}, {DTYPE_F64, 8, "f64"}, {DTYPE_BF16, 2, "bf16"},
                {DTYPE_F16, 2, "f16"}, {DTYPE_I32, 4, "i32"}, {DTYPE_I64, 8, "i64"},
                {DTYPE_U8, 1, "u8"}};
    assert_int_equal(sizeof rows / sizeof *rows, DTYPE_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(dtype_bytes(rows[i].dtype), rows[i].bytes);
        assert_string_equal(dtype_name(rows[i].dtype), rows[i].name);
    }
}

static void tensor__sizes(void **state)
{
    (void)state;
    assert_int_equal(tensor_size(tensor1(NULL, DTYPE_F32, 7)), 7);
    assert_int_equal(tensor_size(tensor2(NULL, DTYPE_F32, 7, 0)), 0);
    assert_int_equal(tensor_size(tensor3(NULL, DTYPE_F32, 2, 3, 5)), 30);
    assert_int_equal(tensor_bytes(tensor3(NULL, DTYPE_BF16, 2, 3, 5)), 60);
    assert_true(tensor_size(tensor2(NULL, DTYPE_F32, 1 << 20, 1 << 20)) == (int64_t)1 << 40);
    assert_true(tensor_is_null(tensor1(NULL, DTYPE_F32, 7)));
    assert_false(tensor_is_null(tensor1((float[1]){0}, DTYPE_F32, 1)));
    /* unused dims are 1, so that products over all four are right */
    Tensor t = tensor1(NULL, DTYPE_F32, 7);
    assert_int_equal(t.dim[1] * t.dim[2] * t.dim[3], 1);
}

static void tensor__rows_and_reshape_are_views(void **state)
{
    (void)state;
    float data[24];
    Tensor t = tensor3(data, DTYPE_F32, 4, 3, 2);
    Tensor rows = tensor_rows(t, 1, 2);
    assert_ptr_equal(rows.data, data + 6);
    assert_int_equal(rows.n_dims, 3);
    assert_int_equal(tensor_size(rows), 12);
    assert_ptr_equal(tensor_rows(t, 4, 0).data, data + 24);
    Tensor flat = tensor_reshape2(rows, 6, 2);
    assert_ptr_equal(flat.data, data + 6);
    assert_int_equal(flat.n_dims, 2);
    assert_int_equal(flat.dim[0], 6);
    assert_ptr_equal(tensor_at(t, 23), data + 23);
    Tensor empty = tensor2(data, DTYPE_F32, 0, 3);
    assert_ptr_equal(tensor_rows(empty, 0, 0).data, data);
}

static void tensor__memory_comes_from_the_arena(void **state)
{
    (void)state;
    Arena arena;
    arena_init(&arena, "test");
    Tensor a = arena_tensor1(&arena, DTYPE_F64, 100), b = arena_tensor2(&arena, DTYPE_I32, 10, 10),
           c = arena_tensor3(&arena, DTYPE_U8, 5, 5, 5);
    memset(a.data, 1, tensor_bytes(a));
    memset(b.data, 2, tensor_bytes(b));
    memset(c.data, 3, tensor_bytes(c));
    assert_int_equal(((char *)a.data)[799], 1);
    assert_int_equal(((char *)b.data)[399], 2);
    assert_int_equal((uintptr_t)a.data % 64 + (uintptr_t)b.data % 64 + (uintptr_t)c.data % 64, 0);
    assert_true(arena.used >= 800 + 400 + 125);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor__dtypes_have_bytes_and_names),
        cmocka_unit_test(tensor__sizes),
        cmocka_unit_test(tensor__rows_and_reshape_are_views),
        cmocka_unit_test(tensor__memory_comes_from_the_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
