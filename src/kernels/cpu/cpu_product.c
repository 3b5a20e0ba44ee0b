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
enum { ROUND_ROWS = 256, ROUND_COLS = 256 }; /* of a bf16 c, whose sums are held in f32 */

/* c [rows, cols] = beta c + alpha a b for a [k, rows] and b [k, LANES or TILE_COLS], rows of b ldb apart. */
typedef void TileFunction(int64_t k, const float *a, const float *b, int64_t ldb, float alpha,
                          float beta, float *c, int64_t ldc, int64_t cols);

static inline void store_tile_vec(float *c, vec sum, float alpha, float beta, int64_t cols)
{
    vec value = vec_set(alpha) * sum;
    if (beta != 0) value += vec_set(beta) * vec_load_to(c, cols);
    vec_store_to(c, value, cols);
}

ALWAYS_INLINE void tile(int rows, int vecs, int64_t k, const float *restrict a,
                        const float *restrict b, int64_t ldb, float alpha, float beta,
                        float *restrict c, int64_t ldc, int64_t cols)
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

// clang-format off
#define EACH_ROWS_6(f) f(1) f(2) f(3) f(4) f(5) f(6)
#if defined(__AVX512F__)
#define EACH_ROWS(f) EACH_ROWS_6(f) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14)
#else
#define EACH_ROWS(f) EACH_ROWS_6(f)
#endif
#define TILE_FUNCTION(rows, vecs) \
    static void tile_##rows##_##vecs(int64_t k, const float *a, const float *b, int64_t ldb, \
                                     float alpha, float beta, float *c, int64_t ldc, int64_t cols) \
    { \
        tile(rows, vecs, k, a, b, ldb, alpha, beta, c, ldc, cols); \
    }
#define TILE_FUNCTIONS(rows) TILE_FUNCTION(rows, 1) TILE_FUNCTION(rows, 2)
#define TILE_ROW(rows) [rows] = {tile_##rows##_1, tile_##rows##_2},
EACH_ROWS(TILE_FUNCTIONS)
static TileFunction *const tiles[TILE_ROWS + 1][2] = {EACH_ROWS(TILE_ROW)};
// clang-format on

ALWAYS_INLINE vec4 read_four(DType dtype, const void *x)
{
    typedef uint16_t four __attribute__((vector_size(8)));
    typedef uint32_t wide __attribute__((vector_size(16)));
    if (dtype == DTYPE_F32) return *(const vec4_unaligned *)x;
    four small;
    memcpy(&small, x, sizeof small);
    return (vec4)(__builtin_convertvector(small, wide) << 16);
}

ALWAYS_INLINE float read_one(DType dtype, const void *x)
{
    return vec_read(dtype, x, 0, 1)[0];
}

