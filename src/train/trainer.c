#include "train/trainer.h"
#include "base/clock.h"
#include "io/file.h"
#include "train/evaluate.h"
#include "train/export.h"
#include "train/memory_plan.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/profile.h"
#include "train/stop_before.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct Trainer {
    const TrainPlan *plan;
    const TrainConfig *config;
    Engine *engine;
    Comm *world;
    bool lead; /* rank 0: writes metrics, shows progress */
    Log log;
    MetricsFile metrics;
    TrainState state;
    double bubble_predicted;
    double started;  /* clock at the first step */
    int64_t growths; /* of this rank's arenas, after the last step */
    Saver *saver;
    bool parts_done;   /* of a save under way: on all ranks, at the last step's sums */
    Deadline deadline; /* of rank 0, which decides */
    bool late;         /* it is near */
} Trainer;

/* What ranks say in a step's sums: how many want to stop in the lower bits, how many have written their part above. */
enum { FLAG_STOP = 1, FLAG_SAVED = 1 << 20 };

/* The bubble of the schedule when every stage takes the time that its shapes let expect. */
static Status predict_bubble(double *bubble, Engine *e)
{
    ArenaMark mark = arena_mark(&e->step);
    double *f_s = ARENA_NEW(&e->step, double, e->n_stages);
    double *i_s = ARENA_NEW(&e->step, double, e->n_stages);
    double *w_s = ARENA_NEW(&e->step, double, e->n_stages);
    for (int s = 0; s < e->n_stages; s++) {
        StageCost cost = range_cost(&e->cost, e->range[s]);
        f_s[s] = cost.f;
        i_s[s] = cost.i;
        w_s[s] = cost.w;
    }
    Costs costs = {.f_s = f_s, .i_s = i_s, .w_s = w_s};
    ScheduleReport report;
    TRY(schedule_simulate(&report, e->schedule[PASS_TRAIN], &costs, 1, &e->step));
    *bubble = report.bubble;
    arena_rewind(&e->step, mark);
    return OK;
}

static double step_flops(const Engine *e, const BatchTotals *totals)
{
    const ModelConfig *c = e->model;
    return 6 * active_matrix_params(c) * (double)totals->n_tokens +
           12 * (double)(c->n_heads * c->head_dim) * (double)totals->n_pairs * (double)c->n_layers;
}

static void show(Trainer *t, const Metrics *m)
{
    if (!t->lead) return;
    double now = clock_seconds(), left = (now - t->started) /
                                         (double)(m->step - t->plan->state.step) *
                                         (double)(t->plan->n_steps - m->step);
    char line[256];
    metrics_line(line, sizeof line, m, t->plan->n_steps);
    bool due = m->step % t->config->log.interval == 0 || m->step == t->plan->n_steps;
    if (t->log.terminal && m->step < t->plan->n_steps) {
        int64_t seconds = (int64_t)fmin(left, 1e15);
        log_progress(&t->log, "%lld:%02d left  %s", (long long)(seconds / 60), (int)(seconds % 60),
                     line);
        if (due) log_file_line(&t->log, "%s", line);
    } else if (due) {
        log_line(&t->log, "%s", line);
    }
}

/* Update the weights unless this step must not (numerics.md 2 and 8). */
static void update(Trainer *t, const EngineSums *sums, const BatchTotals *totals, double lr)
{
    const TrainSection *c = &t->config->train;
    const char *reason = NULL;
    char text[160];
    if (totals->weight == 0) {
        reason = "no trained token";
    } else if (sums->bad_tensor) {
        snprintf(text, sizeof text, "gradient not finite, first in %s", sums->bad_tensor);
        reason = text;
    } else if (sums->norm > c->skip_grad_norm_threshold) {
        snprintf(text, sizeof text, "gradient norm %g above train.skip_grad_norm_threshold %g",
                 sums->norm, c->skip_grad_norm_threshold);
        reason = text;
    }
    if (reason) {
        t->state.skipped++;
        if (t->lead) log_line(&t->log, "step %lld skipped: %s", (long long)t->state.step, reason);
        return;
    }
    t->state.updates++;
    double clip = c->max_grad_norm > 0 ? fmin(1, c->max_grad_norm / (sums->norm + 1e-6)) : 1;
    optimizer_update(&t->engine->set, &t->engine->be, &t->config->optimizer, lr, clip,
                     t->state.updates);
    engine_spread_values(t->engine);
}

