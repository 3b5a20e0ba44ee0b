/* The keys of a configuration: one row each, and nothing else. */
#include "train/config.h"

#include <math.h>

// clang-format off
static const OptionChoice dtypes[] = {{"f32", DTYPE_F32}, {"bf16", DTYPE_BF16}, {0}};
static const OptionChoice hf_dtypes[] = {{"auto", DTYPE_COUNT}, {"bf16", DTYPE_BF16}, {"f32", DTYPE_F32}, {0}};
static const OptionChoice templates[] = {
    {"auto", 0}, {"chatml", 0}, {"qwen3", 0}, {"llama3", 0}, {"deepseek_v3", 0}, {"gpt_oss", 0}, {"none", 0}, {0}};
static const OptionChoice extras[] = {{"refuse", EXTRA_REFUSE}, {"carry", EXTRA_CARRY}, {0}};
static const OptionChoice formats[] = {
    {"auto", DATA_AUTO}, {"messages", DATA_MESSAGES}, {"text", DATA_TEXT}, {"ids", DATA_IDS}, {0}};
static const OptionChoice packs[] = {{"soft", PACK_SOFT}, {"hard", PACK_HARD}, {"none", PACK_NONE}, {0}};
static const OptionChoice isas[] = {{"auto", 0}, {"amx", 0}, {"avx512", 0}, {"avx2", 0}, {"generic", 0}, {0}};
static const OptionChoice reductions[] = {
    {"token", REDUCTION_TOKEN}, {"sample", REDUCTION_SAMPLE}, {"square", REDUCTION_SQUARE}, {0}};
static const OptionChoice loss_modes[] = {{"chunk", LOSS_CHUNK}, {"full", LOSS_FULL}, {0}};
static const OptionChoice forms[] = {{"per_layer", BALANCING_PER_LAYER}, {"hf", BALANCING_HF}, {0}};
static const OptionChoice scopes[] = {{"row", BALANCING_ROW}, {"global", BALANCING_GLOBAL}, {0}};
static const OptionChoice optimizers[] = {
    {"adamw", OPTIMIZER_ADAMW}, {"sgd", OPTIMIZER_SGD}, {"muon", OPTIMIZER_MUON}, {0}};
static const OptionChoice lr_types[] = {
    {"cosine", LR_COSINE}, {"linear", LR_LINEAR}, {"constant", LR_CONSTANT}, {0}};
static const OptionChoice trackers[] = {{"jsonl", 0}, {"tensorboard", 0}, {0}};

/* name, type, field, default of the contract, limits, help; then what not every
   row has */
#define AT(field) OPTION_AT(ModelSection, field)
static const OptionSpec model_rows[] = {
    {"path",          OPT_TEXT, AT(path),          "models/tiny", OPTION_ANY, .help = "HuggingFace folder or checkpoint: config.json, *.safetensors, tokenizer.json"},
    {"init",          OPT_BOOL, AT(init),          "false",  OPTION_ANY, .help = "random weights from config.json instead of the safetensors"},
    {"dtype",         OPT_ENUM, AT(dtype),         "bf16",   OPTION_CHOICES(dtypes), .help = "of activations and working weights; masters, gradients, moments and sums are f32", .maths = true},
    {"chat_template", OPT_NAME, AT(chat_template), "auto",   OPTION_CHOICES(templates), .help = "how conversations become text; auto: by model_type", .built = "auto chatml qwen3 none", .maths = true},
    {"extra_tensors", OPT_ENUM, AT(extra_tensors), "refuse", OPTION_CHOICES(extras), .help = "tensors the model family does not know: an error, or copied to the export"},
    {0}};
