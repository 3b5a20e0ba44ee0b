#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

/*
 * The product of one thread. Blocks of b [BLOCK_K, BLOCK_N] and strips of a [TILE_ROWS, BLOCK_K] are copied so that the inner
 * loop reads both in order: a strip from the first, a block from the second cache level. A tile of c stays in registers while k runs
 * over a block; then it is added to c. So an element of c is a chain of BLOCK_K multiply-adds per block of k, the blocks
 * added in order: it doesn't depend on where the element stands, nor on how callers cut m and n.
 * Source: Goto, van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
 */
#if defined(__AVX512F__)
enum { TILE_ROWS = 14 }; /* 28 accumulators of the 32 registers */
#else
enum { TILE_ROWS = 6 }; /* 12 of 16 */
#endif
/* Where there are AMX tiles too, the dot product of pairs is slow: half the rate of the f32 multiply-adds it replaces. */
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && !defined(__AMX_BF16__)
#define HAVE_PAIRS 1
#else
#define HAVE_PAIRS 0
#endif
enum { TILE_COLS = 2 * LANES, BLOCK_K = 256, BLOCK_N = 512, PACK_SLACK = 4 };
enum { ROUND_ROWS = 8 * TILE_ROWS }; /* rows of a bf16 c whose sums are held in f32 */

/*
 * What is copied are words of 32 bits, BLOCK_K of them to a block of k: a number as f32, or two bf16 that follow one another
 * along k, which one instruction multiplies by two others and adds up. An odd k is filled up by a zero.
 */
typedef enum Reading { READ_F32, READ_BF16, READ_PAIRS } Reading;

ALWAYS_INLINE const void *element_at(Reading reading, const void *x, int64_t i)
{
    return (const char *)x + i * (reading == READ_F32 ? 4 : 2);
}

static inline int64_t words_of(Reading reading, int64_t k)
{
    return reading == READ_PAIRS ? (k + 1) / 2 : k;
}

/* c [rows, cols] = beta c + alpha a b for a [words, rows] and b [words, LANES or TILE_COLS], rows of b ldb apart. */
typedef void TileFunction(int64_t words, const float *a, const float *b, int64_t ldb, float alpha,
                          float beta, float *c, int64_t ldc, int64_t cols);

static inline void store_tile_vec(float *c, vec sum, float alpha, float beta, int64_t cols)
{
    vec value = vec_set(alpha) * sum;
    if (beta != 0) value += vec_set(beta) * vec_load_to(c, cols);
    vec_store_to(c, value, cols);
}

/* Pairs are no floats: copied as they are. */
ALWAYS_INLINE vec word_set(bool pairs, const float *word)
{
    if (!pairs) return vec_set(*word);
    int32_t bits;
    memcpy(&bits, word, sizeof bits);
    return (vec)(bits + (ivec){0});
}

ALWAYS_INLINE vec word_madd(bool pairs, vec a, vec b, vec sum)
{
#if HAVE_PAIRS
    if (pairs) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    (void)pairs;
#endif
    return vec_madd(a, b, sum);
}

