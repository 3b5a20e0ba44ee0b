#pragma once
/**
 * Numbers between element types. Narrowing rounds to nearest, ties to even; beyond the largest finite
 * value it gives infinity; NaN stays NaN with its sign and leading payload bits, made quiet.
 * bf16 is the upper half of an f32; f16 is IEEE binary16 with subnormals.
 */
#include "core/tensor.h"

float bf16_to_f32(uint16_t bits);
uint16_t f32_to_bf16(float value);
float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

/**
 * Whether convert_array can: the same type (a copy); f32, f64, bf16, f16, i32, i64, u8 to f32 or f64;
 * f32 to bf16 or f16.
 */
bool convert_possible(DType to, DType from);

/** dst[i] = src[i] for n elements, which may be unaligned and must not overlap; the pair must be possible. */
void convert_array(void *dst, DType to, const void *src, DType from, int64_t n);
