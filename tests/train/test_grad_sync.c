/* Sums over ranks with the same parameters against sums made in one place, and what they cost in bytes and memory. */
#include "train_test.h"

#include "train/grad_sync.h"
#include "train/optimizer.h"

/* Parameters of two stages: vectors, a matrix in one bucket, one in several, experts. */
static const struct {
    int64_t size;
    bool expert;
    int stage;
} shapes[] = {{7, false, 0},    {5 * 4096 + 3, false, 0}, {3, true, 0},    {700000, false, 1},
              {4096, false, 1}, {300000, true, 1},        {4096, false, 1}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

typedef struct Job {
    int dp, ep;
    bool own_only;
    DType dtype;
    int64_t sent[AXIS_COUNT]; /* of all ranks together */
} Job;

/* Sums of these depend on their order. */
static float gradient_of(int rank, int param, int64_t i)
{
    return (float)((double)((i * 7919 + param * 31 + rank * 101) % 1009) * 1e-3 +
                   1e3 * (rank % 2 ? -1 : 1));
}

static float sum_of(int first, int step, int n, int param, int64_t i)
{
    float sum = gradient_of(first, param, i);
    for (int k = 1; k < n; k++) sum += gradient_of(first + k * step, param, i);
    return sum;
}

static Status check_sums(const ParamSet *set, const Job *job, int rank)
{
    for (int k = 0; k < N_SHAPES; k++) {
        const Param *p = set->at[k];
        const float *grad = p->grad.data;
        ParamRange range = {0, shapes[k].size};
        int step = shapes[k].expert ? job->ep : 1, n = job->dp / step;
        if (job->own_only && n > 1) range = p->own;
        for (int64_t i = range.begin; i < range.end; i++) {
            float want = sum_of(shapes[k].expert ? rank % job->ep : 0, step, n, k, i);
            if (memcmp(&grad[i], &want, sizeof want) != 0)
                return FAIL(ERR_FAILED, "rank %d: gradient %d of parameter %d is %.9g, not %.9g",
                            rank, (int)i, k, (double)grad[i], (double)want);
        }
    }
    return OK;
}

/* Values that only their owner has made. */
static Status check_values(GradSync *sync, const ParamSet *set)
{
    for (int k = 0; k < N_SHAPES; k++)
        for (int64_t i = set->at[k]->own.begin; i < set->at[k]->own.end; i++) {
            if (set->dtype == DTYPE_BF16)
                ((uint16_t *)set->at[k]->value.data)[i] = (uint16_t)(i * 3 + k);
            else
                ((float *)set->at[k]->value.data)[i] = (float)(i * 3 + k);
        }
    grad_sync_spread_values(sync);
    for (int k = 0; k < N_SHAPES; k++)
        for (int64_t i = 0; i < shapes[k].size; i++) {
            bool same = set->dtype == DTYPE_BF16
                            ? ((uint16_t *)set->at[k]->value.data)[i] == (uint16_t)(i * 3 + k)
                            : ((float *)set->at[k]->value.data)[i] == (float)(i * 3 + k);
            if (!same) return FAIL(ERR_FAILED, "value %d of parameter %d", (int)i, k);
        }
    return OK;
}

static Status body(Comm *world, void *arg)
{
    Job *job = arg;
    Arena arena;
    arena_init(&arena, "test");
    Mesh *mesh;
    int axes[AXIS_GIVEN] = {1, [AXIS_DP] = job->dp, [AXIS_EP] = job->ep, 1, 1};
    TRY(mesh_create(&mesh, world, axes, &arena));
    ParamSet set;
    paramset_init(&set, &arena, job->dtype, DTYPE_F32);
    for (int k = 0; k < N_SHAPES; k++) {
        Param *p = paramset_declare(&set, "p", PARAM_INIT_NORMAL, 1, &shapes[k].size);
        p->is_expert = shapes[k].expert;
        const Comm *copies = mesh->axis[p->is_expert ? AXIS_EDP : AXIS_DATA];
        p->own = param_shard(p, copies->rank, copies->size);
    }
    TRY(paramset_layout(&set, true));
    Backend be;
    backend_ref_init(&be, 1);
    GradSync *sync;
    GradSyncSetup setup = {&set, (const int[]){0, 3, N_SHAPES}, 2, mesh, &be, job->own_only};
    TRY(grad_sync_create(&sync, &setup, &arena));
    Status status = OK;
    for (int round = 0; round < 2 && status == OK; round++) {
        for (int k = 0; k < N_SHAPES; k++)
            for (int64_t i = 0; i < shapes[k].size; i++)
                ((float *)set.at[k]->grad.data)[i] = gradient_of(world->rank, k, i);
        grad_sync_start(sync, 1);
        for (int i = 0; i < 10 * round; i++) grad_sync_advance(sync);
        grad_sync_start(sync, 0);
        grad_sync_finish(sync);
        status = comm_agree(world, check_sums(&set, job, world->rank));
    }
    if (status == OK && job->own_only) status = comm_agree(world, check_values(sync, &set));
    int64_t sent[AXIS_COUNT];
    for (int a = 0; a < AXIS_COUNT; a++) sent[a] = (int64_t)mesh->axis[a]->bytes_sent;
    if (status == OK) status = comm_sum_i64(world, sent, AXIS_COUNT);
    if (world->rank == 0) memcpy(job->sent, sent, sizeof sent);
    mesh_free(&mesh);
    arena_free(&arena);
    return status;
}

/* (n - 1) / n of all gradients leave each rank twice; with ZeRO-1 once, and then as much of the values. */
static void assert_bytes(const Job *job)
{
    int64_t data = 0, edp = 0;
    for (int k = 0; k < N_SHAPES; k++) {
        int n = shapes[k].expert ? job->dp / job->ep : job->dp;
        int64_t once = (n - 1) * shapes[k].size, value = (int64_t)dtype_bytes(job->dtype);
        int64_t bytes = job->own_only ? once * (2 * 4 + value) : once * 2 * (4 + 4);
        if (shapes[k].expert)
            edp += bytes * job->ep;
        else
            data += bytes;
    }
    assert_int_equal(job->sent[AXIS_DATA], data);
    assert_int_equal(job->sent[AXIS_EDP], edp);
}

static void grad_sync__adds_in_rank_order_and_spreads(void **state)
{
    (void)state;
    static const Job jobs[] = {{2, 1, false, DTYPE_F32, {0}},  {3, 1, true, DTYPE_BF16, {0}},
                               {4, 2, false, DTYPE_BF16, {0}}, {4, 2, true, DTYPE_F32, {0}},
                               {4, 4, true, DTYPE_F32, {0}},   {5, 1, false, DTYPE_F32, {0}}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        Job job = jobs[i];
        assert_ok(world_run_threads(job.dp, body, &job));
        assert_bytes(&job);
    }
}

/* ---- a whole engine ------------------------------------------------------------------------ */

typedef struct StepJob {
    const TrainConfig *config;
    const ModelConfig *model;
    const Dataset *data;
    int n_rows;
    int64_t sent[AXIS_COUNT]; /* of all ranks together, in one step */
    int64_t n_params, n_tokens, n_growths;
    int64_t n_expert_params; /* of n_params */
    size_t memory;           /* of rank 0's parameters, gradients, moments */
} StepJob;

static Status step_body(Comm *world, void *arg)
{
    StepJob *job = arg;
    EngineSetup setup = {.config = job->config,
                         .model = job->model,
                         .n_train = job->n_rows / job->config->parallel.dp_size,
                         .max_positions = 64,
                         .row_tokens = 8};
    Engine *e;
    TRY(engine_create(&e, &setup, world, NULL));
    TRY(optimizer_create_moments(&e->set, OPTIMIZER_ADAMW, &e->arena));
    Row *rows = ARENA_NEW(&e->step, Row, job->n_rows);
    dataset_rows(job->data, 0, job->n_rows, rows);
    BatchConfig batch = {REDUCTION_TOKEN, 0.01, 0.001};
    BatchTotals totals;
    MicroBatch *mb = batch_build_rank(&totals, rows, job->n_rows, e->mesh->coord[AXIS_DP],
                                      e->mesh->size[AXIS_DP], &batch, &e->step);
    int64_t sent[AXIS_COUNT], growths = 0;
    for (int round = 0; round < 3; round++) {
        for (int a = 0; a < AXIS_COUNT; a++) sent[a] = (int64_t)e->mesh->axis[a]->bytes_sent;
        if (round == 2) growths = engine_growths(e);
        engine_forward_backward(e, mb);
        engine_spread_values(e);
    }
    int64_t grown = engine_growths(e) - growths;
    for (int a = 0; a < AXIS_COUNT; a++) sent[a] = (int64_t)e->mesh->axis[a]->bytes_sent - sent[a];
    Status status = comm_sum_i64(world, sent, AXIS_COUNT);
    if (status == OK) status = comm_sum_i64(world, &grown, 1);
    if (world->rank == 0) {
        memcpy(job->sent, sent, sizeof sent);
        job->n_growths = grown;
        job->n_tokens = totals.n_tokens;
        job->memory = e->arena.high_water;
        for (int i = 0; i < e->whole.n; i++) {
            int64_t n = tensor_size(e->whole.at[i]->value);
            job->n_params += n;
            if (e->whole.at[i]->is_expert) job->n_expert_params += n;
        }
    }
    engine_free(&e);
    return status;
}

static void engine__sends_what_the_formulas_say(void **state)
{
    Bench *b = *state;
    static const struct {
        int pp, dp, ep, zero;
        const char *dtype;
        int64_t bytes; /* of a value */
        const char *form, *scope;
    } rows[] = {{2, 2, 1, 0, "f32", 4, "per_layer", "row"},
                {2, 4, 1, 1, "bf16", 2, "per_layer", "row"},
                {1, 2, 1, 1, "f32", 4, "per_layer", "global"},
                {2, 4, 2, 0, "bf16", 2, "per_layer", "global"},
                {1, 4, 2, 1, "f32", 4, "hf", "global"},
                {2, 4, 4, 1, "bf16", 2, "per_layer", "row"},
                {2, 2, 2, 0, "f32", 4, "hf", "row"}};
    StepJob job = {.model = model_with(b, NULL),
                   .data = dataset_of(b, rows_file(b, "rows.jsonl", 8, NULL)),
                   .n_rows = 8};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        job.config = CONFIG(b, text_format(&b->arena, "parallel.pp_size=%d", rows[i].pp),
                            text_format(&b->arena, "parallel.dp_size=%d", rows[i].dp),
                            text_format(&b->arena, "parallel.ep_size=%d", rows[i].ep),
                            text_format(&b->arena, "parallel.zero_stage=%d", rows[i].zero),
                            text_format(&b->arena, "loss.balancing_form=%s", rows[i].form),
                            text_format(&b->arena, "loss.balancing_scope=%s", rows[i].scope),
                            text_format(&b->arena, "model.dtype=%s", rows[i].dtype));
        job.n_params = job.n_expert_params = 0;
        assert_ok(world_run_threads(rows[i].pp * rows[i].dp, step_body, &job));
        int64_t each = 4 + (rows[i].zero ? rows[i].bytes : 4), n_edp = rows[i].dp / rows[i].ep;
        int64_t n_shared = job.n_params - job.n_expert_params, hf = !strcmp(rows[i].form, "hf");
        int64_t n_counted = strcmp(rows[i].scope, "global") ? 0 : hf ? 1 : job.model->n_layers;
        int64_t counts = 16 * job.model->n_experts * job.n_rows;
        assert_int_equal(job.sent[AXIS_DATA], (rows[i].dp - 1) * n_shared * each);
        assert_int_equal(job.sent[AXIS_EDP], (n_edp - 1) * job.n_expert_params * each);
        assert_int_equal(job.sent[AXIS_DP], (rows[i].dp - 1) * n_counted * counts);
        assert_int_equal(job.sent[AXIS_PP],
                         (rows[i].pp - 1) * (2 * job.n_tokens * job.model->hidden * rows[i].bytes +
                                             2 * hf * counts));
        assert_int_equal(job.n_growths, 0);
    }
    dataset_free((Dataset **)&job.data);
}