ALWAYS_INLINE void tile(bool pairs, int rows, int vecs, int64_t words, const float *restrict a,
                        const float *restrict b, int64_t ldb, float alpha, float beta,
                        float *restrict c, int64_t ldc, int64_t cols)
{
    vec sum[TILE_ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = (vec){0};
    for (int64_t kk = 0; kk < words; kk++, a += rows, b += ldb) {
        vec b0 = vec_load(b), b1 = vecs > 1 ? vec_load(b + LANES) : b0;
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            vec ai = word_set(pairs, a + i);
            sum[i][0] = word_madd(pairs, ai, b0, sum[i][0]);
            if (vecs > 1) sum[i][1] = word_madd(pairs, ai, b1, sum[i][1]);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++, c += ldc) {
        store_tile_vec(c, sum[i][0], alpha, beta, cols);
        if (vecs > 1) store_tile_vec(c + LANES, sum[i][1], alpha, beta, cols - LANES);
    }
}

// clang-format off
#if defined(__AVX512F__)
#define EACH_ROWS(f, pairs) \
    f(pairs, 1) f(pairs, 2) f(pairs, 3) f(pairs, 4) f(pairs, 5) f(pairs, 6) f(pairs, 7) \
    f(pairs, 8) f(pairs, 9) f(pairs, 10) f(pairs, 11) f(pairs, 12) f(pairs, 13) f(pairs, 14)
#else
#define EACH_ROWS(f, pairs) f(pairs, 1) f(pairs, 2) f(pairs, 3) f(pairs, 4) f(pairs, 5) f(pairs, 6)
#endif
#define TILE_FUNCTION(pairs, rows, vecs) \
    static void tile_##pairs##_##rows##_##vecs(int64_t words, const float *a, const float *b, \
                                               int64_t ldb, float alpha, float beta, float *c, \
                                               int64_t ldc, int64_t cols) \
    { \
        tile(pairs, rows, vecs, words, a, b, ldb, alpha, beta, c, ldc, cols); \
    }
#define TILE_FUNCTIONS(pairs, rows) TILE_FUNCTION(pairs, rows, 1) TILE_FUNCTION(pairs, rows, 2)
#define TILE_ROW(pairs, rows) [rows] = {tile_##pairs##_##rows##_1, tile_##pairs##_##rows##_2},
EACH_ROWS(TILE_FUNCTIONS, 0)
#if HAVE_PAIRS
EACH_ROWS(TILE_FUNCTIONS, 1)
#endif
static TileFunction *const tiles[HAVE_PAIRS + 1][TILE_ROWS + 1][2] = {
    {EACH_ROWS(TILE_ROW, 0)},
#if HAVE_PAIRS
    {EACH_ROWS(TILE_ROW, 1)},
#endif
};
// clang-format on

ALWAYS_INLINE vec4 read_four(Reading reading, const void *x)
{
    typedef uint16_t four __attribute__((vector_size(8)));
    typedef uint32_t wide __attribute__((vector_size(16)));
    if (reading == READ_F32) return *(const vec4_unaligned *)x;
    four small;
    memcpy(&small, x, sizeof small);
    return (vec4)(__builtin_convertvector(small, wide) << 16);
}

ALWAYS_INLINE float read_one(Reading reading, const void *x)
{
    return vec_read(reading == READ_F32 ? DTYPE_F32 : DTYPE_BF16, x, 0, 1)[0];
}

/* packed[k][0 … 3] = x0[k], x1[k], x2[k], x3[k], rows of packed width apart. Rows are written in ascending order. */
ALWAYS_INLINE void transpose_four(Reading reading, float *packed, int64_t width, const void *x0,
                                  const void *x1, const void *x2, const void *x3, int64_t k)
{
#define AT(x) element_at(reading, x, kk)
    int64_t kk = 0;
    for (; kk + 4 <= k; kk += 4, packed += 4 * width) {
        vec4 r0 = read_four(reading, AT(x0)), r1 = read_four(reading, AT(x1));
        vec4 r2 = read_four(reading, AT(x2)), r3 = read_four(reading, AT(x3));
        vec4 p0 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
        vec4 p1 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
        vec4 p2 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
        vec4 p3 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
        *(vec4_unaligned *)packed = __builtin_shufflevector(p0, p1, 0, 1, 4, 5);
        *(vec4_unaligned *)(packed + width) = __builtin_shufflevector(p0, p1, 2, 3, 6, 7);
        *(vec4_unaligned *)(packed + 2 * width) = __builtin_shufflevector(p2, p3, 0, 1, 4, 5);
        *(vec4_unaligned *)(packed + 3 * width) = __builtin_shufflevector(p2, p3, 2, 3, 6, 7);
    }
    for (; kk < k; kk++, packed += width)
        *(vec4_unaligned *)packed = (vec4){read_one(reading, AT(x0)), read_one(reading, AT(x1)),
                                           read_one(reading, AT(x2)), read_one(reading, AT(x3))};
#undef AT
}

