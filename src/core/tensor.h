#pragma once
/** A contiguous row-major array of at most 4 dims. A view, never an owner: memory belongs to an arena. */
#include "base/arena.h"

typedef enum DType {
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_BF16,
    DTYPE_F16,
    DTYPE_I32,
    DTYPE_I64,
    DTYPE_U8,
    DTYPE_COUNT
} DType;

size_t dtype_bytes(DType dtype);
const char *dtype_name(DType dtype); /* "f32", … */

typedef struct Tensor {
    void *data;
    DType dtype;
    int n_dims;
    int64_t dim[4];
} Tensor;

Tensor tensor1(void *data, DType dtype, int64_t d0);
Tensor tensor2(void *data, DType dtype, int64_t d0, int64_t d1);
Tensor tensor3(void *data, DType dtype, int64_t d0, int64_t d1, int64_t d2);
/** Memory from the arena, uninitialised. */
Tensor arena_tensor1(Arena *arena, DType dtype, int64_t d0);
Tensor arena_tensor2(Arena *arena, DType dtype, int64_t d0, int64_t d1);
Tensor arena_tensor3(Arena *arena, DType dtype, int64_t d0, int64_t d1, int64_t d2);

int64_t tensor_size(Tensor t); /* elements */
size_t tensor_bytes(Tensor t);
Tensor tensor_rows(Tensor t, int64_t first, int64_t count); /* a slice of dim 0, lent */
Tensor tensor_reshape2(Tensor t, int64_t d0, int64_t d1);   /* same elements */
void *tensor_at(Tensor t, int64_t element);                 /* address of a flat element */
static inline bool tensor_is_null(Tensor t)
{
    return t.data == NULL;
}
