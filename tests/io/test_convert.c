#include "temp_dir.h"
#include "io/convert.h"

#include <math.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The value of a 16-bit float with so many mantissa bits, from the definition, in double. */
static double value_of(unsigned bits, int mantissa_bits)
{
    int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1));
    double scale = ldexp(1, -mantissa_bits), sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa * scale, 1 - bias);
    return sign * ldexp(1 + mantissa * scale, exponent - bias);
}

typedef struct Half {
    const char *name;
    int mantissa_bits;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
} Half;

static const Half halves[] = {{"bf16", 7, bf16_to_f32, f32_to_bf16},
                              {"f16", 10, f16_to_f32, f32_to_f16}};

static void convert__every_16_bit_value_widens_exactly_and_comes_back(void **state)
{
    (void)state;
    for (int h = 0; h < 2; h++)
        for (unsigned bits = 0; bits < 0x10000; bits++) {
            double want = value_of(bits, halves[h].mantissa_bits);
            float got = halves[h].widen((uint16_t)bits);
            uint16_t back = halves[h].narrow(got);
            if (isnan(want)) {
                if (!isnan(got) || !isnan(value_of(back, halves[h].mantissa_bits)) ||
                    (back & 0x8000) != (bits & 0x8000))
                    fail_msg("%s %04x: NaN became %a, back %04x", halves[h].name, bits, got, back);
            } else if ((double)got != want || !signbit(got) != !signbit(want) || back != bits) {
                fail_msg("%s %04x: got %a, expected %a, back %04x", halves[h].name, bits, got, want,
                         back);
            }
        }
}

/* Around every pair of neighbours: below the middle, the middle (to the even one), above it. */
static void convert__every_tie_goes_to_even(void **state)
{
    (void)state;
    for (int h = 0; h < 2; h++) {
        unsigned infinity = h == 0 ? 0x7f80 : 0x7c00;
        for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000)
            for (unsigned bits = 0; bits < infinity; bits++) {
                double low = value_of(bits, halves[h].mantissa_bits);
                /* The place of infinity is where the next finite value would be. */
                double high = bits + 1 < infinity ? value_of(bits + 1, halves[h].mantissa_bits)
                              : h == 0            ? 0x1p128
                                                  : 65536;
                float middle = (float)((low + high) / 2);
                if ((double)middle != (low + high) / 2)
                    continue; /* bf16 subnormals have no middle */
                unsigned even = bits & 1 ? bits + 1 : bits;
                uint32_t flip = sign << 16;
                uint16_t at = halves[h].narrow(float_of(bits_of(middle) | flip));
                uint16_t below = halves[h].narrow(float_of((bits_of(middle) - 1) | flip));
                uint16_t above = halves[h].narrow(float_of((bits_of(middle) + 1) | flip));
                if (at != (even | sign) || below != (bits | sign) || above != ((bits + 1) | sign))
                    fail_msg("%s %04x: middle %a gave %04x, below %04x, above %04x", halves[h].name,
                             bits, (double)middle, at, below, above);
            }
    }
}

static void convert__extremes(void **state)
{
    (void)state;
    // clang-format off
    static const struct { uint32_t from; uint16_t bf16, f16; } rows[] = {
        {0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000},
        {0x7f800000, 0x7f80, 0x7c00}, {0xff800000, 0xff80, 0xfc00},
        {0x7f7fffff, 0x7f80, 0x7c00}, {0x7f7f7fff, 0x7f7f, 0x7c00},   /* FLT_MAX; largest below the tie */
        {0x00000001, 0x0000, 0x0000}, {0x80000001, 0x8000, 0x8000},   /* least f32 subnormal */
        {0x00018000, 0x0002, 0x0000},                                 /* a bf16 subnormal tie */
        {0x477fefff, 0x4780, 0x7bff}, {0x477ff000, 0x4780, 0x7c00},   /* 65519.99…, 65520 */
        {0x33000000, 0x3300, 0x0000}, {0x33000001, 0x3300, 0x0001},   /* 2^-25, just above */
        {0x7fc00000, 0x7fc0, 0x7e00}, {0xffc00000, 0xffc0, 0xfe00},
        {0x7f800001, 0x7fc0, 0x7e00},                                 /* payload in the low bits: still NaN */
        {0x7fffffff, 0x7fff, 0x7fff},
    };
    // clang-format on
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        assert_int_equal(f32_to_bf16(float_of(rows[r].from)), rows[r].bf16);
        assert_int_equal(f32_to_f16(float_of(rows[r].from)), rows[r].f16);
    }
}

static void convert__arrays_of_every_possible_pair(void **state)
{
    (void)state;
    /* 1, 2, 3 are exact in all types: whatever the pair, they must come out again. */
    static const float f32[3] = {1, 2, 3};
    static const double f64[3] = {1, 2, 3};
    static const uint16_t bf16[3] = {0x3f80, 0x4000, 0x4040}, f16[3] = {0x3c00, 0x4000, 0x4200};
    static const int32_t i32[3] = {1, 2, 3};
    static const int64_t i64[3] = {1, 2, 3};
    static const uint8_t u8[3] = {1, 2, 3};
    static const void *const same[DTYPE_COUNT] = {
        [DTYPE_F32] = f32, [DTYPE_F64] = f64, [DTYPE_BF16] = bf16, [DTYPE_F16] = f16,
        [DTYPE_I32] = i32, [DTYPE_I64] = i64, [DTYPE_U8] = u8};
    int n_possible = 0;
    for (DType to = 0; to < DTYPE_COUNT; to++)
        for (DType from = 0; from < DTYPE_COUNT; from++) {
            if (!convert_possible(to, from)) continue;
            n_possible++;
            char src[32], dst[32]; /* one off any alignment */
            memcpy(src + 1, same[from], 3 * dtype_bytes(from));
            memset(dst, 0x55, sizeof dst);
            convert_array(dst + 1, to, src + 1, from, 3);
            assert_memory_equal(dst + 1, same[to], 3 * dtype_bytes(to));
            assert_int_equal(dst[0], 0x55);
            assert_int_equal(dst[1 + 3 * dtype_bytes(to)], 0x55);
        }
    assert_int_equal(n_possible, DTYPE_COUNT + 6 + 6 + 2);
    assert_false(convert_possible(DTYPE_COUNT, DTYPE_COUNT));
    assert_false(convert_possible(DTYPE_I32, DTYPE_F32));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convert__every_16_bit_value_widens_exactly_and_comes_back),
        cmocka_unit_test(convert__every_tie_goes_to_even),
        cmocka_unit_test(convert__extremes),
        cmocka_unit_test(convert__arrays_of_every_possible_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
