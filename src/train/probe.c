#include "train/probe.h"
#include "io/file.h"
#include "io/json.h"
#include "model/shared_file.h"

#include <math.h>

/* The last stage of the model, NULL on ranks without it. */
static Stage *head_stage(const Engine *e)
{
    return e->stage[e->n_stages - 1];
}

/* The row of the batch that is microbatch m here. */
static int64_t row_of(const Engine *e, int64_t m)
{
    return m * e->mesh->size[AXIS_DP] + e->mesh->coord[AXIS_DP];
}

static int64_t n_own_rows(const Engine *e, const ProbePlan *plan)
{
    return plan->n_rows / e->mesh->size[AXIS_DP];
}

static Status take_logits(Engine *e, const ProbePlan *plan)
{
    Stage *s = head_stage(e);
    if (!s) return OK;
    int64_t n = n_own_rows(e, plan);
    TRY(arena_alloc(&e->arena, &s->logits_m, (size_t)n, sizeof *s->logits_m));
    for (int64_t m = 0; m < n; m++) {
        s->logits_m[m] =
            tensor2(NULL, s->run.dtype_acc, plan->row[row_of(e, m)].n_tokens, e->model->vocab);
        TRY(arena_alloc(&e->arena, &s->logits_m[m].data, (size_t)tensor_size(s->logits_m[m]),
                        sizeof(float)));
    }
    return OK;
}

typedef struct Logits {
    const Engine *engine;
    const ProbePlan *plan;
    const TensorDecl *decl; /* [n_rows] */
} Logits;

static Status write_own_logits(SafetensorsWriter *writer, void *arg)
{
    const Logits *logits = arg;
    const Stage *s = head_stage(logits->engine);
    int64_t n = s ? n_own_rows(logits->engine, logits->plan) : 0;
    for (int64_t m = 0; m < n; m++)
        TRY(safetensors_write_f32(writer, logits->decl[row_of(logits->engine, m)].name, 0,
                                  tensor_size(s->logits_m[m]), s->logits_m[m].data));
    return OK;
}

static Status write_logits(const Engine *e, const ProbePlan *plan, Arena *arena)
{
    TensorDecl *decl = ARENA_NEW(arena, TensorDecl, plan->n_rows);
    for (int64_t j = 0; j < plan->n_rows; j++) {
        int64_t *dim = ARENA_NEW(arena, int64_t, 2);
        dim[0] = plan->row[j].n_tokens;
        dim[1] = e->model->vocab;
        decl[j] = (TensorDecl){text_format(arena, "mb%lld", (long long)j), DTYPE_F32, 2, dim};
    }
    Logits logits = {e, plan, decl};
    return shared_file_write(e->mesh->world, path_join(arena, plan->out, "logits.safetensors"),
                             decl, (int)plan->n_rows, write_own_logits, &logits, arena);
}

static Status write_grads(Engine *e, const ProbePlan *plan, Arena *arena)
{
    bool *present;
    TRY(engine_present(&present, e, PARAM_GRAD, arena));
    HfWrite how = {
        .dir = plan->out, .what = PARAM_GRAD, .dtype = DTYPE_F32, .only_file = "grads.safetensors"};
    return hf_write(e->layout, &e->set, e->mesh->world, &how, present, arena);
}

static void put(TextBuffer *out, const char *key, double value)
{
    text_append_format(out, "  \"%s\": ", key);
    json_append_real(out, value);
    text_append_format(out, ",\n");
}

static Status write_losses(const Engine *e, const ProbePlan *plan, const EngineSums *sums,
                           const BatchTotals *totals, Arena *arena)
{
    TextBuffer out;
    text_buffer_init(&out, arena);
    text_append_format(&out, "{\n");
    put(&out, "ce", sums->ce);
    put(&out, "balancing", sums->balancing);
    put(&out, "balancing_raw", isnan(sums->balancing) ? NAN : sums->balancing_raw);
    put(&out, "z", sums->z);
    put(&out, "total", sums->loss);
    put(&out, "grad_norm", sums->norm);
    text_append_format(&out, "  \"trained_tokens\": %lld,\n  \"tokens_per_expert\": {",
                       (long long)totals->n_trained);
    bool first = true;
    for (int64_t l = 0; l < e->model->n_layers; l++) {
        if (!model_config_is_moe(e->model, l)) continue;
        text_append_format(&out, "%s\n    \"%lld\": [", first ? "" : ",", (long long)l);
        for (int64_t k = 0; k < e->model->n_experts; k++)
            text_append_format(&out, "%s%lld", k ? ", " : "",
                               (long long)sums->count_le[l * e->model->n_experts + k]);
        text_append_format(&out, "]");
        first = false;
    }
    text_append_format(&out, "%s}\n}\n", first ? "" : "\n  ");
    return file_write_atomic(path_join(arena, plan->out, "losses.json"), out.text, out.length);
}

static Status run(Engine *e, const ProbePlan *plan)
{
    Comm *world = e->mesh->world;
    if (plan->logits) TRY(comm_agree(world, take_logits(e, plan)));
    BatchTotals totals;
    MicroBatch *mb = engine_batch(&totals, e, plan->row, plan->n_rows);
    engine_forward_backward(e, mb);
    EngineSums sums;
    engine_sums(&sums, e, PASS_TRAIN, 0);
    engine_losses(&sums, e, &totals);
    TRY(comm_agree(world, world->rank == 0 ? write_losses(e, plan, &sums, &totals, &e->step) : OK));
    if (plan->logits) TRY(write_logits(e, plan, &e->step));
    if (plan->grads) TRY(write_grads(e, plan, &e->step));
    return OK;
}

Status probe_run(const ProbePlan *plan, Comm *world)
{
    EngineSetup setup = {.config = plan->config,
                         .model = plan->model,
                         .weights = plan->weights,
                         .n_train = (int)(plan->n_rows / plan->config->parallel.dp_size),
                         .max_positions = 1};
    for (int64_t i = 0; i < plan->n_rows; i++) {
        if (plan->row[i].n_tokens > setup.max_positions)
            setup.max_positions = plan->row[i].n_tokens;
        setup.row_tokens += plan->row[i].n_tokens;
    }
    setup.row_tokens /= plan->n_rows;
    Engine *engine;
    TRY(engine_create(&engine, &setup, world, NULL));
    Status status = AFTER_START(run(engine, plan));
    engine_free(&engine);
    return status;
}
