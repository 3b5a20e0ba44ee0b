#include "train/generate.h"
#include "base/rng.h"

#include <math.h>

Status generator_create(Generator *out, Engine *engine, int64_t capacity)
{
    const ModelConfig *c = engine->model;
    arena_init(&out->arena, "cache");
    out->engine = engine;
    out->kv = (KvCache){.capacity = capacity, .n_layers = (int)c->n_layers};
    Arena *a = &out->arena;
    TRY(arena_alloc(a, &out->kv.k_tk, (size_t)c->n_layers, sizeof(Tensor)));
    TRY(arena_alloc(a, &out->kv.v_tk, (size_t)c->n_layers, sizeof(Tensor)));
    size_t row = (size_t)(c->n_kv_heads * c->head_dim);
    for (int64_t l = 0; l < c->n_layers; l++) {
        out->kv.k_tk[l] = out->kv.v_tk[l] = tensor2(NULL, engine->dtype, capacity, (int64_t)row);
        TRY(arena_alloc(a, &out->kv.k_tk[l].data, size_mul((size_t)capacity, row),
                        dtype_bytes(engine->dtype)));
        TRY(arena_alloc(a, &out->kv.v_tk[l].data, size_mul((size_t)capacity, row),
                        dtype_bytes(engine->dtype)));
    }
    out->logit_1v = tensor2(NULL, DTYPE_F32, 1, c->vocab);
    return arena_alloc(a, &out->logit_1v.data, (size_t)c->vocab, sizeof(float));
}

void generator_free(Generator *generator)
{
    arena_free(&generator->arena);
}

/* The n tokens behind what the cache holds. */
static void decode(Generator *g, const int32_t *id, int64_t n)
{
    Arena *step = &g->engine->step;
    ArenaMark mark = arena_mark(step);
    int32_t *position = ARENA_NEW(step, int32_t, n), *cu = ARENA_NEW(step, int32_t, 2);
    for (int64_t i = 0; i < n; i++) position[i] = (int32_t)(g->kv.length + i);
    cu[1] = (int32_t)n;
    MicroBatch mb = {
        .n_tokens = n, .n_segments = 1, .cu_seqlens = cu, .id_t = id, .position_t = position};
    stage_decode(g->engine->stage[0], &mb, &g->kv, g->logit_1v);
    arena_rewind(step, mark);
}

static int32_t most_likely(const float *logit, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logit[i] > logit[best]) best = i;
    return best;
}

/* Walks the cumulated probabilities up to a uniform draw. */
static int32_t draw(const float *logit, int32_t n, double temperature, double uniform)
{
    double max = logit[most_likely(logit, n)], sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp((logit[i] - max) / temperature);
    double left = uniform * sum;
    for (int32_t i = 0; i < n; i++) {
        left -= exp((logit[i] - max) / temperature);
        if (left < 0) return i;
    }
    return most_likely(logit, n);
}

static bool is_eos(const ModelConfig *c, int32_t id)
{
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return true;
    return false;
}

int64_t generate(Generator *g, const GenerateConfig *config, int64_t sequence, const int32_t *id,
                 int64_t n_prompt, int32_t *out, bool *ended)
{
    const ModelConfig *c = g->engine->model;
    int32_t n_ids = config->vocab_used < c->vocab ? config->vocab_used : (int32_t)c->vocab;
    uint64_t key = rng_bits(config->seed, (uint64_t)sequence);
    g->kv.length = 0;
    *ended = false;
    decode(g, id, n_prompt);
    int64_t n = 0;
    while (n < config->max_new_tokens) {
        const float *logit = g->logit_1v.data;
        if (!isfinite(logit[most_likely(logit, n_ids)])) return -1;
        int32_t next = config->temperature > 0
                           ? draw(logit, n_ids, config->temperature, rng_uniform(key, (uint64_t)n))
                           : most_likely(logit, n_ids);
        if (is_eos(c, next)) {
            *ended = true;
            break;
        }
        out[n++] = next;
        if (n == config->max_new_tokens || g->kv.length == g->kv.capacity) break;
        decode(g, &next, 1);
    }
    return n;
}