static int64_t flags_of(Trainer *t)
{
    Waits waits = deadline_waits(&t->config->checkpoint, t->state.step, t->plan->n_steps,
                                 saver_is_busy(t->saver));
    t->late = t->lead && deadline_is_near(&t->deadline, waits);
    bool asked = t->plan->stop && *t->plan->stop;
    return (asked || t->late ? FLAG_STOP : 0) + (saver_part_done(t->saver) ? FLAG_SAVED : 0);
}

static Status train_step(Trainer *t, Metrics *m, bool *stop)
{
    Engine *e = t->engine;
    const TrainConfig *c = t->config;
    double begin = clock_seconds();
    breadcrumb()->step = ++t->state.step;
    arena_reset(&e->step);
    int64_t n_rows = c->train.global_batch_size;
    Row *rows = ARENA_NEW(&e->step, Row, n_rows);
    dataset_rows(t->plan->train, t->state.position, n_rows, rows);
    BatchTotals totals;
    MicroBatch *mb = engine_batch(&totals, e, rows, n_rows);
    bool profiled = profile_wants(c, t->state.step);
    if (profiled) TRY(profile_begin(e));
    double built = clock_seconds();
    engine_forward_backward(e, mb);
    if (profiled) TRY(profile_end(e, t->state.step));
    EngineSums sums;
    engine_sums(&sums, e, PASS_TRAIN, flags_of(t));
    engine_losses(&sums, e, &totals);
    *stop = sums.flags % FLAG_SAVED > 0;
    t->parts_done = sums.flags / FLAG_SAVED == t->world->size;
    double lr = lr_at(&c->lr_schedule, c->optimizer.lr, t->state.step - 1, t->plan->n_steps);
    update(t, &sums, &totals, lr);
    t->state.position += n_rows;
    t->state.epoch = (double)t->state.position / (double)dataset_n_rows(t->plan->train);
    t->state.tokens += totals.n_tokens;
    t->state.trained_tokens += totals.n_trained;

    *m = (Metrics){
        .step = t->state.step,
        .epoch = t->state.epoch,
        .ce = sums.ce,
        .balancing = sums.balancing,
        .z = sums.z,
        .total = sums.loss,
        .grad_norm = sums.norm,
        .lr = lr,
        .tokens = totals.n_tokens,
        .trained_tokens = totals.n_trained,
        .skipped = t->state.skipped,
        .max_violation = sums.max_violation,
        .time_data = built - begin,
        .time_step = clock_seconds() - begin,
        .flops = step_flops(e, &totals),
        .bubble = (sums.makespan - sums.work) / sums.makespan,
        .bubble_predicted = t->bubble_predicted,
        .memory_r = sums.memory_r,
        .n_ranks = e->mesh->world->size,
        .eval_loss = NAN,
    };
    return OK;
}

/* A step takes memory from the system only where rows are longer, or experts fuller, than any before. */
static void note_growth(Trainer *t)
{
    int64_t growths = engine_growths(t->engine);
    if (growths != t->growths && t->growths > 0)
        log_file_line(&t->log, "step %lld: arenas grew, %zu bytes at most so far",
                      (long long)t->state.step, engine_high_water(t->engine));
    t->growths = growths;
}

static void maybe_evaluate(Trainer *t, Metrics *m)
{
    if (!t->plan->eval ||
        !(m->step == t->plan->n_steps || step_is_due(m->step, t->config->train.eval_interval)))
        return;
    EvalResult result;
    evaluate(&result, t->engine, t->plan->eval);
    m->eval_loss = result.n_trained ? result.loss : NAN;
    if (t->lead) log_line(&t->log, "step %lld  eval loss %.4f", (long long)m->step, m->eval_loss);
}

/* ---- saving ------------------------------------------------------------------------------------------------ */

/* The run's failure only where that was asked for. The rank that knows why says so, once; the others have ERR_PEER. */
static Status pass_over(Trainer *t, const char *what, int64_t step, Status status)
{
    if (t->config->checkpoint.required) return status;
    if (status != OK && status != ERR_PEER)
        log_warning(&t->log, "step %lld was not %s: %s; training goes on", (long long)step, what,
                    status_message());
    return OK;
}

