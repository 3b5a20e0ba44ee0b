#include "train/config.h"
#include "base/arena_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Status parse(TrainConfig *config, const char *text, Arena *arena)
{
    return config_parse(config, "a.yaml", text, strlen(text), arena);
}

static char *dump(const TrainConfig *config, Arena *arena)
{
    TextBuffer out;
    text_buffer_init(&out, arena);
    config_dump(&out, config);
    return out.text;
}

/* Every key with its default, in the order of the documentation; what stands in for another default is
 * marked. */
static const char defaults[] = "model:\n"
                               "  path: models/tiny\n"
                               "  init: false\n"
                               "  dtype: bf16\n"
                               "  chat_template: auto\n"
                               "  extra_tensors: refuse\n"
                               "parallel:\n"
                               "  pp_size: 1\n"
                               "  schedule: 1f1b\n"
                               "  num_virtual_stages: null\n"
                               "  layer_split: null\n"
                               "  activation_limit: null\n"
                               "  dp_size: 1\n"
                               "  ep_size: 1\n"
                               "  sp_size: 1\n"
                               "  tp_size: 1\n"
                               "  zero_stage: 0\n"
                               "data:\n"
                               "  train: [data/train.jsonl]\n"
                               "  eval: []\n"
                               "  format: auto\n"
                               "  pack: soft\n"
                               "  max_length: 4096\n"
                               "  append_eos: true\n"
                               "  skip_bad_lines: false\n"
                               "  seed: null\n"
                               "  cache_dir: null\n"
                               "train:\n"
                               "  output: null\n"
                               "  steps: null\n"
                               "  epochs: null\n"
                               "  global_batch_size: 8\n"
                               "  seed: 42\n"
                               "  recompute_ratio: 0.0\n"
                               "  max_grad_norm: 1.0\n"
                               "  skip_grad_norm_threshold: null\n"
                               "  eval_interval: null\n"
                               "  profile_steps: []\n"
                               "  hang_timeout: 600\n"
                               "  stop_before: null\n"
                               "  threads: null\n"
                               "  isa: auto\n"
                               "loss:\n"
                               "  reduction: token\n"
                               "  mode: chunk\n"
                               "  chunk_size: 1024\n"
                               "  balancing_alpha: auto\n"
                               "  balancing_form: per_layer\n"
                               "  balancing_scope: row\n"
                               "  z_alpha: 0.0\n"
                               "optimizer:\n"
                               "  type: adamw\n"
                               "  lr: 0.0001\n"
                               "  betas: [0.9, 0.95]\n"
                               "  eps: 1.0e-08\n"
                               "  weight_decay: 0.01\n"
                               "  decay_1d: true\n"
                               "  groups: []\n"
                               "lr_schedule:\n"
                               "  type: cosine\n"
                               "  warmup: 0.03\n"
                               "  lr_min: 1.0e-06\n"
                               "checkpoint:\n"
                               "  interval: null\n"
                               "  keep: 2\n"
                               "  async: true\n"
                               "  required: false\n"
                               "  hf_interval: null\n"
                               "  hf_keep: null\n"
                               "  hf_dtype: auto\n"
                               "log:\n"
                               "  interval: 1\n"
                               "  trackers: [jsonl]\n";

static void config__defaults_are_those_of_the_documentation(void **state)
{
    TrainConfig config;
    assert_int_equal(config_defaults(&config, *state), OK);
    assert_string_equal(dump(&config, *state), defaults);
}