/* Two experts, both for every token: each token goes to each of the ranks. Layers 0, 2 and 3 have experts. */
static void engine__sends_tokens_as_the_formula_says(void **state)
{
    Bench *b = *state;
    static const struct {
        int pp, dp, n_again; /* layers with experts that are recomputed */
        const char *dtype, *recompute;
        int64_t bytes; /* of an activation */
    } rows[] = {{1, 2, 0, "f32", "0", 4}, {2, 2, 1, "bf16", "0.5", 2}, {1, 4, 2, "bf16", "1", 2}};
    StepJob job = {.model = model_with(b, "{\"num_experts\": 2}"),
                   .data = dataset_of(b, rows_file(b, "rows.jsonl", 8, NULL)),
                   .n_rows = 8};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        job.config = CONFIG(b, "parallel.ep_size=2",
                            text_format(&b->arena, "parallel.pp_size=%d", rows[i].pp),
                            text_format(&b->arena, "parallel.dp_size=%d", rows[i].dp),
                            text_format(&b->arena, "train.recompute_ratio=%s", rows[i].recompute),
                            text_format(&b->arena, "model.dtype=%s", rows[i].dtype));
        assert_ok(world_run_threads(rows[i].pp * rows[i].dp, step_body, &job));
        int64_t d = job.model->hidden, k = 2, n = 2, s = job.n_tokens * (n - 1);
        int64_t forward =
            16 * n * (n - 1) * job.n_rows / n + s * (d * rows[i].bytes + 8 * k + 4 * d);
        int64_t backward = s * (d * rows[i].bytes + 4 * d + 4 * k);
        assert_int_equal(job.sent[AXIS_EP], (3 + rows[i].n_again) * forward + 3 * backward);
        assert_int_equal(job.n_growths, 0);
    }
    dataset_free((Dataset **)&job.data);
}

