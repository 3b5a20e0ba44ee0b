#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_vector.h"

#if defined(__AMX_BF16__) || defined(__AMXBF16__) /* clang before 15 */

/*
 * The product of one thread by AMX: a tile of c [16, 16] in f32 gains a tile of a [16, 32] times one of b [32, 16], both bf16.
 * Operands are copied into tiles, 1 KiB one after the other as they are loaded, filled up with zeros on both sides: a block of
 * b [BLOCK_K, n] stays in the second cache level, and strips of a [32, BLOCK_K] pass by. Four tiles of c stay in registers
 * while k runs over a block; then they are added to c. As in cpu_product.c, an element of c is the same chain wherever it
 * stands: the tile's own order of 32 products, steps of 32 in order, blocks of BLOCK_K in order.
 *
 * An f32 operand a is the exact sum of three bf16 numbers, its 24 bits in eights; each has tiles of its own, and b's are used
 * three times.
 *
 * Copying b is 7 % of a product of 1024 rows of a and 15 % of one of 256: what a model could save by packing each weight, and its
 * transpose, once per step. That would be a tensor of a type of its own, which the optimizer makes and GemmArgs takes as b.
 *
 * Source: Intel, "Intrinsics Guide", TDPBF16PS; layout of b: pairs of rows interleaved ("VNNI").
 */
enum { SIDE = 16, STEP = 32, TILE = SIDE * STEP, STRIP = 2 * SIDE, PARTS = 3 };
enum { BLOCK_K = 1024, BLOCK_SIZE = 256 * BLOCK_K, BLOCK_N = 512 };

/* The upper halves of 16 and 16 numbers, each pair in one word. */
static inline vec halves_of(vec even, vec odd)
{
    return (vec)((uvec)even >> 16 | ((uvec)odd & 0xffff0000u));
}

/* The upper halves of 32 numbers in their order. */
static inline vec halves_in_order(vec first, vec second)
{
    const __m512i odd =
        _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                         25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return (vec)_mm512_permutex2var_epi16((__m512i)first, odd, (__m512i)second);
}

/* What the upper half leaves: exact. */
static inline vec rest_of(vec x)
{
    return x - (vec)((uvec)x & 0xffff0000u);
}

/*
 * One tile of each part, 2 TILE apart, of n rows (along) or columns (else) of x, k long: words of two numbers that follow one
 * another along k. turn: tiles are the transpose of what was read.
 */
ALWAYS_INLINE void pack_tile(DType dtype, bool along, bool turn, uint16_t *tile, const void *x,
                             int64_t ld, int64_t n, int64_t k)
{
    const bool is_words = along && dtype == DTYPE_BF16;
    vec first[SIDE], second[SIDE], word[SIDE];
#pragma GCC unroll 16
    for (int i = 0; i < SIDE; i++) {
        first[i] = second[i] = (vec){0};
        if (is_words) {
            const __mmask32 mask = k >= STEP ? 0xffffffffu : (1u << k) - 1;
            const uint16_t *row = (const uint16_t *)x + i * ld;
            if (i < n) first[i] = (vec)_mm512_maskz_loadu_epi16(mask, row);
        } else if (along) {
            if (i < n) first[i] = vec_read(dtype, x, i * ld, k);
            if (i < n && k > LANES) second[i] = vec_read(dtype, x, i * ld + LANES, k - LANES);
        } else {
            if (2 * i < k) first[i] = vec_read(dtype, x, 2 * i * ld, n);
            if (2 * i + 1 < k) second[i] = vec_read(dtype, x, (2 * i + 1) * ld, n);
        }
    }
    for (int part = 0; part < (dtype == DTYPE_BF16 ? 1 : PARTS); part++, tile += 2 * TILE) {
#pragma GCC unroll 16
        for (int i = 0; i < SIDE; i++) {
            word[i] = is_words ? first[i]
                      : along  ? halves_in_order(first[i], second[i])
                               : halves_of(first[i], second[i]);
            first[i] = rest_of(first[i]), second[i] = rest_of(second[i]);
        }
        if (turn) vec_transpose(word);
#pragma GCC unroll 16
        for (int i = 0; i < SIDE; i++) vec_store((float *)tile + i * SIDE, word[i]);
    }
}

/* packed [steps of k][parts][2] tiles = n <= STRIP rows or columns of x, k long. */
ALWAYS_INLINE void pack_as(DType dtype, bool along, bool turn, uint16_t *packed, const void *x,
                           int64_t ld, int64_t n, int64_t k)
{
    const int parts = dtype == DTYPE_BF16 ? 1 : PARTS;
    for (int64_t kk = 0; kk < k; kk += STEP, packed += parts * 2 * TILE)
        for (int64_t from = 0; from < n; from += SIDE) { /* what isn't there is never loaded */
            const int64_t at = along ? from * ld + kk : kk * ld + from;
            const void *part = cpu_element(x, dtype, at);
            uint16_t *tile = packed + from / SIDE * TILE;
            if (!along && from == 0) /* for the strip after */
                for (int64_t i = 0; i < STEP; i++)
                    __builtin_prefetch(cpu_element(part, dtype, i * ld + STRIP));
            if (n - from >= SIDE && k - kk >= STEP)
                pack_tile(dtype, along, turn, tile, part, ld, SIDE, STEP);
            else
                pack_tile(dtype, along, turn, tile, part, ld, n - from, k - kk);
        }
}

