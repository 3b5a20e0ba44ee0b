#include "nn/rope.h"

#include <assert.h>
#include <math.h>

static const double TWO_PI = 6.283185307179586476925286766559;

/** Long waves are stretched by factor, short ones stay, those between are blended. */
static double llama3_frequency(const RopeConfig *c, double frequency)
{
    double length = (double)c->original_max_positions;
    double wave = TWO_PI / frequency;
    if (wave < length / c->high_freq_factor) return frequency;
    if (wave > length / c->low_freq_factor) return frequency / c->factor;
    double keep = (length / wave - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor);
    return (1 - keep) * frequency / c->factor + keep * frequency;
}

/** The dim (not rounded) whose wave turns n_rotations times within the original length. */
static double yarn_dim(const RopeConfig *c, int64_t head_dim, double n_rotations)
{
    double length = (double)c->original_max_positions;
    return (double)head_dim * log(length / (n_rotations * TWO_PI)) / (2 * log(c->theta));
}

static void yarn_scale(const RopeConfig *c, int64_t head_dim, double *frequency_c)
{
    double low = yarn_dim(c, head_dim, c->beta_fast);
    double high = yarn_dim(c, head_dim, c->beta_slow);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)head_dim - 1);
    if (low == high) high += 0.001; /* as HF does: no division by zero */
    for (int64_t i = 0; i < head_dim / 2; i++) {
        double stretch = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        frequency_c[i] = frequency_c[i] / c->factor * stretch + frequency_c[i] * (1 - stretch);
    }
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_attention_factor(const RopeConfig *c)
{
    if (c->attention_factor != 0) return c->attention_factor;
    if (c->mscale != 0 && c->mscale_all_dim != 0)
        return yarn_mscale(c->factor, c->mscale) / yarn_mscale(c->factor, c->mscale_all_dim);
    return yarn_mscale(c->factor, 1);
}

double rope_frequencies(const RopeConfig *config, int64_t head_dim, double *frequency_c)
{
    for (int64_t i = 0; i < head_dim / 2; i++)
        frequency_c[i] = 1 / pow(config->theta, (double)(2 * i) / (double)head_dim);
    switch (config->kind) {
    case ROPE_DEFAULT: break;
    case ROPE_LINEAR:
        for (int64_t i = 0; i < head_dim / 2; i++) frequency_c[i] /= config->factor;
        break;
    case ROPE_LLAMA3:
        for (int64_t i = 0; i < head_dim / 2; i++)
            frequency_c[i] = llama3_frequency(config, frequency_c[i]);
        break;
    case ROPE_YARN: yarn_scale(config, head_dim, frequency_c); return yarn_attention_factor(config);
    }
    return 1;
}

static void store(Tensor t, int64_t element, double value)
{
    if (t.dtype == DTYPE_F64)
        ((double *)t.data)[element] = value;
    else
        ((float *)t.data)[element] = (float)value;
}

Status rope_tables_build(RopeTables *t, Arena *arena, const RopeConfig *config, int64_t head_dim,
                         int64_t n_positions, DType dtype)
{
    assert(head_dim > 0 && head_dim % 2 == 0 && n_positions > 0);
    assert(dtype == DTYPE_F32 || dtype == DTYPE_F64);
    const int64_t half = head_dim / 2;
    double *frequency_c;
    RopeTables built = {.cos_pc = tensor2(NULL, dtype, n_positions, half),
                        .sin_pc = tensor2(NULL, dtype, n_positions, half),
                        .n_positions = n_positions};
    size_t row_bytes = size_mul((size_t)half, dtype_bytes(dtype));
    TRY(arena_alloc(arena, &frequency_c, (size_t)half, sizeof *frequency_c));
    TRY(arena_alloc(arena, &built.cos_pc.data, (size_t)n_positions, row_bytes));
    TRY(arena_alloc(arena, &built.sin_pc.data, (size_t)n_positions, row_bytes));
    double factor = rope_frequencies(config, head_dim, frequency_c);
    for (int64_t p = 0; p < n_positions; p++)
        for (int64_t i = 0; i < half; i++) {
            store(built.cos_pc, p * half + i, factor * cos((double)p * frequency_c[i]));
            store(built.sin_pc, p * half + i, factor * sin((double)p * frequency_c[i]));
        }
    *t = built;
    return OK;
}

void rope_apply(const RopeTables *t, Run *run, Tensor x_thc, int64_t n_heads, bool inverse)
{
    run->be->rope(run->be, &(RopeArgs){.x_thc = tensor3(x_thc.data, x_thc.dtype, x_thc.dim[0],
                                                        n_heads, x_thc.dim[1] / n_heads),
                                       .cos_pc = t->cos_pc,
                                       .sin_pc = t->sin_pc,
                                       .position_t = run->mb->position_t,
                                       .inverse = inverse});
}
