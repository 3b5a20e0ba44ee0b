#include "train/engine.h"

#include <math.h>

/* ---- microbatches ----------------------------------------------------------------------------------------- */

MicroBatch *engine_batch(BatchTotals *totals, Engine *e, const Row *rows, int64_t n_rows)
{
    const LossSection *loss = &e->config->loss;
    BatchConfig batch = {loss->reduction, loss->balancing_alpha, loss->z_alpha};
    int dp_size = e->mesh->size[AXIS_DP];
    MicroBatch *mb =
        batch_build_rank(totals, rows, n_rows, e->mesh->coord[AXIS_DP], dp_size, &batch, &e->step);
    if (e->scope) batch_count_together(mb, rows, n_rows, dp_size, &batch);
    return mb;
}

static void run_pass(Engine *e, int pass, MicroBatch *mb, ForwardMode mode)
{
    int n = e->schedule[pass]->n_mb;
    MicroBatch **list = ARENA_NEW(&e->step, MicroBatch *, n);
    for (int i = 0; i < n; i++) list[i] = &mb[i];
    pipeline_step(e->pipeline[pass], list, mode);
}

/* numerics.md 11: both holders of a tied pair get embedding + head. */
static void add_tied_grads(Engine *e)
{
    if (!e->model->tied) return;
    for (int i = 0; i < e->set.n; i++) {
        Param *p = e->set.at[i];
        if (p->tied_copy && p->tied && !tensor_is_null(p->grad)) {
            Tensor copy = param_part(p->grad, p->kept),
                   embedding = param_part(p->tied->grad, p->kept);
            e->be.add(&e->be, copy, embedding, copy);
            e->be.convert(&e->be, embedding, copy);
        }
    }
    if (tensor_is_null(e->tied_grad)) return;
    Param *head = paramset_find(&e->set, "lm_head.weight");
    Param *own = head ? head : paramset_find(&e->set, "model.embed_tokens.weight");
    Tensor grad = param_part(own->grad, own->kept);
    Comm *pp = e->mesh->axis[AXIS_PP];
    int other = e->rank_of_stage[head ? 0 : e->n_stages - 1];
    enum { TAG = 7 };
    CommRequest receive = pp->irecv(pp, e->tied_grad.data, tensor_bytes(e->tied_grad), other, TAG);
    CommRequest send = pp->isend(pp, grad.data, tensor_bytes(grad), other, TAG);
    comm_must(comm_wait(pp, &receive));
    comm_must(comm_wait(pp, &send)); /* grad is still being read until here */
    if (head)
        e->be.add(&e->be, grad, e->tied_grad, grad);
    else
        e->be.add(&e->be, grad, grad, e->tied_grad);
}

void engine_forward_backward(Engine *e, MicroBatch *mb)
{
    paramset_zero_grads(&e->set);
    run_pass(e, PASS_TRAIN, mb, FORWARD_TRAIN);
    if (e->sync) grad_sync_finish(e->sync);
    add_tied_grads(e);
}

void engine_spread_values(Engine *e)
{
    if (e->sync && e->config->parallel.zero_stage > 0) grad_sync_spread_values(e->sync);
}

void engine_forward(Engine *e, int pass, MicroBatch *mb, ForwardMode mode)
{
    run_pass(e, pass, mb, mode);
}

/* ---- sums ------------------------------------------------------------------------------------------------- */

/*
 * Where each number of a step stands in the one vector that is summed over the world; rows in the step's order. Every rank
 * fills in what it has and leaves the others zero, so the sum only collects and rounds nothing.
 */
typedef struct SumLayout {
    int64_t ce, together, balancing, z, count, squares, busy, first, last, memory, flags, n;
} SumLayout;

static SumLayout sum_layout(const Engine *e, int64_t n_rows)
{
    int64_t ml = n_rows * e->model->n_layers, ranks = e->mesh->world->size;
    SumLayout at = {.ce = 0};
    at.together = at.ce + n_rows;
    at.balancing = at.together + n_rows;
    at.z = at.balancing + ml;
    at.count = at.z + ml;
    at.squares = at.count + e->model->n_layers * e->model->n_experts;
    at.busy = at.squares + e->whole.n;
    at.first = at.busy + ranks;
    at.last = at.first + ranks;
    at.memory = at.last + ranks;
    at.flags = at.memory + ranks;
    at.n = at.flags + 1;
    return at;
}

static void fill_stage(double *v, const SumLayout *at, const Engine *e, const Stage *s,
                       int64_t n_mb)
{
    int64_t n_layers = e->model->n_layers, n = s->part.range.n, n_experts = e->model->n_experts;
    for (int64_t m = 0; m < n_mb; m++) {
        int64_t row = m * e->mesh->size[AXIS_DP] + e->mesh->coord[AXIS_DP];
        if (s->part.range.has_head) {
            v[at->ce + row] = s->ce_m[m];
            v[at->together + row] = s->balancing_raw_m[m];
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t layer = s->part.range.first + i;
            if (!s->part.block[i].config.is_moe) continue;
            v[at->balancing + row * n_layers + layer] = s->balancing_raw_ml[m * n + i];
            v[at->z + row * n_layers + layer] = s->z_raw_ml[m * n + i];
            for (int64_t k = 0; k < n_experts; k++)
                v[at->count + layer * n_experts + k] +=
                    (double)s->count_mle[(m * n + i) * n_experts + k];
        }
    }
}