#undef AT
#define AT(field) OPTION_AT(ParallelSection, field)
static const OptionSpec parallel_rows[] = {
    {"pp_size",            OPT_INT,  AT(pp_size),            "1",    OPTION_RANGE(1, 1024), .help = "pipeline ranks"},
    {"schedule",           OPT_TEXT, AT(schedule),           "1f1b", OPTION_ANY, .help = "order of forward and backward work: gpipe, 1f1b, interleaved, looped_bfs, zb_h1, zb_h2, zb1p, zbv, vhalf, vmin, dualpipev, or PATH.csv, a line per rank with cells such as 2F0"},
    {"num_virtual_stages", OPT_INT,  AT(num_virtual_stages), "null", OPTION_RANGE(1, 64), .help = "stages per pipeline rank; null: 2 for interleaved, zb1p, zbv, vhalf, vmin and dualpipev, what a file says, else 1", .unset = "null"},
    {"layer_split",        OPT_INTS, AT(layer_split),        "null", OPTION_RANGE(1, 100000), .help = "layers of each stage, in order; null: balanced by what they cost in time, embedding and head too", .unset = "null"},
    {"activation_limit",   OPT_SIZE, AT(activation_limit),   "null", OPTION_AT_LEAST(1), .help = "bytes per rank, for schedule auto", .unset = "null", .built = "null"},
    {"dp_size",            OPT_INT,  AT(dp_size),            "1",    OPTION_RANGE(1, 65536), .help = "data-parallel ranks; null: what the number of ranks leaves", .unset = "null"},
    {"ep_size",            OPT_INT,  AT(ep_size),            "1",    OPTION_RANGE(1, 1024), .help = "ranks that share the experts; divides dp_size*sp_size and the model's experts"},
    {"sp_size",            OPT_INT,  AT(sp_size),            "1",    OPTION_RANGE(1, 1024), .help = "ranks that share a row's tokens", .built = "1"},
    {"tp_size",            OPT_INT,  AT(tp_size),            "1",    OPTION_RANGE(1, 1024), .help = "ranks that share each matrix", .built = "1"},
    {"zero_stage",         OPT_INT,  AT(zero_stage),         "0",    OPTION_RANGE(0, 1), .help = "1: each data-parallel rank keeps a part of the optimizer state"},
    {0}};
#undef AT
static const OptionSpec source_rows[] = {
    {"path",  OPT_TEXT, OPTION_AT(ConfigSource, path),  NULL,   OPTION_ANY, .help = "file, folder or glob"},
    {"ratio", OPT_REAL, OPTION_AT(ConfigSource, ratio), "1.0",  {.ranged = true, .min = 0, .max = 1e6, .above_min = true}, .help = "how often each sample is used an epoch"},
    {0}};
#define AT(field) OPTION_AT(DataSection, field)
static const OptionSpec data_rows[] = {
    {"train",          OPT_OBJECTS, AT(train),          "[data/train.jsonl]", OPTION_ITEMS(source_rows, ConfigSource), .help = "files, folders, globs", .maths = true},
    {"eval",           OPT_OBJECTS, AT(eval),           "[]",    OPTION_ITEMS(source_rows, ConfigSource), .help = "the same, for the loss on unseen data"},
    {"format",         OPT_ENUM,    AT(format),         "auto",  OPTION_CHOICES(formats), .help = "what a line is", .maths = true},
    {"pack",           OPT_ENUM,    AT(pack),           "soft",  OPTION_CHOICES(packs), .help = "soft: rows filled with whole samples; hard: filled to the end, samples cut; none: a sample a row", .maths = true},
    {"max_length",     OPT_INT,     AT(max_length),     "4096",  OPTION_RANGE(1, 1 << 30), .help = "tokens of a row", .maths = true},
    {"append_eos",     OPT_BOOL,    AT(append_eos),     "true",  OPTION_ANY, .help = "text samples end in one trained eos", .maths = true},
    {"skip_bad_lines", OPT_BOOL,    AT(skip_bad_lines), "false", OPTION_ANY, .help = "count and skip them instead of an error", .maths = true},
    {"seed",           OPT_INT,     AT(seed),           "null",  OPTION_AT_LEAST(0), .help = "of the order of samples; null: train.seed", .unset = "null", .maths = true},
    {"cache_dir",      OPT_TEXT,    AT(cache_dir),      "null",  OPTION_ANY, .help = "where tokenised data is kept between runs; null: nowhere", .unset = "null"},
    {0}};