static void config__default_fields_hold_what_is_said(void **state)
{
    TrainConfig c;
    assert_int_equal(config_defaults(&c, *state), OK);
    assert_int_equal(c.model.dtype, DTYPE_BF16);
    assert_int_equal(c.model.extra_tensors, EXTRA_REFUSE);
    assert_int_equal(c.parallel.num_virtual_stages, -1);
    assert_null(c.parallel.layer_split.at);
    assert_int_equal(c.data.train.n, 1);
    assert_string_equal(c.data.train.at[0].path, "data/train.jsonl");
    assert_true(c.data.train.at[0].ratio == 1);
    assert_int_equal(c.data.format, DATA_AUTO);
    assert_int_equal(c.data.pack, PACK_SOFT);
    assert_int_equal(c.data.seed, -1);
    assert_null(c.train.output);
    assert_int_equal(c.train.steps, -1);
    assert_true(isnan(c.train.epochs));
    assert_true(isnan(c.train.skip_grad_norm_threshold));
    assert_int_equal(c.train.threads, -1);
    assert_int_equal(c.loss.reduction, REDUCTION_TOKEN);
    assert_int_equal(c.loss.mode, LOSS_CHUNK);
    assert_true(isnan(c.loss.balancing_alpha));
    assert_int_equal(c.optimizer.type, OPTIMIZER_ADAMW);
    assert_true(c.optimizer.betas[0] == 0.9 && c.optimizer.betas[1] == 0.95);
    assert_int_equal(c.lr_schedule.type, LR_COSINE);
    assert_int_equal(c.checkpoint.hf_dtype, DTYPE_COUNT);
    assert_int_equal(c.checkpoint.interval, -1);
    assert_int_equal(c.log.trackers.n, 1);
}

static void config__what_follows_is_filled_in(void **state)
{
    TrainConfig c;
    assert_int_equal(parse(&c, "train: {seed: 7}\noptimizer: {lr: 1e-7}", *state), OK);
    assert_true(c.train.epochs == 1);
    assert_int_equal(c.train.steps, -1);
    assert_int_equal(c.data.seed, 7);
    assert_int_equal(c.parallel.num_virtual_stages, 1);
    assert_true(c.lr_schedule.lr_min == 1e-7);
    assert_int_equal(parse(&c, "train: {steps: 5}\ndata: {seed: 3}", *state), OK);
    assert_true(isnan(c.train.epochs));
    assert_int_equal(c.train.steps, 5);
    assert_int_equal(c.data.seed, 3);
    assert_true(c.lr_schedule.lr_min == 1e-6);
}

/* A value for every key that is not its default. */
static const char others[] =
    "model: {path: \"m o\", init: true, dtype: f32, chat_template: chatml, extra_tensors: carry}\n"
    "parallel: {pp_size: 2, schedule: gpipe, num_virtual_stages: 1, layer_split: [3, 1], dp_size: "
    "1}\n"
    "data: {train: [a, {path: b*, ratio: 0.5}], eval: e.jsonl, format: ids, pack: none,\n"
    "       max_length: 33, append_eos: false, skip_bad_lines: true, seed: 9, cache_dir: /tmp/c}\n"
    "train: {output: runs/x, steps: 10, global_batch_size: 3, seed: 0, recompute_ratio: 0.29,\n"
    "        max_grad_norm: 0, skip_grad_norm_threshold: 1.5, eval_interval: 4, hang_timeout: 10m, "
    "threads: 2}\n"
    "loss: {reduction: square, mode: full, chunk_size: 16, balancing_alpha: 0, z_alpha: 1e-3}\n"
    "optimizer: {type: sgd, lr: 1, betas: [0, 0.5], eps: 1e-3, weight_decay: 0, decay_1d: false,\n"
    "            groups: [{match: '*embed*', lr_scale: 0.1, weight_decay: 0, trainable: false}, "
    "{match: x}]}\n"
    "lr_schedule: {type: constant, warmup: 5, lr_min: 0}\n"
    "checkpoint: {interval: 2, keep: 1, hf_interval: 3, hf_keep: 4, hf_dtype: bf16}\n"
    "log: {interval: 10, trackers: []}\n";

static void config__dump_reads_back_to_the_same(void **state)
{
    static const char *const texts[] = {"", others};
    for (size_t i = 0; i < 2; i++) {
        TrainConfig first, again;
        if (parse(&first, texts[i], *state) != OK) fail_msg("%s", status_message());
        const char *text = dump(&first, *state);
        if (parse(&again, text, *state) != OK) fail_msg("%s: %s", text, status_message());
        assert_string_equal(dump(&again, *state), text);
    }
}