static Status note_save(Trainer *t, Status status)
{
    if (saver_is_busy(t->saver)) return OK;
    deadline_save_took(&t->deadline, saver_seconds(t->saver));
    return pass_over(t, "saved", saver_step(t->saver), status);
}

/* What is still being written goes first: its failure is not this save's. */
static Status settle(Trainer *t)
{
    return saver_is_busy(t->saver) ? note_save(t, saver_settle(t->saver)) : OK;
}

/* The last save is waited for, and its failure is the run's; others are tried again at the next one. */
static Status save(Trainer *t, bool last)
{
    TRY(settle(t));
    Status status = saver_start(t->saver, &t->state);
    if (status == OK && (last || !saver_is_beside(t->saver))) status = saver_settle(t->saver);
    return last ? status : note_save(t, status);
}

static Status export(Trainer *t, int64_t step)
{
    TRY(settle(t)); /* side files come from a checkpoint that does not move */
    double began = clock_seconds();
    Status status = export_step(t->engine, step, &t->log);
    deadline_export_took(&t->deadline, clock_seconds() - began);
    return pass_over(t, "exported", step, status);
}

/* stopping: after this step, which is not the last; nobody waits for more than the checkpoint then. */
static Status maybe_save(Trainer *t, bool last, bool stopping)
{
    const CheckpointSection *c = &t->config->checkpoint;
    int64_t step = t->state.step;
    if (saver_is_busy(t->saver) && t->parts_done) TRY(note_save(t, saver_advance(t->saver)));
    if (last || stopping || step_is_due(step, c->interval)) TRY(save(t, last || stopping));
    if (!step_is_due(step, c->hf_interval)) return OK;
    if (!stopping) return export(t, step);
    if (t->lead)
        log_line(&t->log, "step %lld is not exported, to be in time: stagewright export does it",
                 (long long)step);
    return OK;
}

static Status leave(Trainer *t)
{
    const char *why = t->late ? "train.stop_before is near: stopped" : "stopped";
    if (t->lead)
        log_line(&t->log, "%s after step %lld; go on with --resume", why, (long long)t->state.step);
    return FAIL(ERR_STOPPED, "stopped after step %lld", (long long)t->state.step);
}

static Status loop(Trainer *t)
{
    t->started = clock_seconds();
    while (t->state.step < t->plan->n_steps) {
        Metrics m;
        bool stop;
        t->deadline.step_began = clock_seconds();
        TRY(train_step(t, &m, &stop));
        note_growth(t);
        maybe_evaluate(t, &m);
        show(t, &m);
        Status status = t->lead ? metrics_append(&t->metrics, &m, &t->engine->step) : OK;
        breadcrumb()->step = 0;
        TRY(comm_agree(t->world, status));
        deadline_step_ends(&t->deadline);
        bool last = t->state.step == t->plan->n_steps;
        TRY(maybe_save(t, last, stop && !last));
        if (stop && !last) return leave(t);
    }
    if (t->lead && t->state.updates == 0 && t->state.skipped > 0)
        log_warning(&t->log, "no step changed the weights: all were skipped");
    return export_step(t->engine, -1, &t->log);
}

/* ---- before the first step --------------------------------------------------------------------------------- */

/* Which ranks talk to which. */
static void show_mesh(Trainer *t)
{
    TextBuffer text;
    text_buffer_init(&text, &t->engine->step);
    mesh_print(&text, t->engine->mesh->size);
    for (const char *line = text.text, *end; (end = strchr(line, '\n')); line = end + 1)
        log_line(&t->log, "%.*s", (int)(end - line), line);
}

