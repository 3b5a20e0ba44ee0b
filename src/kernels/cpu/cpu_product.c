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
enum { TILE_COLS = 2 * LANES, BLOCK_K = 256, BLOCK_N = 512, PACK_SLACK = 4 };

/* c [rows, cols] = beta c + alpha a b for a [k, rows] and b [k, LANES or TILE_COLS], rows of b ldb apart. */
typedef void TileFunction(int64_t k, const float *a, const float *b, int64_t ldb, float alpha,
                          float beta, float *c, int64_t ldc, int64_t cols);

static inline void store_tile_vec(float *c, vec sum, float alpha, float beta, int64_t cols)
{
    vec value = vec_set(alpha) * sum;
    if (beta != 0) value += vec_set(beta) * vec_load_to(c, cols);
    vec_store_to(c, value, cols);
}

__attribute__((always_inline)) static inline void
tile(int rows, int vecs, int64_t k, const float *restrict a, const float *restrict b, int64_t ldb,
     float alpha, float beta, float *restrict c, int64_t ldc, int64_t cols)
{
    vec sum[TILE_ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = (vec){0};
    for (int64_t kk = 0; kk < k; kk++, a += rows, b += ldb) {
        vec b0 = vec_load(b), b1 = vecs > 1 ? vec_load(b + LANES) : b0;
#pragma GCC unroll 14
        for (int i = 0; i < rows; i++) {
            vec ai = vec_set(a[i]);
            sum[i][0] = vec_madd(ai, b0, sum[i][0]);
            if (vecs > 1) sum[i][1] = vec_madd(ai, b1, sum[i][1]);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < rows; i++, c += ldc) {
        store_tile_vec(c, sum[i][0], alpha, beta, cols);
        if (vecs > 1) store_tile_vec(c + LANES, sum[i][1], alpha, beta, cols - LANES);
    }
}

#define TILE_FUNCTION(rows, vecs) \
    static void tile_##rows##_##vecs(int64_t k, const float *a, const float *b, int64_t ldb, \
                                     float alpha, float beta, float *c, int64_t ldc, int64_t cols) \
    { \
        tile(rows, vecs, k, a, b, ldb, alpha, beta, c, ldc, cols); \
    }
#define TILE_FUNCTIONS(rows) TILE_FUNCTION(rows, 1) TILE_FUNCTION(rows, 2)
// clang-format off
TILE_FUNCTIONS(1) TILE_FUNCTIONS(2) TILE_FUNCTIONS(3) TILE_FUNCTIONS(4) TILE_FUNCTIONS(5) TILE_FUNCTIONS(6)
#if defined(__AVX512F__)
TILE_FUNCTIONS(7) TILE_FUNCTIONS(8) TILE_FUNCTIONS(9) TILE_FUNCTIONS(10)
TILE_FUNCTIONS(11) TILE_FUNCTIONS(12) TILE_FUNCTIONS(13) TILE_FUNCTIONS(14)
#endif
#define TILE_ROW(rows) [rows] = {tile_##rows##_1, tile_##rows##_2}
static TileFunction *const tiles[TILE_ROWS + 1][2] = {
    TILE_ROW(1), TILE_ROW(2), TILE_ROW(3), TILE_ROW(4), TILE_ROW(5), TILE_ROW(6),
#if defined(__AVX512F__)
    TILE_ROW(7), TILE_ROW(8), TILE_ROW(9), TILE_ROW(10), TILE_ROW(11), TILE_ROW(12), TILE_ROW(13), TILE_ROW(14),
#endif
};
// clang-format on

/* packed[k][0 … 3] = x0[k], x1[k], x2[k], x3[k], rows of packed width apart. Rows are written in ascending order. */
static inline void transpose_four(float *packed, int64_t width, const float *x0, const float *x1,
                                  const float *x2, const float *x3, int64_t k)
{
    int64_t kk = 0;
    for (; kk + 4 <= k; kk += 4, packed += 4 * width) {
        vec4 r0 = *(const vec4_unaligned *)(x0 + kk), r1 = *(const vec4_unaligned *)(x1 + kk);
        vec4 r2 = *(const vec4_unaligned *)(x2 + kk), r3 = *(const vec4_unaligned *)(x3 + kk);
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
        *(vec4_unaligned *)packed = (vec4){x0[kk], x1[kk], x2[kk], x3[kk]};
}

#if defined(__AVX512F__)
/*
 * packed[k][0 … lanes-1] = x[0][k], …, x[rows-1][k], rows of x ld and rows of packed width apart; behind the last row
 * it is repeated. 16 x 16 numbers at a time: four by four within the quarters of a register, then the quarters.
 */
static void transpose_sixteen(float *packed, int64_t width, int64_t lanes, const float *x,
                              int64_t ld, int64_t rows, int64_t k)
{
    for (int64_t kk = 0; kk < k; kk += 16, x += 16, packed += 16 * width) {
        __m512 r[16], t[16];
        int64_t left = k - kk;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) r[i] = vec_load_to(x + (i < rows ? i : rows - 1) * ld, left);
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
static int64_t rows_in_sixteens(int64_t rows)
{
    return rows % 16 > 4 ? rows : rows / 16 * 16;
}
#endif

/*
 * packed [k, width] = the transpose of x [rows, k] with row stride ld; columns beyond rows hold initialised numbers
 * that don't matter. Up to three rows that make no four go first, the last one in place of the missing ones: what
 * this writes too far is overwritten by the next row of packed or by the other rows, but for the last row's, for which
 * packed has PACK_SLACK elements more.
 */
static void pack_transposed(float *packed, int64_t width, const float *x, int64_t ld, int64_t rows,
                            int64_t k)
{
    int64_t fours = 0; /* where rows in fours begin */
#if defined(__AVX512F__)
    fours = rows_in_sixteens(rows);
#endif
    int64_t rest = (rows - fours) % 4, rest_at = rows - rest;
    int64_t written = rest > 0 ? rest_at + 4 : rows;
    if (rows == fours) written = (rows + 15) / 16 * 16;
    if (width > written) memset(packed, 0, (size_t)(k * width) * sizeof *packed);
    if (rest > 0) {
        const float *x0 = x + rest_at * ld, *last = x0 + (rest - 1) * ld;
        transpose_four(packed + rest_at, width, x0, rest > 1 ? x0 + ld : last, last, last, k);
    }
    for (int64_t i = fours; i < rest_at; i += 4) {
        const float *x0 = x + i * ld;
        transpose_four(packed + i, width, x0, x0 + ld, x0 + 2 * ld, x0 + 3 * ld, k);
    }
#if defined(__AVX512F__)
    for (int64_t i = 0; i < fours; i += 16)
        transpose_sixteen(packed + i, width, cpu_smaller(width - i, 16), x + i * ld, ld,
                          cpu_smaller(rows - i, 16), k);
#endif
}

/* packed [k, width] = x [k, cols] with row stride ld, zeros behind; width at most TILE_COLS. */
static void pack_plain(float *packed, int64_t width, const float *x, int64_t ld, int64_t cols,
                       int64_t k)
{
    if (cols == TILE_COLS) {
        for (int64_t kk = 0; kk < k; kk++, packed += TILE_COLS, x += ld) {
            vec_store(packed, vec_load(x));
            vec_store(packed + LANES, vec_load(x + LANES));
        }
    } else if (cols == LANES && width == LANES) {
        for (int64_t kk = 0; kk < k; kk++, packed += LANES, x += ld) vec_store(packed, vec_load(x));
    } else {
        int64_t whole = cols / LANES * LANES;
        for (int64_t kk = 0; kk < k; kk++, packed += width, x += ld) {
            if (whole) vec_store(packed, vec_load(x));
            vec rest = vec_load_part(x + whole, cols - whole, 0);
            if (width - whole >= LANES)
                vec_store(packed + whole, rest);
            else
                vec_store_part(packed + whole, rest, width - whole);
        }
    }
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
    if (p->trans_b) {
        pack_transposed(packed, strip.ldb, p->b + col * p->ldb + k0, p->ldb, cols, k);
    } else if (p->m <= 2 * TILE_ROWS &&
               cols == strip.ldb) { /* used once or twice: not worth a copy */
        strip.b = p->b + k0 * p->ldb + col;
        strip.ldb = p->ldb;
    } else {
        pack_plain(packed, strip.ldb, p->b + k0 * p->ldb + col, p->ldb, cols, k);
    }
    return strip;
}

/* All rows of c against columns col … col+n-1 and the inner range k0 … k0+k-1. */
static void block_product(const Product *p, int64_t col, int64_t n, int64_t k0, int64_t k)
{
    _Alignas(64) float b_packed[BLOCK_K * BLOCK_N + PACK_SLACK];
    _Alignas(64) float a_packed[BLOCK_K * TILE_ROWS + PACK_SLACK];
    Strip strips[BLOCK_N / TILE_COLS];
    float beta = k0 == 0 ? p->beta : 1;
    int64_t n_strips = cpu_blocks(n, TILE_COLS);
    for (int64_t s = 0; s < n_strips; s++) {
        int64_t j = s * TILE_COLS;
        strips[s] = strip_of(p, col + j, cpu_smaller(n - j, TILE_COLS), k0, k, b_packed + j * k);
    }
    for (int64_t i = 0; i < p->m; i += TILE_ROWS) {
        int64_t rows = cpu_smaller(p->m - i, TILE_ROWS);
        if (p->trans_a)
            pack_plain(a_packed, rows, p->a + k0 * p->lda + i, p->lda, rows, k);
        else
            pack_transposed(a_packed, rows, p->a + i * p->lda + k0, p->lda, rows, k);
        float *c = p->c + i * p->ldc + col;
        for (int64_t s = 0; s < n_strips; s++)
            tiles[rows][strips[s].cols > LANES](k, a_packed, strips[s].b, strips[s].ldb, p->alpha,
                                                beta, c + s * TILE_COLS, p->ldc, strips[s].cols);
    }
}

void cpu_product(const Product *p)
{
    if (p->k == 0) /* an empty sum */
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                p->c[i * p->ldc + j] = p->beta == 0 ? 0 : p->beta * p->c[i * p->ldc + j];
    for (int64_t col = 0; col < p->n; col += BLOCK_N)
        for (int64_t k0 = 0; k0 < p->k; k0 += BLOCK_K)
            block_product(p, col, cpu_smaller(p->n - col, BLOCK_N), k0,
                          cpu_smaller(p->k - k0, BLOCK_K));
}
