#include "train/engine.h"
#include "train/optimizer.h"

#include <math.h>
#include <string.h>

int engine_threads(const TrainConfig *config, int n_cpus)
{
    if (config->train.threads > 0) return config->train.threads;
    return n_cpus < 1 ? 1 : n_cpus > 1024 ? 1024 : n_cpus;
}

Status engine_schedule(Schedule **out, const ParallelSection *p, int n_mb, Arena *arena)
{
    ScheduleRequest request = {.name = p->schedule,
                               .n_ranks = p->pp_size,
                               .n_mb = n_mb,
                               .n_virtual = p->num_virtual_stages < 0 ? 0 : p->num_virtual_stages};
    return schedule_build(out, &request, arena);
}

static Status build_schedules(Engine *e, const EngineSetup *setup)
{
    TRY(engine_schedule(&e->schedule[PASS_TRAIN], &setup->config->parallel, setup->n_train,
                        &e->arena));
    e->rank_of_stage = e->schedule[PASS_TRAIN]->rank_of_stage;
    e->n_stages = e->schedule[PASS_TRAIN]->n_stages;
    for (int i = 0; i < 2; i++)
        if (setup->n_forward[i])
            TRY(schedule_build_forward(&e->schedule[PASS_FORWARD_0 + i], e->schedule[PASS_TRAIN],
                                       setup->n_forward[i], &e->arena));
    if (!setup->n_train)
        e->schedule[PASS_TRAIN] = NULL;
    else if (e->mesh->size[AXIS_DATA] > 1)
        TRY(schedule_add_reduce(e->schedule[PASS_TRAIN], &e->arena));
    return OK;
}

/* Form hf of the balancing loss (numerics.md 3). */
static bool together(const Engine *e)
{
    return e->config->loss.balancing_form == BALANCING_HF && model_config_n_moe_layers(e->model);
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* Which part of each parameter this rank sums and updates, among those with a copy of it. */
static void deal_out(Engine *e)
{
    for (int i = 0; i < e->set.n; i++) {
        Param *p = e->set.at[i];
        const Comm *copies = e->mesh->axis[p->is_expert ? AXIS_EDP : AXIS_DATA];
        p->own = param_shard(p, copies->rank, copies->size);
        if (e->config->parallel.zero_stage > 0) p->kept = p->own;
    }
}

static void start_sum(void *self, int stage)
{
    grad_sync_start(self, stage);
}

static void advance_sums(void *self)
{
    grad_sync_advance(self);
}

static Status create_sync(Engine *e)
{
    if (e->mesh->size[AXIS_DATA] == 1 || !e->pipeline[PASS_TRAIN]) return OK;
    GradSyncSetup setup = {.set = &e->set,
                           .first_s = e->first_s,
                           .n_stages = e->n_stages,
                           .mesh = e->mesh,
                           .be = &e->be,
                           .own_only = e->config->parallel.zero_stage > 0};
    TRY(grad_sync_create(&e->sync, &setup, &e->arena));
    e->pipeline[PASS_TRAIN]->reduce = (PipelineReduce){start_sum, advance_sums, e->sync};
    return OK;
}

/* Whose rows the balancing loss counts together (numerics.md 3, scope global); NULL: each row by itself. */
static Comm *balancing_scope(const Engine *e)
{
    bool global = e->config->loss.balancing_scope == BALANCING_GLOBAL;
    return global && e->mesh->size[AXIS_DP] > 1 && model_config_n_moe_layers(e->model)
               ? e->mesh->axis[AXIS_DP]
               : NULL;
}

static Status create_stages(Engine *e, const EngineSetup *setup)
{
    int rank = e->mesh->coord[AXIS_PP];
    StageConfig stage = {.recompute_ratio = setup->config->train.recompute_ratio,
                         .ep = e->mesh->axis[AXIS_EP],
                         .balancing_together = together(e),
                         .scope = balancing_scope(e)};
    Slots n = {0};
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        const Schedule *s = e->schedule[pass];
        if (!s) continue;
        n.f_to_i = max_int(n.f_to_i, s->n_slots[rank].f_to_i);
        n.f_to_w = max_int(n.f_to_w, s->n_slots[rank].f_to_w);
        n.i_to_w = max_int(n.i_to_w, s->n_slots[rank].i_to_w);
        stage.n_microbatches = max_int(stage.n_microbatches, s->n_mb);
    }
    TRY(stage_memory_create(&e->memory, n.f_to_i, n.f_to_w, n.i_to_w, &e->arena));
    const LossSection *loss = &setup->config->loss;
    int64_t chunk = loss->mode == LOSS_FULL ? 0 : loss->chunk_size;
    ModelPart *parts;
    TRY(arena_alloc(&e->arena, &parts, (size_t)e->n_stages, sizeof *parts));
    TRY(arena_alloc(&e->arena, &e->first_s, (size_t)e->n_stages + 1, sizeof *e->first_s));
    for (int s = 0; s < e->n_stages; s++) {
        if (e->rank_of_stage[s] == rank)
            model_part_declare(&parts[s], &e->set, e->model, e->range[s], &e->rope, chunk);
        e->first_s[s + 1] = e->set.n;
    }
    model_link_tied(&e->set);
    deal_out(e);
    TRY(optimizer_apply_groups(&e->set, &e->whole, e->model, &setup->config->optimizer, &e->arena));
    TRY(paramset_layout(&e->set, setup->n_train > 0));
    for (int s = 0; s < e->n_stages; s++) {
        if (e->rank_of_stage[s] != rank) continue;
        TRY(stage_create(&e->stage[s], e->model, &parts[s], &stage, &e->memory, &e->be, e->dtype,
                         &e->arena));
        e->refs[s] = (StageRef){&stage_ops, e->stage[s]};
    }
    return OK;
}