#undef AT
#define AT(field) OPTION_AT(TrainSection, field)
static const OptionSpec train_rows[] = {
    {"output",                   OPT_TEXT,     AT(output),                   "null", OPTION_ANY, .help = "the run's folder; required", .unset = "null"},
    {"steps",                    OPT_INT,      AT(steps),                    "null", OPTION_AT_LEAST(0), .help = "optimizer steps; 0: load, check, export", .unset = "null", .maths = true},
    {"epochs",                   OPT_REAL,     AT(epochs),                   "null", OPTION_ABOVE(0), .help = "passes over the data, when steps is null; both null: 1", .unset = "null", .maths = true},
    {"global_batch_size",        OPT_INT,      AT(global_batch_size),        "8",    OPTION_RANGE(1, 1 << 30), .help = "packed rows per step over all data-parallel ranks", .maths = true},
    {"seed",                     OPT_INT,      AT(seed),                     "42",   OPTION_AT_LEAST(0), .help = "of random weights and of the order of samples", .maths = true},
    {"recompute_ratio",          OPT_REAL,     AT(recompute_ratio),          "0.0",  OPTION_RANGE(0, 1), .help = "share of the layers, from the first, whose activations are computed again in the backward"},
    {"max_grad_norm",            OPT_REAL,     AT(max_grad_norm),            "1.0",  OPTION_AT_LEAST(0), .help = "gradients are scaled down to this norm; 0: off", .maths = true},
    {"skip_grad_norm_threshold", OPT_REAL,     AT(skip_grad_norm_threshold), "null", OPTION_ABOVE(0), .help = "a step with a larger norm changes nothing", .unset = "null", .maths = true},
    {"eval_interval",            OPT_INT,      AT(eval_interval),            "null", OPTION_AT_LEAST(1), .help = "steps between two losses on data.eval; null: at the end alone", .unset = "null"},
    {"profile_steps",            OPT_INTS,     AT(profile_steps),            "[]",   OPTION_AT_LEAST(1), .help = "steps whose times are written to trace/step-NNNNNN.json (a Chrome trace: opens in Perfetto); one beyond the last step never comes"},
    {"hang_timeout",             OPT_DURATION, AT(hang_timeout),             "600",  OPTION_ABOVE(0), .help = "a rank that waits longer for another one ends the run; more than any rank works alone"},
    {"stop_before",              OPT_TEXT,     AT(stop_before),              "null", OPTION_ANY, .help = "a time (18:30, 2026-12-01T18:30) or a duration (2h30m, seconds): save and leave with exit 3 before it", .unset = "null", .numbers = true},
    {"threads",                  OPT_INT,      AT(threads),                  "null", OPTION_RANGE(1, 4096), .help = "OpenMP threads per rank; null: cores / ranks on this machine", .unset = "null"},
    {"isa",                      OPT_NAME,     AT(isa),                      "auto", OPTION_CHOICES(isas), .help = "the kernel path: kernels for processors that can do so much; auto: the best this machine has"},
    {0}};
#undef AT
#define AT(field) OPTION_AT(LossSection, field)
static const OptionSpec loss_rows[] = {
    {"reduction",       OPT_ENUM, AT(reduction),       "token",     OPTION_CHOICES(reductions), .help = "weight of a token: 1, 1/n or 1/sqrt(n), n the trained tokens of its sample", .maths = true},
    {"mode",            OPT_ENUM, AT(mode),            "chunk",     OPTION_CHOICES(loss_modes), .help = "logits chunk by chunk, or a row at once"},
    {"chunk_size",      OPT_INT,  AT(chunk_size),      "1024",      OPTION_RANGE(1, 1 << 30), .help = "tokens of a chunk"},
    {"balancing_alpha", OPT_REAL, AT(balancing_alpha), "auto",      OPTION_AT_LEAST(0), .help = "factor of the load-balancing loss; 0: off; auto: config.json's router_aux_loss_coef if its output_router_logits is true, else 0.001", .unset = "auto", .maths = true},
    {"balancing_form",  OPT_ENUM, AT(balancing_form),  "per_layer", OPTION_CHOICES(forms), .help = "a loss per layer, or one over all layers together", .maths = true},
    {"balancing_scope", OPT_ENUM, AT(balancing_scope), "row",       OPTION_CHOICES(scopes), .help = "tokens counted together: a row's, or those of the data-parallel ranks' rows of one microbatch", .maths = true},
    {"z_alpha",         OPT_REAL, AT(z_alpha),         "0.0",       OPTION_AT_LEAST(0), .help = "factor of the router z-loss; 0: off", .maths = true},
    {0}};
#undef AT
static const OptionSpec group_rows[] = {
    {"match",        OPT_TEXT, OPTION_AT(OptimizerGroup, match),        NULL,   OPTION_ANY, .help = "pattern of parameter names, with * and ?"},
    {"lr_scale",     OPT_REAL, OPTION_AT(OptimizerGroup, lr_scale),     "1.0",  OPTION_AT_LEAST(0), .help = "factor of the learning rate"},
    {"weight_decay", OPT_REAL, OPTION_AT(OptimizerGroup, weight_decay), "null", OPTION_AT_LEAST(0), .help = "null: optimizer.weight_decay", .unset = "null"},
    {"trainable",    OPT_BOOL, OPTION_AT(OptimizerGroup, trainable),    "true", OPTION_ANY, .help = "false: frozen"},
    {0}};
