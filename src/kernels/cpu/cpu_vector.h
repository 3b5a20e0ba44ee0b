#pragma once
/**
 * Vectors of LANES floats, the widest the compiler may use, and the few operations the kernels need. Loops are written
 * with them rather than left to the vectoriser, so that the order of every sum is what the source says:
 * no peeling by alignment, no change with the optimisation level.
 *
 * In memory the numbers are f32 or bf16; arithmetic is f32 always. A loop over both is written once, with vec_read and
 * vec_write, in an ALWAYS_INLINE function that BY_DTYPE calls with the dtype as a constant.
 */
#include "core/tensor.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16 };
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

typedef float vec __attribute__((vector_size(LANES * 4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4)));
typedef uint32_t uvec __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef float vec_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t halves_unaligned __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

static inline vec vec_load(const float *p)
{
    return *(const vec_unaligned *)p;
}

static inline void vec_store(float *p, vec x)
{
    *(vec_unaligned *)p = x;
}

static inline vec vec_set(float x)
{
    return x - (vec){0}; /* minus zero keeps the sign of -0 */
}

/** The first n < LANES elements; `other` in the lanes behind them. */
static inline vec vec_load_part(const float *p, int64_t n, float other)
{
#if defined(__AVX512F__)
    return _mm512_mask_loadu_ps(vec_set(other), (__mmask16)((1u << n) - 1), p);
#else
    vec x = vec_set(other);
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
#endif
}

static inline void vec_store_part(float *p, vec x, int64_t n)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
#else
    memcpy(p, &x, (size_t)n * sizeof *p);
#endif
}

/*
 * Rows are walked in steps of LANES with `left` elements to go:
 *   for (int64_t i = 0; i < n; i += LANES) vec_store_to(y + i, vec_load_to(x + i, n - i), n - i);
 */
static inline vec vec_load_or(const float *p, int64_t left, float other)
{
    return left >= LANES ? vec_load(p) : vec_load_part(p, left, other);
}

static inline vec vec_load_to(const float *p, int64_t left)
{
    return vec_load_or(p, left, 0);
}

static inline void vec_store_to(float *p, vec x, int64_t left)
{
    if (left >= LANES)
        vec_store(p, x);
    else
        vec_store_part(p, x, left);
}

/** a b + c, rounded once where the machine can. */
static inline vec vec_madd(vec a, vec b, vec c)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

static inline vec vec_sqrt(vec x)
{
#if defined(__AVX512F__)
    return _mm512_sqrt_ps(x);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_sqrt_ps(x);
#else
    for (int i = 0; i < LANES; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/** condition (all bits set or none, as comparisons give) ? a : b */
static inline vec vec_select(ivec condition, vec a, vec b)
{
    return (vec)((condition & (ivec)a) | (~condition & (ivec)b));
}

/** The larger one; b where one is NaN. */
static inline vec vec_max(vec a, vec b)
{
    return vec_select(a > b, a, b);
}

/* Halves of 16 bits from and to whole lanes; what gcc makes of convertvector takes several steps. */
static inline uvec lanes_of_halves(halves x)
{
#if defined(__AVX512F__)
    return (uvec)_mm512_cvtepu16_epi32((__m256i)x);
#elif defined(__AVX2__) && defined(__FMA__)
    return (uvec)_mm256_cvtepu16_epi32((__m128i)x);
#else
    return __builtin_convertvector(x, uvec);
#endif
}

static inline halves halves_of_lanes(uvec x)
{
#if defined(__AVX512F__)
    return (halves)_mm512_cvtepi32_epi16((__m512i)x);
#else
    return __builtin_convertvector(x, halves);
#endif
}

/** bf16 is the upper half of an f32. */
static inline vec vec_of_bf16(halves x)
{
    return (vec)(lanes_of_halves(x) << 16);
}

/**
 * x rounded to bf16, in the upper halves; what the lower ones hold doesn't matter. To nearest, ties to even: half of the
 * last kept place, less one when that is even, carries where it should. NaN stays NaN.
 */
static inline uvec bf16_above(vec x)
{
    uvec bits = (uvec)x, rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
#if defined(__AVX512F__)
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return (uvec)_mm512_mask_mov_epi32((__m512i)rounded, is_nan, (__m512i)quiet);
#else
    return (uvec)vec_select(x == x, (vec)rounded, (vec)quiet);
#endif
}

static inline halves vec_to_bf16(vec x)
{
    return halves_of_lanes(bf16_above(x) >> 16);
}

/** LANES bf16, zeros behind the first n < LANES. */
static inline halves halves_load_part(const uint16_t *p, int64_t n)
{
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return (halves)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
#else
    halves x = {0};
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
#endif
}

static inline void halves_store_part(uint16_t *p, halves x, int64_t n)
{
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    _mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), (__m256i)x);
#else
    memcpy(p, &x, (size_t)n * sizeof *p);
#endif
}

#define ALWAYS_INLINE __attribute__((always_inline)) static inline

/** Elements i … of x, which is f32 or bf16; zeros behind the `left` ones that are there. */
ALWAYS_INLINE vec vec_read(DType dtype, const void *x, int64_t i, int64_t left)
{
    if (dtype != DTYPE_BF16) return vec_load_to((const float *)x + i, left);
    const uint16_t *p = (const uint16_t *)x + i;
    if (left >= LANES) return vec_of_bf16(*(const halves_unaligned *)p);
    return vec_of_bf16(halves_load_part(p, left));
}