/* Per parameter 2 bytes for the value, 4 for the gradient, and a share of 4 for the master and 8 for the moments; and eight
 * buffers of up to 1 MiB, as docs/parallel.md says. */
static void engine__takes_the_memory_that_the_formula_says(void **state)
{
    Bench *b = *state;
    StepJob job = {.model = model_with(b, "{\"vocab_size\": 6000, \"hidden_size\": 256, "
                                          "\"moe_intermediate_size\": 256}"),
                   .data = dataset_of(b, rows_file(b, "rows.jsonl", 4, NULL)),
                   .n_rows = 4};
    double formula[2], memory[2];
    for (int zero = 0; zero < 2; zero++) {
        job.config = CONFIG(b, "parallel.dp_size=4", "model.dtype=bf16",
                            text_format(&b->arena, "parallel.zero_stage=%d", zero));
        job.n_params = 0;
        assert_ok(world_run_threads(4, step_body, &job));
        formula[zero] =
            (double)job.n_params * (2 + 4 + (zero ? 12.0 / 4 : 12)) + 8 * 3 / 4.0 * (1 << 20);
        memory[zero] = (double)job.memory;
        if (fabs(memory[zero] / formula[zero] - 1) > 0.05)
            fail_msg("zero %d: %.0f bytes, expected %.0f", zero, memory[zero], formula[zero]);
    }
    dataset_free((Dataset **)&job.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(grad_sync__adds_in_rank_order_and_spreads),
        BENCH_TEST(engine__sends_what_the_formulas_say),
        BENCH_TEST(engine__sends_tokens_as_the_formula_says),
        BENCH_TEST(engine__takes_the_memory_that_the_formula_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