static Status describe(Trainer *t)
{
    Engine *e = t->engine;
    TRY(optimizer_create_moments(&e->set, t->config->optimizer.type, &e->arena));
    if (t->plan->checkpoint) TRY(checkpoint_load_moments(e, t->plan->checkpoint));
    if (!t->lead) return OK;
    TextBuffer split;
    text_buffer_init(&split, &e->step);
    for (int s = 0; s < e->n_stages; s++)
        text_append_format(&split, "%s%lld", s ? "+" : "", (long long)e->range[s].n);
    int64_t n_params = 0;
    for (int i = 0; i < e->whole.n; i++)
        if (!e->whole.at[i]->tied_copy) n_params += tensor_size(e->whole.at[i]->value);
    log_line(&t->log,
             "%s: %lld parameters in %lld layers (%s) on %d ranks of %d threads, kernels %s, "
             "schedule %s, %lld "
             "steps of %lld rows",
             e->model->family->model_type, (long long)n_params, (long long)e->model->n_layers,
             split.text, t->world->size, e->be.n_threads, e->be.name, t->config->parallel.schedule,
             (long long)t->plan->n_steps, (long long)t->config->train.global_batch_size);
    if (t->world->placement && *t->world->placement) log_line(&t->log, "%s", t->world->placement);
    show_mesh(t);
    profile_warn(t->config, t->plan->n_steps, &t->log);
    if (t->plan->checkpoint)
        log_line(&t->log, "resumed from %s (checked in %.2f s, read in %.2f s)",
                 t->plan->checkpoint, t->plan->check_seconds, e->load_seconds);
    const char *path = path_join(&e->step, t->config->train.output, "metrics.jsonl");
    int64_t done = t->plan->state.step;
    TRY(metrics_open(&t->metrics, path, t->plan->checkpoint ? done : -1, &e->arena));
    if (t->metrics.last_step < done)
        log_warning(
            &t->log,
            "%s ends at step %lld, and the checkpoint is of step %lld: what lies between is "
            "missing",
            path, (long long)t->metrics.last_step, (long long)done);
    return OK;
}

static EngineSetup engine_setup(const TrainPlan *plan)
{
    EngineSetup setup = {
        .config = plan->config,
        .model = plan->model,
        .weights = plan->weights,
        .max_positions = 1,
        .row_tokens = 1,
        .n_train = (int)(plan->config->train.global_batch_size / plan->config->parallel.dp_size)};
    if (plan->train) {
        setup.max_positions = dataset_longest(plan->train);
        setup.row_tokens = dataset_n_tokens(plan->train) / dataset_n_rows(plan->train);
    }
    if (plan->eval) {
        evaluate_passes(setup.n_forward, dataset_n_rows(plan->eval),
                        plan->config->parallel.dp_size);
        if (dataset_longest(plan->eval) > setup.max_positions)
            setup.max_positions = dataset_longest(plan->eval);
    }
    return setup;
}

/* Memory for saving, and what all of it will take. */
static Status prepare_saves(Trainer *t)
{
    TRY(saver_create(&t->saver, t->engine, &t->log));
    t->deadline = deadline_begin(t->plan->stop_before, saver_checkpoint_bytes(t->saver));
    return memory_plan_log(t->engine, dataset_longest(t->plan->train),
                           t->plan->eval ? dataset_longest(t->plan->eval) : 0,
                           saver_copy_bytes(t->saver), t->lead ? &t->log : NULL);
}

Status train_run(const TrainPlan *plan, Comm *world)
{
    Trainer t = {.plan = plan,
                 .config = plan->config,
                 .world = world,
                 .lead = world->rank == 0,
                 .state = plan->state,
                 .metrics = {.fd = -1}};
    Arena paths;
    arena_init(&paths, "paths");
    Status status =
        comm_agree(world, log_open(&t.log, path_join(&paths, plan->config->train.output, "log.txt"),
                                   world->rank, t.lead));
    EngineSetup setup = engine_setup(plan);
    if (status == OK) status = engine_create(&t.engine, &setup, world, t.lead ? &t.log : NULL);
    if (status == OK) status = comm_agree(world, describe(&t));
    if (status == OK && plan->train) status = prepare_saves(&t);
    if (status == OK && plan->train)
        status = comm_agree(world, predict_bubble(&t.bubble_predicted, t.engine));
    if (status == OK) status = AFTER_START(loop(&t));
    if (status != OK && status != ERR_PEER && status != ERR_STOPPED)
        log_file_line(&t.log, "stagewright: error: %s", status_message());
    saver_free(&t.saver);
    metrics_close(&t.metrics);
    log_close(&t.log);
    engine_free(&t.engine);
    arena_free(&paths);
    return status;
}