#define AT(field) OPTION_AT(OptimizerSection, field)
static const OptionSpec optimizer_rows[] = {
    {"type",         OPT_ENUM,    AT(type),         "adamw",       OPTION_CHOICES(optimizers), .help = "AdamW, plain gradient descent, or Muon", .built = "adamw sgd", .maths = true},
    {"lr",           OPT_REAL,    AT(lr),           "1.0e-4",      OPTION_AT_LEAST(0), .help = "learning rate", .maths = true},
    {"betas",        OPT_PAIR,    AT(betas),        "[0.9, 0.95]", {.ranged = true, .min = 0, .max = 1, .below_max = true}, .help = "decay of the two moments", .maths = true},
    {"eps",          OPT_REAL,    AT(eps),          "1.0e-8",      OPTION_ABOVE(0), .help = "added to the root of the second moment", .maths = true},
    {"weight_decay", OPT_REAL,    AT(weight_decay), "0.01",        OPTION_AT_LEAST(0), .help = "decoupled in AdamW", .maths = true},
    {"decay_1d",     OPT_BOOL,    AT(decay_1d),     "true",        OPTION_ANY, .help = "norms and biases decay too", .maths = true},
    {"groups",       OPT_OBJECTS, AT(groups),       "[]",          OPTION_ITEMS(group_rows, OptimizerGroup), .help = "parameters that are treated otherwise; the first match counts", .maths = true},
    {0}};
#undef AT
#define AT(field) OPTION_AT(LrScheduleSection, field)
static const OptionSpec lr_rows[] = {
    {"type",   OPT_ENUM, AT(type),   "cosine", OPTION_CHOICES(lr_types), .help = "how the learning rate goes on after the warmup", .maths = true},
    {"warmup", OPT_REAL, AT(warmup), "0.03",   OPTION_AT_LEAST(0), .help = "below 1: share of the steps, else steps", .maths = true},
    {"lr_min", OPT_REAL, AT(lr_min), "1.0e-6", OPTION_AT_LEAST(0), .help = "where cosine and linear end; at most optimizer.lr", .maths = true},
    {0}};
#undef AT
#define AT(field) OPTION_AT(CheckpointSection, field)
static const OptionSpec checkpoint_rows[] = {
    {"interval",    OPT_INT,  AT(interval),    "null", OPTION_AT_LEAST(1), .help = "steps between two checkpoints; the last step saves always", .unset = "null"},
    {"keep",        OPT_INT,  AT(keep),        "2",    OPTION_AT_LEAST(1), .help = "checkpoints kept, the newest"},
    {"async",       OPT_BOOL, AT(async),       "true", OPTION_ANY, .help = "written while training goes on, from a copy in memory"},
    {"required",    OPT_BOOL, AT(required),    "false", OPTION_ANY, .help = "a save or export that fails ends the run, not the last one alone"},
    {"hf_interval", OPT_INT,  AT(hf_interval), "null", OPTION_AT_LEAST(1), .help = "steps between two HuggingFace folders; the last step saves always", .unset = "null"},
    {"hf_keep",     OPT_INT,  AT(hf_keep),     "null", OPTION_AT_LEAST(1), .help = "HuggingFace folders kept; null: all", .unset = "null"},
    {"hf_dtype",    OPT_ENUM, AT(hf_dtype),    "auto", OPTION_CHOICES(hf_dtypes), .help = "of the HuggingFace folders; auto: each source tensor's"},
    {0}};
#undef AT
#define AT(field) OPTION_AT(LogSection, field)
static const OptionSpec log_rows[] = {
    {"interval", OPT_INT,   AT(interval), "1",       OPTION_AT_LEAST(1), .help = "steps between two lines of progress"},
    {"trackers", OPT_NAMES, AT(trackers), "[jsonl]", OPTION_CHOICES(trackers), .help = "where metrics go", .built = "jsonl"},
    {0}};
#undef AT

static const OptionSection sections[] = {
    {"model",       model_rows,      offsetof(TrainConfig, model),       "what is trained"},
    {"parallel",    parallel_rows,   offsetof(TrainConfig, parallel),    "how it is spread over ranks"},
    {"data",        data_rows,       offsetof(TrainConfig, data),        "what it learns from"},
    {"train",       train_rows,      offsetof(TrainConfig, train),       "the run"},
    {"loss",        loss_rows,       offsetof(TrainConfig, loss),        "what is minimised"},
    {"optimizer",   optimizer_rows,  offsetof(TrainConfig, optimizer),   "how gradients become updates"},
    {"lr_schedule", lr_rows,         offsetof(TrainConfig, lr_schedule), "the learning rate over time"},
    {"checkpoint",  checkpoint_rows, offsetof(TrainConfig, checkpoint),  "what is saved, and when"},
    {"log",         log_rows,        offsetof(TrainConfig, log),         "what is reported"},
    {0}};
// clang-format on

const OptionSection *config_sections(void)
{
    return sections;
}
