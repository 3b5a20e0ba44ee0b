#include "train/launch.h"

static int n_ranks(const TrainConfig *config)
{
    const ParallelSection *p = &config->parallel;
    return p->pp_size * p->dp_size * p->sp_size * p->tp_size;
}

static Status train_body(Comm *world, void *arg)
{
    return train_run(arg, world);
}

Status launch_train(const World *world, const TrainPlan *plan)
{
    TrainPlan own = *plan;
    return world_run(world, n_ranks(plan->config), plan->config->train.threads, train_body, &own);
}

static Status probe_body(Comm *world, void *arg)
{
    return probe_run(arg, world);
}

Status launch_probe(const World *world, const ProbePlan *plan)
{
    ProbePlan own = *plan;
    return world_run(world, n_ranks(plan->config), plan->config->train.threads, probe_body, &own);
}

typedef struct EvalJob {
    EvalPlan plan;
    EvalResult *out; /* written by rank 0 */
} EvalJob;

static Status eval_body(Comm *world, void *arg)
{
    const EvalJob *job = arg;
    EngineSetup setup = {.config = job->plan.config,
                         .model = job->plan.model,
                         .weights = job->plan.weights,
                         .max_positions = dataset_longest(job->plan.data),
                         .row_tokens =
                             dataset_n_tokens(job->plan.data) / dataset_n_rows(job->plan.data)};
    evaluate_passes(setup.n_forward, dataset_n_rows(job->plan.data),
                    job->plan.config->parallel.dp_size);
    Engine *engine;
    TRY(engine_create(&engine, &setup, world, NULL));
    EvalResult result;
    breadcrumb()->started = true;
    evaluate(&result, engine, job->plan.data);
    if (world->rank == 0) *job->out = result;
    engine_free(&engine);
    return OK;
}

Status launch_eval(const World *world, EvalResult *out, const EvalPlan *plan)
{
    EvalJob job = {*plan, out};
    return world_run(world, n_ranks(plan->config), plan->config->train.threads, eval_body, &job);
}

static Status solo_body(Comm *world, void *arg)
{
    const SoloPlan *plan = arg;
    EngineSetup setup = {.config = plan->config,
                         .model = plan->model,
                         .weights = plan->weights,
                         .n_forward = {1, 0},
                         .max_positions = plan->max_positions,
                         .row_tokens = 1};
    Engine *engine;
    TRY(engine_create(&engine, &setup, world, NULL));
    Status status = plan->body(engine, plan->arg);
    engine_free(&engine);
    return status;
}

Status launch_solo(const SoloPlan *plan)
{
    SoloPlan own = *plan;
    return world_run_threads(1, solo_body, &own);
}