static void config__values_arrive_in_their_fields(void **state)
{
    TrainConfig c;
    assert_int_equal(parse(&c, others, *state), OK);
    assert_string_equal(c.model.path, "m o");
    assert_true(c.model.init);
    assert_int_equal(c.model.extra_tensors, EXTRA_CARRY);
    assert_int_equal(c.parallel.pp_size, 2);
    assert_string_equal(c.parallel.schedule, "gpipe");
    assert_int_equal(c.parallel.layer_split.n, 2);
    assert_int_equal(c.parallel.layer_split.at[0], 3);
    assert_int_equal(c.data.train.n, 2);
    assert_string_equal(c.data.train.at[1].path, "b*");
    assert_true(c.data.train.at[1].ratio == 0.5);
    assert_string_equal(c.data.eval.at[0].path, "e.jsonl");
    assert_int_equal(c.data.pack, PACK_NONE);
    assert_true(c.train.recompute_ratio == 0.29);
    assert_true(c.train.max_grad_norm == 0);
    assert_int_equal(c.loss.mode, LOSS_FULL);
    assert_int_equal(c.optimizer.type, OPTIMIZER_SGD);
    assert_int_equal(c.optimizer.groups.n, 2);
    assert_string_equal(c.optimizer.groups.at[0].match, "*embed*");
    assert_false(c.optimizer.groups.at[0].trainable);
    assert_true(c.optimizer.groups.at[0].weight_decay == 0);
    assert_true(isnan(c.optimizer.groups.at[1].weight_decay));
    assert_true(c.optimizer.groups.at[1].lr_scale == 1);
    assert_true(c.optimizer.groups.at[1].trainable);
    assert_int_equal(c.checkpoint.hf_dtype, DTYPE_BF16);
    assert_int_equal(c.log.trackers.n, 0);
}