static void pack_b(const Product *p, uint16_t *packed, int64_t col, int64_t cols, int64_t k0,
                   int64_t k)
{
    if (p->trans_b)
        pack_as(DTYPE_BF16, true, true, packed, cpu_element(p->b, DTYPE_BF16, col * p->ldb + k0),
                p->ldb, cols, k);
    else
        pack_as(DTYPE_BF16, false, false, packed, cpu_element(p->b, DTYPE_BF16, k0 * p->ldb + col),
                p->ldb, cols, k);
}

static void pack_a(const Product *p, uint16_t *packed, int64_t row, int64_t rows, int64_t k0,
                   int64_t k)
{
    const int64_t at = p->trans_a ? k0 * p->lda + row : row * p->lda + k0;
    const void *a = cpu_element(p->a, p->dtype_a, at);
    if (p->dtype_a == DTYPE_BF16 && p->trans_a)
        pack_as(DTYPE_BF16, false, true, packed, a, p->lda, rows, k);
    else if (p->dtype_a == DTYPE_BF16)
        pack_as(DTYPE_BF16, true, false, packed, a, p->lda, rows, k);
    else if (p->trans_a)
        pack_as(DTYPE_F32, false, true, packed, a, p->lda, rows, k);
    else
        pack_as(DTYPE_F32, true, false, packed, a, p->lda, rows, k);
}

/* All eight tiles: 16 rows of 64 bytes. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes = {.palette = 1,
                 .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                 .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

/* sum [32, 32] = a strip of a times one of b; only the upper half of a's rows, left half of b's columns where that is all. */
static void multiply(float *sum, const uint16_t *a, const uint16_t *b, int64_t steps, int parts,
                     bool lower, bool right)
{
    __asm__ volatile("" ::: "memory"); /* gcc does not know that loads of tiles read memory */
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps; s++, b += 2 * TILE) {
        _tile_loadd(6, b, 64);
        if (right) _tile_loadd(7, b + TILE, 64);
        for (int part = 0; part < parts; part++, a += 2 * TILE) {
            _tile_loadd(4, a, 64);
            _tile_dpbf16ps(0, 4, 6);
            if (right) _tile_dpbf16ps(1, 4, 7);
            if (!lower) continue;
            _tile_loadd(5, a + TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            if (right) _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sum, 4 * STRIP);
    _tile_stored(1, sum + SIDE, 4 * STRIP);
    _tile_stored(2, sum + SIDE * STRIP, 4 * STRIP);
    _tile_stored(3, sum + SIDE * STRIP + SIDE, 4 * STRIP);
    __asm__ volatile("" ::: "memory");
}

/* c [rows, cols] = alpha sum + beta c */
ALWAYS_INLINE void finish(DType dtype, void *c, int64_t ldc, const float *sum, float alpha,
                          float beta, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j += LANES) {
            vec value = vec_set(alpha) * vec_load(sum + i * STRIP + j);
            if (beta != 0) value += vec_set(beta) * vec_read(dtype, c, i * ldc + j, cols - j);
            vec_write(dtype, c, i * ldc + j, value, cols - j);
        }
}

/* All rows of c against columns col … col+n-1 and the inner range k0 … k0+k-1. */
static void block_product(const Product *p, int64_t col, int64_t n, int64_t k0, int64_t k)
{
    _Alignas(64) uint16_t b[BLOCK_SIZE], a[PARTS * STRIP * BLOCK_K];
    _Alignas(64) float sum[STRIP * STRIP];
    const int parts = p->dtype_a == DTYPE_BF16 ? 1 : PARTS;
    const int64_t steps = cpu_blocks(k, STEP);
    const float beta = k0 == 0 ? p->beta : 1;
    for (int64_t j = 0; j < n; j += STRIP)
        pack_b(p, b + j * steps * STEP, col + j, cpu_smaller(n - j, STRIP), k0, k);
    for (int64_t i = 0; i < p->m; i += STRIP) {
        const int64_t rows = cpu_smaller(p->m - i, STRIP);
        pack_a(p, a, i, rows, k0, k);
        for (int64_t j = 0; j < n; j += STRIP) {
            const int64_t cols = cpu_smaller(n - j, STRIP);
            for (int64_t r = 0; steps > 4 && r < rows; r++) /* comes while the tiles work */
                for (int64_t line = 0; line < cols; line += LANES)
                    __builtin_prefetch(
                        cpu_element(p->c, p->dtype_c, (i + r) * p->ldc + col + j + line), 1);
            multiply(sum, a, b + j * steps * STEP, steps, parts, rows > SIDE, cols > SIDE);
            void *c = cpu_element(p->c, p->dtype_c, i * p->ldc + col + j);
            BY_DTYPE(p->dtype_c, finish, c, p->ldc, sum, p->alpha, beta, rows, cols);
        }
    }
}

bool cpu_tile_product(const Product *p)
{
    if (p->dtype_b != DTYPE_BF16 || p->k == 0) return false;
    if (p->dtype_c == DTYPE_BF16 && p->k > BLOCK_K) return false; /* rounded once: see there */
    /* as many columns as fit into the block */
    const int64_t longest = cpu_blocks(cpu_smaller(p->k, BLOCK_K), STEP) * STEP;
    const int64_t most = cpu_smaller(BLOCK_SIZE / longest / STRIP * STRIP, BLOCK_N);
    _tile_loadconfig(&tile_shapes);
    for (int64_t col = 0; col < p->n; col += most)
        for (int64_t k0 = 0; k0 < p->k; k0 += BLOCK_K)
            block_product(p, col, cpu_smaller(p->n - col, most), k0,
                          cpu_smaller(p->k - k0, BLOCK_K));
    _tile_release(); /* a switch of threads need not save the registers then */
    return true;
}

#else

bool cpu_tile_product(const Product *p)
{
    (void)p;
    return false;
}

#endif
