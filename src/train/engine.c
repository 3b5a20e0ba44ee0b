#include "train/engine.h"
#include "base/clock.h"
#include "train/optimizer.h"

#include <omp.h>
#include <string.h>

int engine_threads(const TrainConfig *config, int n_cpus)
{
    if (config->train.threads > 0) return config->train.threads;
    const int limit = omp_get_thread_limit(), most = limit < 1024 ? limit : 1024;
    return n_cpus < 1 ? 1 : n_cpus > most ? most : n_cpus;
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

static Status create_stages(Engine *e, const EngineSetup *setup)
{
    int rank = e->mesh->coord[AXIS_PP];
    const LossSection *loss = &setup->config->loss;
    bool is_moe = model_config_n_moe_layers(e->model) > 0;
    if (is_moe && loss->balancing_scope == BALANCING_GLOBAL && e->mesh->size[AXIS_DP] > 1)
        e->scope = e->mesh->axis[AXIS_DP];
    StageConfig stage = {.recompute_ratio = setup->config->train.recompute_ratio,
                         .ep = e->mesh->axis[AXIS_EP],
                         .balancing_together = is_moe && loss->balancing_form == BALANCING_HF,
                         .scope = e->scope};
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

/* All is read: a folder that is removed from now on frees its space. Only carried tensors are copied from it at each export. */
static void release_source(Engine *e)
{
    for (int i = 0; i < e->layout->n; i++)
        if (e->layout->at[i].source) return;
    shard_index_close(&e->source);
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
    double begin = clock_seconds();
    Status status = hf_load(e->layout, e->source, &e->set, &e->step, log);
    e->load_seconds = clock_seconds() - begin;
    release_source(e);
    return status;
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