static const struct {
    const char *set;
    Status status;
    const char *says[4];
} refusals[] = {
    /* known, but not there yet */
    {"model.chat_template=llama3", ERR_UNSUPPORTED, {"model.chat_template: llama3 is not avail"}},
    {"model.chat_template=deepseek_v3", ERR_UNSUPPORTED, {"deepseek_v3 is not available yet"}},
    {"model.chat_template=gpt_oss", ERR_UNSUPPORTED, {"gpt_oss is not available yet"}},
    {"parallel.schedule=auto", ERR_UNSUPPORTED, {"parallel.schedule", "auto is not available yet"}},
    {"parallel.activation_limit=5GB", ERR_UNSUPPORTED, {"5000000000 is not available yet"}},
    {"parallel.dp_size=0", ERR_USAGE, {"parallel.dp_size", "found 0"}},
    {"parallel.ep_size=0", ERR_USAGE, {"parallel.ep_size", "found 0"}},
    {"parallel.sp_size=2", ERR_UNSUPPORTED, {"parallel.sp_size: 2 is not available yet"}},
    {"parallel.tp_size=2", ERR_UNSUPPORTED, {"parallel.tp_size: 2 is not available yet"}},
    {"parallel.zero_stage=2", ERR_USAGE, {"parallel.zero_stage", "found 2"}},
    {"train.profile_steps=[0]", ERR_USAGE, {"train.profile_steps[0]", "found 0"}},
    {"train.hang_timeout=0", ERR_USAGE, {"train.hang_timeout", "found 0"}},
    {"train.stop_before=2w", ERR_USAGE, {"train.stop_before", "2w", "18:30", "2h30m"}},
    {"optimizer.type=muon", ERR_UNSUPPORTED, {"optimizer.type: muon is not available yet"}},
    {"log.trackers=[jsonl, tensorboard]", ERR_UNSUPPORTED, {"tensorboard is not available yet"}},
    /* wrong */
    {"parallel.pp_size=0", ERR_USAGE, {"parallel.pp_size", "found 0", "from 1"}},
    {"parallel.schedule=1f1", ERR_USAGE, {"parallel.schedule", "1f1", "1f1b"}},
    {"parallel.num_virtual_stages=2", ERR_USAGE, {"num_virtual_stages", "1f1b", "found 2"}},
    {"parallel.num_virtual_stages=65", ERR_USAGE, {"num_virtual_stages", "found 65"}},
    {"parallel.layer_split=[1, 0]", ERR_USAGE, {"parallel.layer_split[1]", "found 0"}},
    {"parallel.layer_split=[1, 2]", ERR_USAGE, {"parallel.layer_split", "2 counts", "pp_size 1"}},
    {"data.train=[{path: a, ratio: 0}]", ERR_USAGE, {"data.train[0].ratio", "found 0"}},
    {"data.train=[{path: a, weight: 1}]", ERR_USAGE, {"data.train[0]", "unknown key weight"}},
    {"data.pack=sofd", ERR_USAGE, {"data.pack", "did you mean soft?"}},
    {"data.max_length=0", ERR_USAGE, {"data.max_length", "found 0"}},
    {"train.steps=-1", ERR_USAGE, {"train.steps", "found -1", "at least 0", "null"}},
    {"train.epochs=0", ERR_USAGE, {"train.epochs", "found 0", "above 0"}},
    {"train.global_batch_size=0", ERR_USAGE, {"train.global_batch_size", "found 0"}},
    {"train.recompute_ratio=1.5", ERR_USAGE, {"train.recompute_ratio", "found 1.5"}},
    {"train.max_grad_norm=-1", ERR_USAGE, {"train.max_grad_norm", "found -1"}},
    {"train.step=3", ERR_USAGE, {"train.step", "did you mean train.steps?"}},
    {"train.lr=1", ERR_USAGE, {"train.lr", "did you mean optimizer.lr?"}},
    {"trian.steps=3", ERR_USAGE, {"trian", "did you mean train?"}},
    {"optimizer.betas=[0.9, 1.0]", ERR_USAGE, {"optimizer.betas", "out of range"}},
    {"optimizer.betas=[0.9]", ERR_USAGE, {"optimizer.betas", "two numbers"}},
    {"optimizer.eps=0", ERR_USAGE, {"optimizer.eps", "found 0", "above 0"}},
    {"optimizer.lr=-1", ERR_USAGE, {"optimizer.lr", "found -1"}},
    {"optimizer.groups=[{lr_scale: 2}]", ERR_USAGE, {"optimizer.groups[0].match", "missing"}},
    {"lr_schedule.warmup=1.5", ERR_USAGE, {"lr_schedule.warmup", "found 1.5", "whole number"}},
    {"lr_schedule.warmup=-0.1", ERR_USAGE, {"lr_schedule.warmup", "found -0.1"}},
    {"lr_schedule.type=cosin", ERR_USAGE, {"lr_schedule.type", "did you mean cosine?"}},
    {"checkpoint.keep=0", ERR_USAGE, {"checkpoint.keep", "found 0"}},
    {"checkpoint.interval=0", ERR_USAGE, {"checkpoint.interval", "found 0", "null"}},
    {"log.interval=0", ERR_USAGE, {"log.interval", "found 0"}},
};

static void config__refuses_naming_key_found_and_expected(void **state)
{
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        TrainConfig config;
        Status st = config_load(&config, NULL, &refusals[i].set, 1, *state);
        if (st != refusals[i].status)
            fail_msg("%s: status %d: %s", refusals[i].set, st, st ? status_message() : "accepted");
        for (int k = 0; k < 4 && refusals[i].says[k]; k++)
            if (!strstr(status_message(), refusals[i].says[k]))
                fail_msg("%s: not \"%s\" in: %s", refusals[i].set, refusals[i].says[k],
                         status_message());
    }
}

