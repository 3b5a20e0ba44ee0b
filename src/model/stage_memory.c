#include "model/stage_memory.h"

static Status new_arenas(Arena **out, int *count, int n, const char *name, Arena *model)
{
    *count = n < 1 ? 1 : n;
    TRY(arena_alloc(model, out, (size_t)*count, sizeof **out));
    for (int i = 0; i < *count; i++) arena_init(&(*out)[i], name);
    return OK;
}

Status stage_memory_create(StageMemory *out, int n_f_to_i, int n_f_to_w, int n_i_to_w, Arena *model)
{
    StageMemory m = {0};
    arena_init(&m.scratch, "scratch");
    arena_init(&m.passing, "passing");
    TRY(new_arenas(&m.f_to_i, &m.n_f_to_i, n_f_to_i, "f_to_i", model));
    TRY(new_arenas(&m.f_to_w, &m.n_f_to_w, n_f_to_w, "f_to_w", model));
    TRY(new_arenas(&m.i_to_w, &m.n_i_to_w, n_i_to_w, "i_to_w", model));
    *out = m;
    return OK;
}

void stage_memory_free(StageMemory *m)
{
    for (int i = 0; i < m->n_f_to_i; i++) arena_free(&m->f_to_i[i]);
    for (int i = 0; i < m->n_f_to_w; i++) arena_free(&m->f_to_w[i]);
    for (int i = 0; i < m->n_i_to_w; i++) arena_free(&m->i_to_w[i]);
    arena_free(&m->scratch);
    arena_free(&m->passing);
}

size_t stage_memory_high_water(const StageMemory *m)
{
    size_t bytes = m->scratch.high_water + m->passing.high_water;
    for (int i = 0; i < m->n_f_to_i; i++) bytes += m->f_to_i[i].high_water;
    for (int i = 0; i < m->n_f_to_w; i++) bytes += m->f_to_w[i].high_water;
    for (int i = 0; i < m->n_i_to_w; i++) bytes += m->i_to_w[i].high_water;
    return bytes;
}

int64_t stage_memory_growths(const StageMemory *m)
{
    int64_t n = m->scratch.growths + m->passing.growths;
    for (int i = 0; i < m->n_f_to_i; i++) n += m->f_to_i[i].growths;
    for (int i = 0; i < m->n_f_to_w; i++) n += m->f_to_w[i].growths;
    for (int i = 0; i < m->n_i_to_w; i++) n += m->i_to_w[i].growths;
    return n;
}