/* A tied pair on two ranks: room for the other's gradient. */
static Status tied_buffer(Engine *e)
{
    for (int i = 0; i < e->set.n && e->model->tied; i++) {
        Param *p = e->set.at[i];
        bool of_pair = p->tied_copy || strcmp(p->name, "model.embed_tokens.weight") == 0;
        if (!of_pair || p->tied || tensor_is_null(p->grad)) continue;
        e->tied_grad = param_part(p->grad, p->kept);
        TRY(arena_alloc(&e->arena, &e->tied_grad.data, (size_t)tensor_size(e->tied_grad),
                        dtype_bytes(p->grad.dtype)));
    }
    return OK;
}

static Status load_weights(Engine *e, const EngineSetup *setup, Log *log)
{
    bool carry = setup->config->model.extra_tensors == EXTRA_CARRY;
    if (!setup->weights) {
        TRY(hf_layout_create(&e->layout, e->model, &e->whole, NULL, e->model->dtype, carry,
                             &e->arena));
        hf_init(e->model, &e->set, (uint64_t)setup->config->train.seed, &e->step);
        return OK;
    }
    HfSource source;
    TRY(shard_index_open(&e->source, setup->weights, &e->arena, log));
    TRY(hf_source_read(&source, setup->weights, e->source, &e->arena));
    TRY(hf_layout_create(&e->layout, e->model, &e->whole, &source, e->model->dtype, carry,
                         &e->arena));
    return hf_load(e->layout, e->source, &e->set, &e->step, log);
}

Status engine_set_side_files(Engine *e, const char *dir)
{
    size_t n = strlen(dir);
    if (n >= sizeof e->side_files) return FAIL(ERR_IO, "%s: path too long", dir);
    memcpy(e->side_files, dir, n + 1);
    return OK;
}

static Status check_experts(const Engine *e)
{
    int64_t n = e->model->n_experts;
    int ep_size = e->mesh->size[AXIS_EP];
    if (ep_size == 1 || (n > 0 && n % ep_size == 0)) return OK;
    return FAIL(ERR_USAGE,
                "parallel.ep_size: found %d, expected a divisor of the model's %lld experts (%s)",
                ep_size, (long long)n, e->model->source);
}