/** Rounds if x is bf16. */
ALWAYS_INLINE void vec_write(DType dtype, void *x, int64_t i, vec value, int64_t left)
{
    uint16_t *p = (uint16_t *)x + i;
    if (dtype != DTYPE_BF16)
        vec_store_to((float *)x + i, value, left);
    else if (left >= LANES)
        *(halves_unaligned *)p = vec_to_bf16(value);
    else
        halves_store_part(p, vec_to_bf16(value), left);
}

/** value as it would be read again after vec_write. */
ALWAYS_INLINE vec vec_rounded(DType dtype, vec value)
{
    if (dtype == DTYPE_BF16) return (vec)(bf16_above(value) & 0xffff0000u);
    return value;
}

/** function(dtype, …), where the compiler sees a constant dtype. */
#define BY_DTYPE(dtype, function, ...) \
    ((dtype) == DTYPE_BF16 ? function(DTYPE_BF16, __VA_ARGS__) : function(DTYPE_F32, __VA_ARGS__))

#if defined(__AVX512F__)
/** r becomes its transpose: words of 32 bits, four by four within the quarters of a register, then the quarters. */
ALWAYS_INLINE void vec_transpose(vec r[16])
{
    __m512 t[16];
#pragma GCC unroll 4
    for (int g = 0; g < 16; g += 4) {
        __m512d low0 = _mm512_castps_pd(_mm512_unpacklo_ps(r[g], r[g + 1]));
        __m512d high0 = _mm512_castps_pd(_mm512_unpackhi_ps(r[g], r[g + 1]));
        __m512d low1 = _mm512_castps_pd(_mm512_unpacklo_ps(r[g + 2], r[g + 3]));
        __m512d high1 = _mm512_castps_pd(_mm512_unpackhi_ps(r[g + 2], r[g + 3]));
        t[g] = _mm512_castpd_ps(_mm512_unpacklo_pd(low0, low1));
        t[g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low0, low1));
        t[g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high0, high1));
        t[g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high0, high1));
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) { /* quarter q of t[4g + j]: rows 4g … 4g + 3, column 4q + j */
        __m512 a = _mm512_shuffle_f32x4(t[j], t[4 + j], 0x44);
        __m512 b = _mm512_shuffle_f32x4(t[j], t[4 + j], 0xee);
        __m512 c = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0x44);
        __m512 d = _mm512_shuffle_f32x4(t[8 + j], t[12 + j], 0xee);
        r[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        r[4 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
        r[8 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
        r[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}
#endif

typedef float vec4 __attribute__((vector_size(16)));
typedef int32_t ivec4 __attribute__((vector_size(16)));
typedef float vec4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

/* Reductions fold the upper half onto the lower until one lane is left: a fixed order. */
#define VEC4_FOLD(op, x) \
    ((x) = op(x, __builtin_shufflevector(x, x, 2, 3, 2, 3)), \
     (x) = op(x, __builtin_shufflevector(x, x, 1, 1, 1, 1)), (x)[0])
#define VEC_ADD(a, b) ((a) + (b))

static inline vec4 vec4_larger(vec4 a, vec4 b)
{
    ivec4 condition = a > b;
    return (vec4)((condition & (ivec4)a) | (~condition & (ivec4)b));
}

/** The four-lane pieces of x. */
static inline void vec_pieces(vec x, vec4 piece[LANES / 4])
{
    memcpy(piece, &x, sizeof x);
}

static inline float vec_sum(vec x)
{
    vec4 piece[LANES / 4];
    vec_pieces(x, piece);
    for (int half = LANES / 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) piece[i] += piece[i + half];
    return VEC4_FOLD(VEC_ADD, piece[0]);
}

/** The largest lane; where one is NaN, any. */
static inline float vec_largest(vec x)
{
    vec4 piece[LANES / 4];
    vec_pieces(x, piece);
    for (int half = LANES / 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) piece[i] = vec4_larger(piece[i], piece[i + half]);
    return VEC4_FOLD(vec4_larger, piece[0]);
}

/**
 * e^x to about 1 ulp. Below -86.6 (also -inf) exactly 0; above 88.7 as at 88.7; NaN stays NaN.
 * Source: the usual reduction x = n ln 2 + r with a degree 7 polynomial on |r| <= ln 2 / 2 (coefficients: Cephes expf).
 */
static inline vec vec_exp(vec x)
{
    const float shift = 12582912.0f; /* 1.5 2^23: adding it rounds to an integer in the low bits */
    vec low = vec_set(-86.6f), high = vec_set(88.7f);
    vec clamped = vec_select(x < low, low, vec_select(x > high, high, x));
    vec n_shifted = vec_madd(clamped, vec_set(1.44269504088896341f), vec_set(shift));
    vec n = n_shifted - vec_set(shift);
    vec r = vec_madd(n, vec_set(-0.693359375f), clamped);
    r = vec_madd(n, vec_set(2.12194440e-4f), r);
    vec p = vec_set(1.9875691500e-4f);
    p = vec_madd(p, r, vec_set(1.3981999507e-3f));
    p = vec_madd(p, r, vec_set(8.3334519073e-3f));
    p = vec_madd(p, r, vec_set(4.1665795894e-2f));
    p = vec_madd(p, r, vec_set(1.6666665459e-1f));
    p = vec_madd(p, r, vec_set(5.0000001201e-1f));
    p = vec_madd(p, r * r, r) + vec_set(1.0f);
    vec scaled = (vec)((uvec)p + ((uvec)n_shifted << 23)); /* p 2^n */
    scaled = vec_select(x < low, (vec){0}, scaled);
    return vec_select(x == x, scaled, x);
}