#if defined(__AVX512F__)
/* Words `word` … of a row of k elements, zeros behind. */
ALWAYS_INLINE vec read_words(Reading reading, const void *row, int64_t word, int64_t k)
{
#if HAVE_PAIRS
    if (reading == READ_PAIRS) {
        int64_t left = k - 2 * word;
        __mmask32 mask = left >= 32 ? 0xffffffffu : (1u << left) - 1;
        return (vec)_mm512_maskz_loadu_epi16(mask, element_at(reading, row, 2 * word));
    }
#endif
    return vec_read(reading == READ_F32 ? DTYPE_F32 : DTYPE_BF16, row, word, k - word);
}

/*
 * packed[w][0 … lanes-1] = words w of rows x[0], …, x[rows-1], rows of x ld and rows of packed width apart; behind the last
 * row it is repeated. 16 x 16 words at a time: four by four within the quarters of a register, then the quarters.
 */
ALWAYS_INLINE void transpose_sixteen(Reading reading, float *packed, int64_t width, int64_t lanes,
                                     const void *x, int64_t ld, int64_t rows, int64_t k)
{
    int64_t words = words_of(reading, k);
    for (int64_t kk = 0; kk < words; kk += 16, packed += 16 * width) {
        __m512 r[16], t[16];
        int64_t left = words - kk;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            r[i] =
                read_words(reading, element_at(reading, x, (i < rows ? i : rows - 1) * ld), kk, k);
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
        __mmask16 mask = (__mmask16)((1u << lanes) - 1);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            if (i < left) _mm512_mask_storeu_ps(packed + i * width, mask, r[i]);
    }
}

/* How many of the rows go in sixteens, the last group perhaps not full. */
ALWAYS_INLINE int64_t rows_in_sixteens(Reading reading, int64_t rows)
{
    return rows % 16 > 4 || reading == READ_PAIRS ? rows : rows / 16 * 16;
}
#endif

/*
 * packed [words of k, width] = the transpose of x [rows, k] with row stride ld; columns beyond rows hold initialised
 * numbers that don't matter. Up to three rows that make no four go first, the last one in place of the missing ones:
 * what this writes too far is overwritten by the next row of packed or by the other rows, but for the last row's, for
 * which packed has PACK_SLACK elements more.
 */
ALWAYS_INLINE void pack_transposed_as(Reading reading, float *packed, int64_t width, const void *x,
                                      int64_t ld, int64_t rows, int64_t k)
{
    int64_t fours = 0; /* where rows in fours begin */
#if defined(__AVX512F__)
    fours = rows_in_sixteens(reading, rows);
#endif
    int64_t rest = (rows - fours) % 4, rest_at = rows - rest;
    int64_t written = rest > 0 ? rest_at + 4 : rows;
    if (rows == fours) written = (rows + 15) / 16 * 16;
    if (width > written) memset(packed, 0, (size_t)(words_of(reading, k) * width) * sizeof *packed);
    if (rest > 0) {
        const void *x0 = element_at(reading, x, rest_at * ld);
        const void *x1 = element_at(reading, x0, ld),
                   *last = element_at(reading, x0, (rest - 1) * ld);
        transpose_four(reading, packed + rest_at, width, x0, rest > 1 ? x1 : last, last, last, k);
    }
    for (int64_t i = fours; i < rest_at; i += 4) {
        const void *x0 = element_at(reading, x, i * ld), *x1 = element_at(reading, x0, ld);
        transpose_four(reading, packed + i, width, x0, x1, element_at(reading, x0, 2 * ld),
                       element_at(reading, x0, 3 * ld), k);
    }
#if defined(__AVX512F__)
    for (int64_t i = 0; i < fours; i += 16)
        transpose_sixteen(reading, packed + i, width, cpu_smaller(width - i, 16),
                          element_at(reading, x, i * ld), ld, cpu_smaller(rows - i, 16), k);
#endif
}