static Status create_local(Engine *e, const EngineSetup *setup, Log *log)
{
    KernelPath path;
    TRY(kernel_path_find(&path, setup->config->train.isa, "configuration"));
    backend_cpu_init(&e->be, path, engine_threads(setup->config, e->mesh->world->n_cpus));
    TRY(engine_set_side_files(e, e->model->source));
    TRY(check_experts(e));
    TRY(build_schedules(e, setup));
    const ParallelSection *p = &setup->config->parallel;
    if (p->layer_split.at && p->layer_split.n != e->n_stages)
        return FAIL(ERR_USAGE, "parallel.layer_split: %d entries (expected %d, one per stage)",
                    p->layer_split.n, e->n_stages);
    TRY(arena_alloc(&e->arena, &e->range, (size_t)e->n_stages, sizeof *e->range));
    TRY(arena_alloc(&e->arena, &e->stage, (size_t)e->n_stages, sizeof *e->stage));
    TRY(arena_alloc(&e->arena, &e->refs, (size_t)e->n_stages, sizeof *e->refs));
    e->cost =
        (CostModel){e->model, setup->row_tokens, e->dtype, setup->config->train.recompute_ratio};
    PartitionRequest request = {e->n_stages, e->rank_of_stage, p->layer_split.at, e->cost};
    TRY(partition_layers(e->range, &request, &e->step));
    DType acc = e->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    paramset_init(&e->set, &e->arena, e->dtype, acc);
    paramset_init(&e->whole, &e->arena, e->dtype, acc);
    e->set.ep_rank = e->mesh->coord[AXIS_EP];
    e->set.ep_size = e->mesh->size[AXIS_EP];
    model_declare_whole(&e->whole, e->model);
    TRY(rope_tables_build(&e->rope, &e->arena, &e->model->rope, e->model->head_dim,
                          setup->max_positions, acc));
    TRY(create_stages(e, setup));
    TRY(tied_buffer(e));
    return load_weights(e, setup, log);
}

Status engine_create(Engine **out, const EngineSetup *setup, Comm *world, Log *log)
{
    Arena arena;
    Engine *e;
    arena_init(&arena, "model");
    Status status = arena_alloc(&arena, &e, 1, sizeof *e);
    status = comm_agree(world, status);
    if (status != OK) {
        arena_free(&arena);
        return status;
    }
    e->arena = arena; /* from here on the arena lives inside what it holds */
    e->config = setup->config;
    e->model = setup->model;
    e->dtype = setup->config->model.dtype;
    arena_init(&e->step, "step");
    world->hang_timeout = setup->config->train.hang_timeout;
    const ParallelSection *p = &setup->config->parallel;
    int axes[AXIS_GIVEN] = {[AXIS_PP] = p->pp_size,
                            [AXIS_DP] = p->dp_size,
                            [AXIS_EP] = p->ep_size,
                            [AXIS_SP] = p->sp_size,
                            [AXIS_TP] = p->tp_size};
    status = mesh_create(&e->mesh, world, axes, &e->arena);
    if (status == OK) status = comm_agree(world, create_local(e, setup, log));
    for (int pass = 0; pass < PASS_COUNT && status == OK; pass++)
        if (e->schedule[pass])
            status = pipeline_create(&e->pipeline[pass], e->schedule[pass], e->mesh->axis[AXIS_PP],
                                     e->refs, &e->arena);
    if (status == OK) status = create_sync(e);
    status = comm_agree(world, status);
    if (status == OK) status = engine_align_clocks(e);
    if (status != OK)
        engine_free(&e);
    else
        *out = e;
    return status;
}

Status engine_align_clocks(Engine *e)
{
    double offset;
    TRY(comm_clock_offset(e->mesh->world, &offset));
    for (int pass = 0; pass < PASS_COUNT; pass++)
        if (e->pipeline[pass]) e->pipeline[pass]->clock_offset = offset;
    return OK;
}

void engine_free(Engine **engine)
{
    Engine *e = *engine;
    if (!e) return;
    *engine = NULL;
    for (int pass = 0; pass < PASS_COUNT; pass++) pipeline_free(&e->pipeline[pass]);
    stage_memory_free(&e->memory);
    shard_index_close(&e->source);
    mesh_free(&e->mesh);
    arena_free(&e->step);
    Arena arena = e->arena;
    arena_free(&arena);
}

size_t engine_high_water(const Engine *e)
{
    size_t bytes = e->arena.high_water + e->step.high_water + stage_memory_high_water(&e->memory);
    for (int pass = 0; pass < PASS_COUNT; pass++)
        if (e->pipeline[pass]) bytes += e->pipeline[pass]->send.high_water;
    return bytes;
}

int64_t engine_growths(const Engine *e)
{
    int64_t n = e->arena.growths + e->step.growths + stage_memory_growths(&e->memory);
    for (int pass = 0; pass < PASS_COUNT; pass++)
        if (e->pipeline[pass]) n += e->pipeline[pass]->send.growths;
    return n;
}

