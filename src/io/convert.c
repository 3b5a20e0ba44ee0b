#include "io/convert.h"

#include <assert.h>
#include <string.h>

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float bf16_to_f32(uint16_t bits)
{
    return float_of_bits((uint32_t)bits << 16);
}

uint16_t f32_to_bf16(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x0040);
    /* Half of the last kept place, less one when that is even: ties go to even, and a carry out of
       the mantissa steps the exponent, up to infinity. */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
    if (exponent == 0x1f) {
        uint32_t quiet = mantissa ? 0x00400000u : 0;
        return float_of_bits(sign | 0x7f800000u | quiet | mantissa << 13);
    }
    if (exponent == 0) {
        /* A subnormal is its mantissa times 2^-24, which f32 holds exactly. */
        float magnitude = (float)mantissa * 0x1p-24f;
        return float_of_bits(sign | bits_of_float(magnitude));
    }
    return float_of_bits(sign | (exponent + 127 - 15) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float value)
{
    uint32_t bits = bits_of_float(value);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00); /* >= 2^16, infinity */
    uint32_t exponent = magnitude >> 23;
    if (exponent >= 127 - 14) {
        /* Rebias the exponent, then round as bf16 does; 65520 and above carry into infinity. */
        uint32_t rebiased = magnitude - ((127u - 15u) << 23);
        return (uint16_t)(sign | (rebiased + 0xfffu + (rebiased >> 13 & 1)) >> 13);
    }
    if (exponent < 127 - 25) return (uint16_t)sign; /* below half of the least subnormal */
    /* Subnormal: the mantissa with its leading one, shifted so that a unit is 2^-24. */
    uint32_t mantissa = (magnitude & 0x007fffffu) | 0x00800000u;
    uint32_t shift = 127 - 14 - exponent + 13;
    uint32_t half = 1u << (shift - 1);
    return (uint16_t)(sign | (mantissa + half - 1 + (mantissa >> shift & 1)) >> shift);
}

/* One loop for each pair; memcpy because data in a file need not be aligned. */
#define LOOP(name, To, From, expression) \
    static void name(void *dst, const void *src, int64_t n) \
    { \
        for (int64_t i = 0; i < n; i++) { \
            From x; \
            memcpy(&x, (const char *)src + (size_t)i * sizeof x, sizeof x); \
            To y = (To)(expression); \
            memcpy((char *)dst + (size_t)i * sizeof y, &y, sizeof y); \
        } \
    }

LOOP(f64_f32, float, double, x)
LOOP(bf16_f32, float, uint16_t, bf16_to_f32(x))
LOOP(f16_f32, float, uint16_t, f16_to_f32(x))
LOOP(i32_f32, float, int32_t, x)
LOOP(i64_f32, float, int64_t, x)
LOOP(u8_f32, float, uint8_t, x)
LOOP(f32_f64, double, float, x)
LOOP(bf16_f64, double, uint16_t, bf16_to_f32(x))
LOOP(f16_f64, double, uint16_t, f16_to_f32(x))
LOOP(i32_f64, double, int32_t, x)
LOOP(i64_f64, double, int64_t, x)
LOOP(u8_f64, double, uint8_t, x)
LOOP(f32_bf16, uint16_t, float, f32_to_bf16(x))
LOOP(f32_f16, uint16_t, float, f32_to_f16(x))

typedef void ConvertLoop(void *dst, const void *src, int64_t n);

// clang-format off
static ConvertLoop *const loop_to_from[DTYPE_COUNT][DTYPE_COUNT] = {
    [DTYPE_F32]  = {[DTYPE_F64] = f64_f32, [DTYPE_BF16] = bf16_f32, [DTYPE_F16] = f16_f32,
                    [DTYPE_I32] = i32_f32, [DTYPE_I64]  = i64_f32,  [DTYPE_U8]  = u8_f32},
    [DTYPE_F64]  = {[DTYPE_F32] = f32_f64, [DTYPE_BF16] = bf16_f64, [DTYPE_F16] = f16_f64,
                    [DTYPE_I32] = i32_f64, [DTYPE_I64]  = i64_f64,  [DTYPE_U8]  = u8_f64},
    [DTYPE_BF16] = {[DTYPE_F32] = f32_bf16},
    [DTYPE_F16]  = {[DTYPE_F32] = f32_f16},
};
// clang-format on

bool convert_possible(DType to, DType from)
{
    return to < DTYPE_COUNT && from < DTYPE_COUNT && (to == from || loop_to_from[to][from]);
}

void convert_array(void *dst, DType to, const void *src, DType from, int64_t n)
{
    assert(convert_possible(to, from));
    if (n <= 0) return;
    if (to == from)
        memcpy(dst, src, (size_t)n * dtype_bytes(to));
    else
        loop_to_from[to][from](dst, src, n);
}