static void fill_squares(double *v, const SumLayout *at, Engine *e)
{
    int own = 0;
    for (int i = 0; i < e->whole.n; i++) {
        if (own == e->set.n || e->set.at[own]->order != e->whole.at[i]->order) continue;
        Param *p = e->set.at[own++];
        if (p->tied_copy || tensor_is_null(p->grad)) continue;
        v[at->squares + i] = e->be.sum_squares(&e->be, param_own(p, PARAM_GRAD), &e->step);
    }
}

static double violation(const int64_t *count_le, const ModelConfig *c)
{
    double sum = 0;
    for (int64_t l = 0; l < c->n_layers; l++) {
        if (!model_config_is_moe(c, l)) continue;
        int64_t max = 0, total = 0;
        for (int64_t k = 0; k < c->n_experts; k++) {
            int64_t count = count_le[l * c->n_experts + k];
            if (count > max) max = count;
            total += count;
        }
        double mean = (double)total / (double)c->n_experts;
        sum += ((double)max - mean) / mean;
    }
    return sum / (double)model_config_n_moe_layers(c);
}

static void fill(double *v, const SumLayout *at, Engine *e, int pass)
{
    for (int s = 0; s < e->n_stages; s++)
        if (e->stage[s]) fill_stage(v, at, e, e->stage[s], e->schedule[pass]->n_mb);
    if (pass == PASS_TRAIN) fill_squares(v, at, e);
    const Pipeline *pipeline = e->pipeline[pass];
    int rank = e->mesh->world->rank;
    v[at->busy + rank] = pipeline->busy;
    v[at->first + rank] = pipeline->first + pipeline->clock_offset;
    v[at->last + rank] = pipeline->last + pipeline->clock_offset;
    v[at->memory + rank] = (double)engine_high_water(e);
}

static void read_losses(EngineSums *out, const double *v, const SumLayout *at, const Engine *e,
                        int64_t n_rows)
{
    int64_t n_layers = e->model->n_layers;
    for (int64_t row = 0; row < n_rows; row++) {
        out->ce += v[at->ce + row];
        out->balancing_raw += v[at->together + row]; /* one of the forms: the other's are zeros */
        for (int64_t l = 0; l < n_layers; l++) {
            out->balancing_raw += v[at->balancing + row * n_layers + l];
            out->z_raw += v[at->z + row * n_layers + l];
        }
    }
    out->balancing_raw /= (double)(e->scope ? n_rows / e->scope->size : n_rows);
}

static void read_counts(EngineSums *out, const double *v, const SumLayout *at, Engine *e)
{
    int64_t n = e->model->n_layers * e->model->n_experts;
    out->count_le = ARENA_NEW(&e->step, int64_t, n);
    for (int64_t i = 0; i < n; i++) out->count_le[i] = (int64_t)v[at->count + i];
    if (model_config_n_moe_layers(e->model))
        out->max_violation = violation(out->count_le, e->model);
}

static void read_norm(EngineSums *out, const double *v, const SumLayout *at, const Engine *e)
{
    double squares = 0;
    for (int i = 0; i < e->whole.n; i++) {
        squares += v[at->squares + i];
        if (!out->bad_tensor && !isfinite(v[at->squares + i]))
            out->bad_tensor = e->whole.at[i]->name;
    }
    out->norm = sqrt(squares);
}

static void read_ranks(EngineSums *out, const double *v, const SumLayout *at, Engine *e)
{
    int n_ranks = e->mesh->world->size;
    out->memory_r = ARENA_NEW(&e->step, int64_t, n_ranks);
    double first = INFINITY, last = 0;
    for (int r = 0; r < n_ranks; r++) {
        out->work = fmax(out->work, v[at->busy + r]);
        first = fmin(first, v[at->first + r]);
        last = fmax(last, v[at->last + r]);
        out->memory_r[r] = (int64_t)v[at->memory + r];
    }
    out->makespan = last - first;
}

void engine_sums(EngineSums *out, Engine *e, int pass, int64_t flags)
{
    int64_t n_rows = (int64_t)e->schedule[pass]->n_mb * e->mesh->size[AXIS_DP];
    SumLayout at = sum_layout(e, n_rows);
    double *v = ARENA_NEW(&e->step, double, at.n);
    fill(v, &at, e, pass);
    v[at.flags] = (double)flags;
    comm_must(comm_sum_ordered(e->mesh->world, v, at.n, DTYPE_F64, &e->step));
    *out = (EngineSums){.max_violation = NAN, .flags = (int64_t)v[at.flags]};
    read_losses(out, v, &at, e, n_rows);
    read_counts(out, v, &at, e);
    read_norm(out, v, &at, e);
    read_ranks(out, v, &at, e);
}

void engine_losses(EngineSums *sums, const Engine *e, const BatchTotals *totals)
{
    const LossSection *loss = &e->config->loss;
    sums->balancing = sums->z = NAN;
    sums->loss = sums->ce;
    if (model_config_n_moe_layers(e->model) == 0) return;
    bool learns = totals->weight > 0;
    sums->balancing = learns ? loss->balancing_alpha * sums->balancing_raw : 0;
    sums->z = learns ? loss->z_alpha * sums->z_raw / (double)totals->n_tokens : 0;
    sums->loss += sums->balancing + sums->z;
}