/* Words `word` of the columns from col on, of which `left` are there, of x [k, …]. */
ALWAYS_INLINE vec read_across(Reading reading, const void *x, int64_t ld, int64_t word, int64_t k,
                              int64_t col, int64_t left)
{
    if (reading == READ_F32) return vec_read(DTYPE_F32, x, word * ld + col, left);
    if (reading == READ_BF16) return vec_read(DTYPE_BF16, x, word * ld + col, left);
    int64_t row = 2 * word;
    uvec first = (uvec)vec_read(DTYPE_BF16, x, row * ld + col, left) >> 16;
    if (row + 1 == k) return (vec)first;
    return (vec)(first | (uvec)vec_read(DTYPE_BF16, x, (row + 1) * ld + col, left));
}

/* packed [words of k, width] = x [k, cols] with row stride ld, zeros behind; width at most TILE_COLS. */
ALWAYS_INLINE void pack_plain_as(Reading reading, float *packed, int64_t width, const void *x,
                                 int64_t ld, int64_t cols, int64_t k)
{
    int64_t words = words_of(reading, k);
    if (cols == TILE_COLS) {
        for (int64_t kk = 0; kk < words; kk++, packed += TILE_COLS) {
            vec_store(packed, read_across(reading, x, ld, kk, k, 0, LANES));
            vec_store(packed + LANES, read_across(reading, x, ld, kk, k, LANES, LANES));
        }
    } else if (cols == LANES && width == LANES) {
        for (int64_t kk = 0; kk < words; kk++, packed += LANES)
            vec_store(packed, read_across(reading, x, ld, kk, k, 0, LANES));
    } else {
        int64_t whole = cols / LANES * LANES;
        for (int64_t kk = 0; kk < words; kk++, packed += width) {
            if (whole) vec_store(packed, read_across(reading, x, ld, kk, k, 0, LANES));
            vec rest = {0};
            if (cols > whole) rest = read_across(reading, x, ld, kk, k, whole, cols - whole);
            if (width - whole >= LANES)
                vec_store(packed + whole, rest);
            else
                vec_store_part(packed + whole, rest, width - whole);
        }
    }
}

/* One compiled copy of each per way of reading. */
typedef void PackFunction(float *packed, int64_t width, const void *x, int64_t ld, int64_t n,
                          int64_t k);
#define PACK_FUNCTION(way, reading) \
    static void way##_##reading(float *packed, int64_t width, const void *x, int64_t ld, \
                                int64_t n, int64_t k) \
    { \
        way##_as(reading, packed, width, x, ld, n, k); \
    }
PACK_FUNCTION(pack_plain, READ_F32)
PACK_FUNCTION(pack_plain, READ_BF16)
PACK_FUNCTION(pack_transposed, READ_F32)
PACK_FUNCTION(pack_transposed, READ_BF16)
#if HAVE_PAIRS
PACK_FUNCTION(pack_plain, READ_PAIRS)
PACK_FUNCTION(pack_transposed, READ_PAIRS)
#endif
static PackFunction *const packs[][2] = {
    [READ_F32] = {pack_plain_READ_F32, pack_transposed_READ_F32},
    [READ_BF16] = {pack_plain_READ_BF16, pack_transposed_READ_BF16},
#if HAVE_PAIRS
    [READ_PAIRS] = {pack_plain_READ_PAIRS, pack_transposed_READ_PAIRS},
#endif
};

static bool takes_pairs(const Product *p)
{
    return HAVE_PAIRS && p->dtype_a == DTYPE_BF16 && p->dtype_b == DTYPE_BF16;
}

static Reading reading_of(const Product *p, DType dtype)
{
    if (takes_pairs(p)) return READ_PAIRS;
    return dtype == DTYPE_BF16 ? READ_BF16 : READ_F32;
}

/* Columns of b for one tile: as they stand, or copied. */
typedef struct Strip {
    const float *b;
    int64_t ldb, cols;
} Strip;