static void config__accepts_the_named_available_values(void **state)
{
    static const char *const sets[] = {
        "model.dtype=f32",         "model.chat_template=none", "parallel.schedule=gpipe",
        "parallel.dp_size=null",   "parallel.pp_size=4",       "data.pack=hard",
        "train.profile_steps=[5]", "train.hang_timeout=5m",    "train.stop_before=null",
        "train.steps=0",           "optimizer.lr=0",           "train.stop_before=600",
        "loss.reduction=sample",   "lr_schedule.warmup=0",     "lr_schedule.warmup=10",
        "log.trackers=jsonl",
    };
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        TrainConfig config;
        if (config_load(&config, NULL, &sets[i], 1, *state) != OK)
            fail_msg("%s: %s", sets[i], status_message());
    }
}

static void config__virtual_stages_follow_the_schedule(void **state)
{
    static const struct {
        const char *schedule;
        int n_virtual; /* -1: a file says it */
    } rows[] = {{"1f1b", 1}, {"looped_bfs", 1}, {"zb_h2", 1},     {"interleaved", 2}, {"zb1p", 2},
                {"zbv", 2},  {"vhalf", 2},      {"dualpipev", 2}, {"x/y.csv", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        TrainConfig config;
        char text[80];
        snprintf(text, sizeof text, "parallel: {schedule: %s}", rows[i].schedule);
        assert_int_equal(parse(&config, text, *state), OK);
        assert_int_equal(config.parallel.num_virtual_stages, rows[i].n_virtual);
    }
}

static void config__steps_and_epochs_exclude_each_other(void **state)
{
    TrainConfig config;
    assert_int_equal(parse(&config, "train: {steps: 3, epochs: 2}", *state), ERR_USAGE);
    assert_non_null(strstr(status_message(), "a.yaml: train.steps and train.epochs"));
    assert_non_null(strstr(status_message(), "found 3 and 2"));
}

static void config__sets_win_over_the_file_and_the_last_wins(void **state)
{
    char dir[] = "/tmp/test_config.XXXXXX";
    assert_non_null(mkdtemp(dir));
    const char *path = path_join(*state, dir, "run.yaml");
    FILE *file = fopen(path, "w");
    fputs("train:\n  steps: 3\n  seed: 1\nlog:\n  intervall: 2\n", file);
    fclose(file);
    static const char *const sets[] = {"train.steps=4", "train.steps=5"};
    TrainConfig config;
    assert_int_equal(config_load(&config, path, sets, 2, *state), ERR_USAGE);
    assert_non_null(strstr(status_message(), text_format(*state, "%s:5:3: unknown key", path)));
    assert_non_null(strstr(status_message(), "did you mean log.interval?"));
    file = fopen(path, "w");
    fputs("train:\n  steps: 3\n  seed: 1\n", file);
    fclose(file);
    assert_int_equal(config_load(&config, path, sets, 2, *state), OK);
    assert_int_equal(config.train.steps, 5);
    assert_int_equal(config.train.seed, 1);
    unlink(path);
    rmdir(dir);
    assert_int_equal(config_load(&config, path, sets, 2, *state), ERR_IO);
}

static void config__a_run_needs_an_output_and_data(void **state)
{
    TrainConfig config;
    assert_int_equal(parse(&config, "", *state), OK);
    assert_int_equal(config_require_run(&config, "a.yaml"), ERR_USAGE);
    assert_non_null(strstr(status_message(), "a.yaml: train.output: missing"));
    assert_int_equal(parse(&config, "train: {output: x}\ndata: {train: []}", *state), OK);
    assert_int_equal(config_require_run(&config, "a.yaml"), ERR_USAGE);
    assert_non_null(strstr(status_message(), "data.train"));
    assert_int_equal(parse(&config, "train: {output: x}", *state), OK);
    assert_int_equal(config_require_run(&config, "a.yaml"), OK);
    config.parallel.dp_size = 3;
    assert_int_equal(config_require_run(&config, "a.yaml"), ERR_USAGE);
    assert_non_null(strstr(status_message(),
                           "global_batch_size must be a multiple of parallel.dp_size "
                           "(found 8 and 3)"));
}

static void config__axes_are_checked_against_the_ranks(void **state)
{
    TrainConfig c;
    int n = 0;
    assert_int_equal(parse(&c, "parallel: {pp_size: 2}", *state), OK);
    assert_int_equal(config_fit_world(&c, false, 1, "a.yaml", &n), OK);
    assert_int_equal(n, 2);
    assert_int_equal(config_fit_world(&c, true, 2, "a.yaml", &n), OK);
    assert_int_equal(config_fit_world(&c, true, 3, "a.yaml", &n), ERR_USAGE);
    assert_non_null(strstr(status_message(), "pp_size 2 * dp_size 1"));
    assert_non_null(strstr(status_message(), "= 2 ranks, but 3 were started"));

    assert_int_equal(parse(&c, "parallel: {pp_size: 2, dp_size: null}", *state), OK);
    assert_int_equal(c.parallel.dp_size, -1);
    assert_int_equal(config_fit_world(&c, true, 3, "a.yaml", &n), ERR_USAGE);
    assert_non_null(strstr(status_message(), "the 3 ranks started do not divide by pp_size 2"));
    assert_int_equal(config_fit_world(&c, true, 4, "a.yaml", &n), OK);
    assert_int_equal(c.parallel.dp_size, 2);
    c.parallel.dp_size = -1;
    assert_int_equal(config_fit_world(&c, true, 2, "a.yaml", &n), OK);
    assert_int_equal(c.parallel.dp_size, 1);
    c.parallel.dp_size = -1;
    assert_int_equal(config_fit_world(&c, false, 0, "a.yaml", &n), OK);
    assert_int_equal(c.parallel.dp_size, 1);
    assert_int_equal(n, 2);
}

/* One change a row: may a run go on with it? key: the one the refusal names. */
static const struct {
    const char *before, *after, *key;
} resumes[] = {
    {"", "", NULL},
    {"train.steps=3", "train.steps=6", "train.steps"},
    {"train.epochs=3", "train.epochs=6", "train.epochs"},
    {"optimizer.lr=0.1", "optimizer.lr=0.2", "optimizer.lr"},
    {"train.seed=1", "train.seed=2", "train.seed"},
    {"data.train=a", "data.train=b", "data.train"},
    {"train.global_batch_size=8", "train.global_batch_size=4", "train.global_batch_size"},
    {"optimizer.groups=[]", "optimizer.groups=[{match: a, trainable: false}]", "optimizer.groups"},
    {"loss.z_alpha=0", "loss.z_alpha=1", "loss.z_alpha"},
    {"data.max_length=8", "data.max_length=9", "data.max_length"},
    {"lr_schedule.warmup=0", "lr_schedule.warmup=1", "lr_schedule.warmup"},
    {"parallel.pp_size=1", "parallel.pp_size=2", NULL},
    {"parallel.dp_size=1", "parallel.dp_size=2", NULL},
    {"parallel.zero_stage=1", "parallel.zero_stage=0", NULL},
    {"parallel.schedule=1f1b", "parallel.schedule=gpipe", NULL},
    {"parallel.layer_split=null", "parallel.layer_split=[4]", NULL},
    {"train.recompute_ratio=0", "train.recompute_ratio=0.5", NULL},
    {"train.output=a", "train.output=b", NULL},
    {"train.threads=1", "train.threads=2", NULL},
    {"model.path=a", "model.path=b", NULL},
    {"checkpoint.interval=1", "checkpoint.interval=2", NULL},
    {"data.eval=[]", "data.eval=[a]", NULL},
    {"log.interval=1", "log.interval=2", NULL},
    {"loss.chunk_size=1", "loss.chunk_size=2", NULL},
};

static const ResumePoint start = {.step = 0, .n_rows = 10};

static void config__resume_refuses_changes_of_the_maths(void **state)
{
    for (size_t i = 0; i < sizeof resumes / sizeof resumes[0]; i++) {
        TrainConfig before, after;
        int n = *resumes[i].before != '\0';
        assert_int_equal(config_load(&before, NULL, &resumes[i].before, n, *state), OK);
        assert_int_equal(config_load(&after, NULL, &resumes[i].after, n, *state), OK);
        Status st = config_check_resume(&before, &after, start, "a.yaml", *state);
        if (st != (resumes[i].key ? ERR_USAGE : OK)) fail_msg("%s: %d", resumes[i].after, st);
        if (resumes[i].key &&
            !strstr(status_message(), text_format(*state, "a.yaml: %s changed", resumes[i].key)))
            fail_msg("%s: %s", resumes[i].after, status_message());
    }
}

static void config__a_constant_rate_may_go_on_longer(void **state)
{
    static const struct {
        const char *before, *after;
        bool ok;
    } rows[] = {
        {"train.steps=3", "train.steps=6", true},   {"train.steps=6", "train.steps=3", false},
        {"train.epochs=1", "train.epochs=2", true}, {"train.epochs=2", "train.epochs=1", false},
        {"train.epochs=1", "train.steps=9", false}, {"train.steps=9", "train.epochs=1", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        TrainConfig before, after;
        const char *first[] = {"lr_schedule.type=constant", "lr_schedule.warmup=2", rows[i].before};
        const char *second[] = {first[0], first[1], rows[i].after};
        assert_int_equal(config_load(&before, NULL, first, 3, *state), OK);
        assert_int_equal(config_load(&after, NULL, second, 3, *state), OK);
        Status st = config_check_resume(&before, &after, start, "a.yaml", *state);
        if ((st == OK) != rows[i].ok) fail_msg("%s to %s: %d", rows[i].before, rows[i].after, st);
    }
}

/* A warm-up that is a ratio grows with the run: it must be over in both, or be written in steps. */
static void config__a_longer_run_keeps_its_warmup(void **state)
{
    // clang-format off
    static const struct {
        const char *before[2], *after[2];
        int64_t step;
        bool ok;
    } rows[] = {
        {{"train.steps=4", "lr_schedule.warmup=0.5"}, {"train.steps=20", "lr_schedule.warmup=0.5"}, 4, false}, /* 2 steps, and 10 */
        {{"train.steps=4", "lr_schedule.warmup=0.5"}, {"train.steps=20", "lr_schedule.warmup=0.5"}, 9, false},
        {{"train.steps=4", "lr_schedule.warmup=0.5"}, {"train.steps=20", "lr_schedule.warmup=0.5"}, 10, true},
        {{"train.steps=4", "lr_schedule.warmup=0.5"}, {"train.steps=20", "lr_schedule.warmup=2"}, 1, true},
        {{"train.steps=4", "lr_schedule.warmup=0.1"}, {"train.steps=9", "lr_schedule.warmup=0.1"}, 1, true}, /* none in both */
        {{"train.steps=4", "lr_schedule.warmup=0.5"}, {"train.steps=20", "lr_schedule.warmup=3"}, 4, false}, /* another warm-up */
        {{"train.steps=4", "lr_schedule.warmup=0.5"}, {"train.steps=4", "lr_schedule.warmup=0.5"}, 1, true},
        {{"train.epochs=4", "lr_schedule.warmup=0.5"}, {"train.epochs=20", "lr_schedule.warmup=0.5"}, 4, false}, /* 5 steps of 8 rows, and 25 */
        {{"train.epochs=4", "lr_schedule.warmup=0.5"}, {"train.epochs=20", "lr_schedule.warmup=0.5"}, 12, true},
    };
    // clang-format on
    const char *constant = "lr_schedule.type=constant";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        TrainConfig before, after;
        const char *first[] = {constant, rows[i].before[0], rows[i].before[1]};
        const char *second[] = {constant, rows[i].after[0], rows[i].after[1]};
        assert_int_equal(config_load(&before, NULL, first, 3, *state), OK);
        assert_int_equal(config_load(&after, NULL, second, 3, *state), OK);
        const ResumePoint at = {rows[i].step, 10};
        Status st = config_check_resume(&before, &after, at, "a.yaml", *state);
        if ((st == OK) != rows[i].ok) fail_msg("row %zu: %d", i, st);
        if (st != OK && !strstr(status_message(), "a.yaml: lr_schedule.warmup"))
            fail_msg("row %zu: %s", i, status_message());
        if (i == 0) assert_non_null(strstr(status_message(), "lr_schedule.warmup 2;"));
    }
}

/* There, and only there, the value depends on how many ranks share out the rows. */
static void config__scope_global_keeps_a_run_to_its_dp_size(void **state)
{
    const char *scope[] = {"loss.balancing_scope=row", "loss.balancing_scope=global"};
    for (int i = 0; i < 2; i++) {
        TrainConfig before, after;
        const char *second[] = {scope[i], "parallel.dp_size=2"};
        assert_int_equal(config_load(&before, NULL, &scope[i], 1, *state), OK);
        assert_int_equal(config_load(&after, NULL, second, 2, *state), OK);
        assert_int_equal(config_check_resume(&before, &after, start, "a.yaml", *state),
                         i ? ERR_USAGE : OK);
        if (i) assert_non_null(strstr(status_message(), "parallel.dp_size changed"));
    }
}

static void config__diff_lists_both_values(void **state)
{
    TrainConfig before, after;
    assert_int_equal(parse(&before, "", *state), OK);
    assert_int_equal(parse(&after, "optimizer: {lr: 0.5}\ntrain: {threads: 3}", *state), OK);
    ConfigChange *change;
    int n;
    config_diff(&before, &after, *state, &change, &n);
    assert_int_equal(n, 2);
    assert_string_equal(change[0].key, "train.threads");
    assert_string_equal(change[0].before, "null");
    assert_string_equal(change[0].after, "3");
    assert_false(change[0].maths);
    assert_string_equal(change[1].key, "optimizer.lr");
    assert_string_equal(change[1].before, "0.0001");
    assert_string_equal(change[1].after, "0.5");
    assert_true(change[1].maths);
}

static void config__help_shows_the_defaults_that_take_effect(void **state)
{
    TextBuffer out;
    text_buffer_init(&out, *state);
    config_help(&out);
    static const char *const lines[] = {"  dtype: bf16 ",       "  async: true ",
                                        "  trackers: [jsonl] ", "  lr: 1.0e-4 ",
                                        "train: the run\n",     "\nlog: "};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        if (!strstr(out.text, lines[i])) fail_msg("%s is missing", lines[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config__defaults_are_those_of_the_documentation),
        cmocka_unit_test(config__default_fields_hold_what_is_said),
        cmocka_unit_test(config__what_follows_is_filled_in),
        cmocka_unit_test(config__dump_reads_back_to_the_same),
        cmocka_unit_test(config__values_arrive_in_their_fields),
        cmocka_unit_test(config__refuses_naming_key_found_and_expected),
        cmocka_unit_test(config__accepts_the_named_available_values),
        cmocka_unit_test(config__virtual_stages_follow_the_schedule),
        cmocka_unit_test(config__steps_and_epochs_exclude_each_other),
        cmocka_unit_test(config__sets_win_over_the_file_and_the_last_wins),
        cmocka_unit_test(config__a_run_needs_an_output_and_data),
        cmocka_unit_test(config__axes_are_checked_against_the_ranks),
        cmocka_unit_test(config__resume_refuses_changes_of_the_maths),
        cmocka_unit_test(config__a_constant_rate_may_go_on_longer),
        cmocka_unit_test(config__a_longer_run_keeps_its_warmup),
        cmocka_unit_test(config__scope_global_keeps_a_run_to_its_dp_size),
        cmocka_unit_test(config__diff_lists_both_values),
        cmocka_unit_test(config__help_shows_the_defaults_that_take_effect),
    };
    return cmocka_run_group_tests(tests, arena_setup, arena_teardown);
}
