#include "core/tensor.h"

#include <assert.h>

static const struct {
    size_t bytes;
    const char *name;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_F32] = {4, "f32"}, [DTYPE_F64] = {8, "f64"}, [DTYPE_BF16] = {2, "bf16"},
    [DTYPE_F16] = {2, "f16"}, [DTYPE_I32] = {4, "i32"}, [DTYPE_I64] = {8, "i64"},
    [DTYPE_U8] = {1, "u8"},
};

size_t dtype_bytes(DType dtype)
{
    return dtypes[dtype].bytes;
}

const char *dtype_name(DType dtype)
{
    return dtypes[dtype].name;
}

Tensor tensor1(void *data, DType dtype, int64_t d0)
{
    return (Tensor){data, dtype, 1, {d0, 1, 1, 1}};
}

Tensor tensor2(void *data, DType dtype, int64_t d0, int64_t d1)
{
    return (Tensor){data, dtype, 2, {d0, d1, 1, 1}};
}

Tensor tensor3(void *data, DType dtype, int64_t d0, int64_t d1, int64_t d2)
{
    return (Tensor){data, dtype, 3, {d0, d1, d2, 1}};
}

static Tensor with_memory(Arena *arena, Tensor t)
{
    size_t bytes = dtype_bytes(t.dtype);
    for (int i = 0; i < t.n_dims; i++) bytes = size_mul(bytes, (size_t)t.dim[i]);
    t.data = arena_take(arena, bytes);
    return t;
}

Tensor arena_tensor1(Arena *arena, DType dtype, int64_t d0)
{
    return with_memory(arena, tensor1(NULL, dtype, d0));
}

Tensor arena_tensor2(Arena *arena, DType dtype, int64_t d0, int64_t d1)
{
    return with_memory(arena, tensor2(NULL, dtype, d0, d1));
}

Tensor arena_tensor3(Arena *arena, DType dtype, int64_t d0, int64_t d1, int64_t d2)
{
    return with_memory(arena, tensor3(NULL, dtype, d0, d1, d2));
}

int64_t tensor_size(Tensor t)
{
    int64_t n = 1;
    for (int i = 0; i < t.n_dims; i++) n *= t.dim[i];
    return n;
}

size_t tensor_bytes(Tensor t)
{
    return (size_t)tensor_size(t) * dtype_bytes(t.dtype);
}

Tensor tensor_rows(Tensor t, int64_t first, int64_t count)
{
    assert(first >= 0 && count >= 0 && first + count <= t.dim[0]);
    int64_t row = t.dim[0] ? tensor_size(t) / t.dim[0] : 0;
    t.data = tensor_at(t, first * row);
    t.dim[0] = count;
    return t;
}

Tensor tensor_reshape2(Tensor t, int64_t d0, int64_t d1)
{
    assert(tensor_size(t) == d0 * d1);
    return tensor2(t.data, t.dtype, d0, d1);
}

void *tensor_at(Tensor t, int64_t element)
{
    return (char *)t.data + (size_t)element * dtype_bytes(t.dtype);
}