/* packed[k][0 … 3] = x0[k], x1[k], x2[k], x3[k], rows of packed width apart. Rows are written in ascending order. */
ALWAYS_INLINE void transpose_four(DType dtype, float *packed, int64_t width, const void *x0,
                                  const void *x1, const void *x2, const void *x3, int64_t k)
{
#define AT(x) cpu_element(x, dtype, kk)
    int64_t kk = 0;
    for (; kk + 4 <= k; kk += 4, packed += 4 * width) {
        vec4 r0 = read_four(dtype, AT(x0)), r1 = read_four(dtype, AT(x1));
        vec4 r2 = read_four(dtype, AT(x2)), r3 = read_four(dtype, AT(x3));
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
        *(vec4_unaligned *)packed = (vec4){read_one(dtype, AT(x0)), read_one(dtype, AT(x1)),
                                           read_one(dtype, AT(x2)), read_one(dtype, AT(x3))};
#undef AT
}

#if defined(__AVX512F__)
/*
 * packed[k][0 … lanes-1] = column k of rows x[0], …, x[rows-1], rows of x ld and rows of packed width apart; behind the last
 * row it is repeated.
 */
ALWAYS_INLINE void transpose_sixteen(DType dtype, float *packed, int64_t width, int64_t lanes,
                                     const void *x, int64_t ld, int64_t rows, int64_t k)
{
    __mmask16 mask = (__mmask16)((1u << lanes) - 1);
    for (int64_t kk = 0; kk < k; kk += 16, packed += 16 * width) {
        vec r[16];
        int64_t left = k - kk;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            r[i] = vec_read(dtype, x, (i < rows ? i : rows - 1) * ld + kk, left);
        vec_transpose(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            if (i < left) _mm512_mask_storeu_ps(packed + i * width, mask, r[i]);
    }
}
#endif

/*
 * packed [k, width] = the transpose of x [rows, k] with row stride ld; columns beyond rows hold initialised
 * numbers that don't matter. Up to three rows that make no four go first, the last one in place of the missing ones:
 * what this writes too far is overwritten by the next row of packed or by the other rows, but for the last row's, for
 * which packed has PACK_SLACK elements more.
 */
ALWAYS_INLINE void pack_transposed_as(DType dtype, float *packed, int64_t width, const void *x,
                                      int64_t ld, int64_t rows, int64_t k)
{
    int64_t fours = 0; /* where rows in fours begin */
#if defined(__AVX512F__)
    fours =
        rows % 16 > 4 ? rows : rows / 16 * 16; /* in sixteens, the last group perhaps not full */
#endif
    int64_t rest = (rows - fours) % 4, rest_at = rows - rest;
    int64_t written = rest > 0 ? rest_at + 4 : rows;
    if (rows == fours) written = (rows + 15) / 16 * 16;
    if (width > written) memset(packed, 0, (size_t)(k * width) * sizeof *packed);
    if (rest > 0) {
        const void *x0 = cpu_element(x, dtype, rest_at * ld);
        const void *x1 = cpu_element(x0, dtype, ld),
                   *last = cpu_element(x0, dtype, (rest - 1) * ld);
        transpose_four(dtype, packed + rest_at, width, x0, rest > 1 ? x1 : last, last, last, k);
    }
    for (int64_t i = fours; i < rest_at; i += 4) {
        const void *x0 = cpu_element(x, dtype, i * ld), *x1 = cpu_element(x0, dtype, ld);
        transpose_four(dtype, packed + i, width, x0, x1, cpu_element(x0, dtype, 2 * ld),
                       cpu_element(x0, dtype, 3 * ld), k);
    }
#if defined(__AVX512F__)
    for (int64_t i = 0; i < fours; i += 16)
        transpose_sixteen(dtype, packed + i, width, cpu_smaller(width - i, 16),
                          cpu_element(x, dtype, i * ld), ld, cpu_smaller(rows - i, 16), k);
#endif
}

/* packed [k, width] = x [k, cols] with row stride ld, zeros behind; width at most TILE_COLS. */
ALWAYS_INLINE void pack_plain_as(DType dtype, float *packed, int64_t width, const void *x,
                                 int64_t ld, int64_t cols, int64_t k)
{
    if (cols == TILE_COLS) {
        for (int64_t kk = 0; kk < k; kk++, packed += TILE_COLS) {
            vec_store(packed, vec_read(dtype, x, kk * ld, LANES));
            vec_store(packed + LANES, vec_read(dtype, x, kk * ld + LANES, LANES));
        }
    } else if (cols == LANES && width == LANES) {
        for (int64_t kk = 0; kk < k; kk++, packed += LANES)
            vec_store(packed, vec_read(dtype, x, kk * ld, LANES));
    } else {
        int64_t whole = cols / LANES * LANES;
        for (int64_t kk = 0; kk < k; kk++, packed += width) {
            if (whole) vec_store(packed, vec_read(dtype, x, kk * ld, LANES));
            vec rest = {0};
            if (cols > whole) rest = vec_read(dtype, x, kk * ld + whole, cols - whole);
            if (width - whole >= LANES)
                vec_store(packed + whole, rest);
            else
                vec_store_part(packed + whole, rest, width - whole);
        }
    }
}

/* One compiled copy of each per dtype. */
typedef void PackFunction(float *packed, int64_t width, const void *x, int64_t ld, int64_t n,
                          int64_t k);
#define PACK_FUNCTION(way, dtype) \
    static void way##_##dtype(float *packed, int64_t width, const void *x, int64_t ld, int64_t n, \
                              int64_t k) \
    { \
        way##_as(dtype, packed, width, x, ld, n, k); \
    }
PACK_FUNCTION(pack_plain, DTYPE_F32)
PACK_FUNCTION(pack_plain, DTYPE_BF16)
PACK_FUNCTION(pack_transposed, DTYPE_F32)
PACK_FUNCTION(pack_transposed, DTYPE_BF16)

static PackFunction *pack_function(DType dtype, bool transposed)
{
    if (dtype == DTYPE_BF16) return transposed ? pack_transposed_DTYPE_BF16 : pack_plain_DTYPE_BF16;
    return transposed ? pack_transposed_DTYPE_F32 : pack_plain_DTYPE_F32;
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
    DType dtype = p->dtype_b;
    const void *b = cpu_element(p->b, dtype, p->trans_b ? col * p->ldb + k0 : k0 * p->ldb + col);
    if (!p->trans_b && dtype != DTYPE_BF16 && p->m <= 2 * TILE_ROWS &&
        cols == strip.ldb) { /* used once or twice: not worth a copy */
        strip.b = b;
        strip.ldb = p->ldb;
    } else {
        pack_function(dtype, p->trans_b)(packed, strip.ldb, b, p->ldb, cols, k);
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
    DType dtype = p->dtype_a;
    int64_t n_strips = cpu_blocks(n, TILE_COLS);
    for (int64_t s = 0; s < n_strips; s++) {
        int64_t j = s * TILE_COLS;
        strips[s] = strip_of(p, col + j, cpu_smaller(n - j, TILE_COLS), k0, k, b_packed + j * k);
    }
    for (int64_t i = 0; i < p->m; i += TILE_ROWS) {
        int64_t rows = cpu_smaller(p->m - i, TILE_ROWS);
        const void *a = cpu_element(p->a, dtype, p->trans_a ? k0 * p->lda + i : i * p->lda + k0);
        pack_function(dtype, !p->trans_a)(a_packed, rows, a, p->lda, rows, k);
        float *c = (float *)p->c + i * p->ldc + col;
        for (int64_t s = 0; s < n_strips; s++)
            tiles[rows][strips[s].cols > LANES](k, a_packed, strips[s].b, strips[s].ldb, p->alpha,
                                                beta, c + s * TILE_COLS, p->ldc, strips[s].cols);
    }
}

static void f32_product(const Product *p)
{
    float *c = p->c;
    if (p->k == 0) /* an empty sum */
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++)
                c[i * p->ldc + j] = p->beta == 0 ? 0 : p->beta * c[i * p->ldc + j];
    for (int64_t col = 0; col < p->n; col += BLOCK_N)
        for (int64_t k0 = 0; k0 < p->k; k0 += BLOCK_K)
            block_product(p, col, cpu_smaller(p->n - col, BLOCK_N), k0,
                          cpu_smaller(p->k - k0, BLOCK_K));
}

/* A bf16 c in pieces: the whole sums in f32, then c. */
static void rounded_product(const Product *p)
{
    _Alignas(64) float sums[ROUND_ROWS * ROUND_COLS];
    vec beta = vec_set(p->beta);
    for (int64_t col = 0; col < p->n; col += ROUND_COLS)
        for (int64_t row = 0; row < p->m; row += ROUND_ROWS) {
            Product piece = product_piece(p, row, ROUND_ROWS, col, ROUND_COLS);
            void *c = piece.c;
            piece.c = sums, piece.ldc = piece.n, piece.dtype_c = DTYPE_F32, piece.beta = 0;
            cpu_product(&piece);
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
    if (cpu_tile_product(p)) return;
    if (p->dtype_c == DTYPE_BF16)
        rounded_product(p);
    else
        f32_product(p);
}