Status engine_present(bool **out, const Engine *e, ParamTensor what, Arena *arena)
{
    int64_t *n = ARENA_NEW(arena, int64_t, e->layout->n);
    for (int i = 0; i < e->layout->n; i++) {
        const Param *p =
            e->layout->at[i].param ? paramset_find(&e->set, e->layout->at[i].param) : NULL;
        n[i] = p && !tensor_is_null(param_tensor(p, what));
    }
    TRY(comm_sum_i64(e->mesh->world, n, e->layout->n));
    *out = ARENA_NEW(arena, bool, e->layout->n);
    for (int i = 0; i < e->layout->n; i++) (*out)[i] = n[i] > 0;
    return OK;
}

/* ---- a step ----------------------------------------------------------------------------------------------- */

MicroBatch *engine_batch(BatchTotals *totals, Engine *e, const Row *rows, int64_t n_rows)
{
    const LossSection *loss = &e->config->loss;
    BatchConfig batch = {loss->reduction, loss->balancing_alpha, loss->z_alpha};
    int dp_size = e->mesh->size[AXIS_DP];
    MicroBatch *mb =
        batch_build_rank(totals, rows, n_rows, e->mesh->coord[AXIS_DP], dp_size, &batch, &e->step);
    if (balancing_scope(e)) batch_count_together(mb, rows, n_rows, dp_size, &batch);
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

/* Where each number of a step stands in the one vector that is summed over the world; rows in the step's order. Every rank fills in what it has and leaves the
 * others zero, so the sum only collects and rounds nothing. */
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

void engine_sums(EngineSums *out, Engine *e, int pass, int64_t flags)
{
    int64_t n_mb = e->schedule[pass]->n_mb, n_layers = e->model->n_layers,
            n_experts = e->model->n_experts;
    int64_t n_rows = n_mb * e->mesh->size[AXIS_DP];
    Comm *world = e->mesh->world;
    int rank = world->rank, n_ranks = world->size;
    SumLayout at = sum_layout(e, n_rows);
    double *v = ARENA_NEW(&e->step, double, at.n);
    for (int s = 0; s < e->n_stages; s++)
        if (e->stage[s]) fill_stage(v, &at, e, e->stage[s], n_mb);
    if (pass == PASS_TRAIN) fill_squares(v, &at, e);
    const Pipeline *pipeline = e->pipeline[pass];
    v[at.busy + rank] = pipeline->busy;
    v[at.first + rank] = pipeline->first + pipeline->clock_offset;
    v[at.last + rank] = pipeline->last + pipeline->clock_offset;
    v[at.memory + rank] = (double)engine_high_water(e);
    v[at.flags] = (double)flags;
    comm_must(comm_sum_ordered(world, v, at.n, DTYPE_F64, &e->step));

    *out = (EngineSums){.max_violation = NAN};
    for (int64_t row = 0; row < n_rows; row++) {
        out->ce += v[at.ce + row];
        out->balancing_raw += v[at.together + row]; /* one of the forms: the other's are zeros */
        for (int64_t l = 0; l < n_layers; l++) {
            out->balancing_raw += v[at.balancing + row * n_layers + l];
            out->z_raw += v[at.z + row * n_layers + l];
        }
    }
    out->balancing_raw /= (double)(balancing_scope(e) ? n_mb : n_rows);
    out->count_le = ARENA_NEW(&e->step, int64_t, n_layers * n_experts);
    for (int64_t i = 0; i < n_layers * n_experts; i++) out->count_le[i] = (int64_t)v[at.count + i];
    if (model_config_n_moe_layers(e->model))
        out->max_violation = violation(out->count_le, e->model);
    double squares = 0;
    for (int i = 0; i < e->whole.n; i++) {
        squares += v[at.squares + i];
        if (!out->bad_tensor && !isfinite(v[at.squares + i]))
            out->bad_tensor = e->whole.at[i]->name;
    }
    out->norm = sqrt(squares);
    out->memory_r = ARENA_NEW(&e->step, int64_t, n_ranks);
    double first = INFINITY, last = 0;
    for (int r = 0; r < n_ranks; r++) {
        out->work = fmax(out->work, v[at.busy + r]);
        first = fmin(first, v[at.first + r]);
        last = fmax(last, v[at.last + r]);
        out->memory_r[r] = (int64_t)v[at.memory + r];
    }
    out->makespan = last - first;
    out->flags = (int64_t)v[at.flags];
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