static Strip strip_of(const Product *p, int64_t col, int64_t cols, int64_t k0, int64_t k,
                      float *packed)
{
    Strip strip = {packed, cols > LANES ? TILE_COLS : LANES, cols};
    Reading reading = reading_of(p, p->dtype_b);
    const void *b = element_at(reading, p->b, p->trans_b ? col * p->ldb + k0 : k0 * p->ldb + col);
    if (!p->trans_b && reading == READ_F32 && p->m <= 2 * TILE_ROWS &&
        cols == strip.ldb) { /* used once or twice: not worth a copy */
        strip.b = b;
        strip.ldb = p->ldb;
    } else {
        packs[reading][p->trans_b](packed, strip.ldb, b, p->ldb, cols, k);
    }
    return strip;
}

/* All rows of c, which is f32, against columns col … col+n-1 and the inner range k0 … k0+k-1. */
static void block_product(const Product *p, int64_t col, int64_t n, int64_t k0, int64_t k)
{
    _Alignas(64) float b_packed[BLOCK_K * BLOCK_N + PACK_SLACK];
    _Alignas(64) float a_packed[BLOCK_K * TILE_ROWS + PACK_SLACK];
    Strip strips[BLOCK_N / TILE_COLS];
    float beta = k0 == 0 ? p->beta : 1;
    Reading reading = reading_of(p, p->dtype_a);
    int64_t n_strips = cpu_blocks(n, TILE_COLS), words = words_of(reading, k);
    for (int64_t s = 0; s < n_strips; s++) {
        int64_t j = s * TILE_COLS;
        strips[s] =
            strip_of(p, col + j, cpu_smaller(n - j, TILE_COLS), k0, k, b_packed + j * words);
    }
    for (int64_t i = 0; i < p->m; i += TILE_ROWS) {
        int64_t rows = cpu_smaller(p->m - i, TILE_ROWS);
        const void *a = element_at(reading, p->a, p->trans_a ? k0 * p->lda + i : i * p->lda + k0);
        packs[reading][!p->trans_a](a_packed, rows, a, p->lda, rows, k);
        float *c = (float *)p->c + i * p->ldc + col;
        for (int64_t s = 0; s < n_strips; s++)
            tiles[takes_pairs(p)][rows][strips[s].cols > LANES](
                words, a_packed, strips[s].b, strips[s].ldb, p->alpha, beta, c + s * TILE_COLS,
                p->ldc, strips[s].cols);
    }
}

static void f32_product(const Product *p)
{
    float *c = p->c;
    int64_t block_k = takes_pairs(p) ? 2 * BLOCK_K : BLOCK_K;
    if (p->k == 0) /* an empty sum */
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                c[i * p->ldc + j] = p->beta == 0 ? 0 : p->beta * c[i * p->ldc + j];
    for (int64_t col = 0; col < p->n; col += BLOCK_N)
        for (int64_t k0 = 0; k0 < p->k; k0 += block_k)
            block_product(p, col, cpu_smaller(p->n - col, BLOCK_N), k0,
                          cpu_smaller(p->k - k0, block_k));
}

/* A bf16 c in pieces: the whole sums in f32, then c. */
static void rounded_product(const Product *p)
{
    _Alignas(64) float sums[ROUND_ROWS * BLOCK_N];
    vec beta = vec_set(p->beta);
    for (int64_t col = 0; col < p->n; col += BLOCK_N)
        for (int64_t row = 0; row < p->m; row += ROUND_ROWS) {
            Product piece = product_piece(p, row, ROUND_ROWS, col, BLOCK_N);
            void *c = piece.c;
            piece.c = sums, piece.ldc = piece.n, piece.dtype_c = DTYPE_F32, piece.beta = 0;
            f32_product(&piece);
            for (int64_t i = 0; i < piece.m; i++)
                for (int64_t j = 0; j < piece.n; j += LANES) {
                    int64_t left = piece.n - j, at = i * p->ldc + j;
                    vec value = vec_load_to(sums + i * piece.n + j, left);
                    if (p->beta != 0) value += beta * vec_read(DTYPE_BF16, c, at, left);
                    vec_write(DTYPE_BF16, c, at, value, left);
                }
        }
}

void cpu_product(const Product *p)
{
    if (p->dtype_c == DTYPE_BF16)
        rounded_product(p);
    else
        f32_product(p);
}
