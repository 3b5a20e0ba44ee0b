/* inspect: what is in a folder or file, and what is wrong with it. */
#include "cli/command.h"

#include "base/log.h"
#include "cli/inspect.h"
#include "io/hash.h"
#include "io/json.h"
#include "model/stage.h"
#include "model/weights.h"
#include "train/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct InspectArgs {
    const char *path;
    bool json, verify, hash;
} InspectArgs;

// clang-format off
static const ArgPosition positions[] = {
    {"PATH", offsetof(InspectArgs, path), false, "a HuggingFace folder, a training checkpoint, or one safetensors file"},
    {0}};
static const OptionSpec options[] = {
    {"json",   OPT_BOOL, OPTION_AT(InspectArgs, json),   "false", OPTION_ANY, .help = "one JSON object instead of tables, every tensor listed"},
    {"verify", OPT_BOOL, OPTION_AT(InspectArgs, verify), "false", OPTION_ANY, .help = "also read all data: numbers that are not finite, and of a checkpoint the size and checksum of every file"},
    {"hash",   OPT_BOOL, OPTION_AT(InspectArgs, hash),   "false", OPTION_ANY, .help = "XXH3 (128 bits) of each tensor's bytes"},
    {0}};
// clang-format on

enum { CHUNK = 1 << 16 };

static void add_message(Messages *messages, const char *text, Arena *arena)
{
    if (messages->n == messages->capacity) {
        messages->capacity = 2 * messages->capacity + 16;
        const char **grown = ARENA_NEW(arena, const char *, messages->capacity);
        if (messages->n) memcpy(grown, messages->at, (size_t)messages->n * sizeof *grown);
        messages->at = grown;
    }
    messages->at[messages->n++] = text_copy(arena, text);
}

/* What we do not read is no fault of the folder. */
static void add_failure(Inspection *found, Status st)
{
    Messages *to = st == ERR_UNSUPPORTED ? &found->warnings : &found->errors;
    if (st != OK) add_message(to, status_message(), found->arena);
}

/* ---- tensors --------------------------------------------------------------------------------------- */

static void list_tensors(Inspection *found)
{
    ShardIndex *index = found->index;
    found->n = index->n;
    found->tensor = ARENA_NEW(found->arena, InspectTensor, index->n + 1);
    found->total = 0;
    for (int i = 0; i < index->n; i++) {
        const char *path = index->tensor[i].file->path, *slash = strrchr(path, '/');
        found->tensor[i] = (InspectTensor){
            .tensor = &index->tensor[i], .file = slash ? slash + 1 : path, .n_bad = -1};
        found->total += index->tensor[i].entry->n_elements;
        if (index->tensor[i].unlisted)
            add_message(&found->warnings,
                        text_format(found->arena,
                                    "%s: tensor %s is in a shard but not in the index", index->path,
                                    index->tensor[i].name),
                        found->arena);
    }
}

static Status count_bad(const ShardTensor *tensor, int64_t *n_bad)
{
    double values[CHUNK / 16];
    int64_t n = tensor->entry->n_elements, step = CHUNK / 16, bad = 0;
    for (int64_t first = 0; first < n; first += step) {
        int64_t count = n - first < step ? n - first : step;
        TRY(shard_tensor_read(tensor, first, count, DTYPE_F64, values));
        for (int64_t i = 0; i < count; i++) bad += !isfinite(values[i]);
    }
    *n_bad = bad;
    return OK;
}

static void verify_tensor(Inspection *found, InspectTensor *t)
{
    Status st = count_bad(t->tensor, &t->n_bad);
    add_failure(found, st);
    if (st == OK && t->n_bad)
        add_message(&found->errors,
                    text_format(found->arena, "%s: tensor %s: %lld of %lld numbers are not finite",
                                t->tensor->file->path, t->tensor->name, (long long)t->n_bad,
                                (long long)t->tensor->entry->n_elements),
                    found->arena);
}

static void hash_tensor(Inspection *found, InspectTensor *t)
{
    t->hash = arena_take(found->arena, HASH_HEX_BYTES);
    const SafetensorsEntry *entry = t->tensor->entry;
    hash_hex(t->hash, safetensors_bytes(t->tensor->file, entry), entry->bytes);
}

/* ---- against config.json ----------------------------------------------------------------------------- */

static int64_t count_parameters(const ModelConfig *config, const ParamSet *whole, bool active)
{
    int64_t sum = 0;
    for (int i = 0; i < whole->n; i++) {
        const Param *p = whole->at[i];
        if (p->tied_copy) continue;
        int64_t n = tensor_size(p->value);
        bool expert = strstr(p->name, ".experts.") != NULL;
        sum += active && expert ? n / config->n_experts * config->experts_per_token : n;
    }
    return sum;
}

static void check_shapes(Inspection *found, const HfLayout *layout)
{
    Arena *arena = found->arena;
    for (int i = 0; i < layout->n; i++) {
        const HfTensor *t = &layout->at[i];
        const ShardTensor *stored = shard_index_find(found->index, t->name);
        if (!stored || !t->param) continue;
        const SafetensorsEntry *entry = stored->entry;
        bool same = entry->n_dims == t->n_dims;
        for (int d = 0; d < t->n_dims && same; d++) same = entry->dim[d] == t->dim[d];
        if (!same)
            add_message(&found->errors,
                        text_format(arena, "%s: tensor %s: shape %s, expected %s from config.json",
                                    stored->file->path, t->name,
                                    shape_text(arena, entry->n_dims, entry->dim),
                                    shape_text(arena, t->n_dims, t->dim)),
                        arena);
    }
}

static void note_unknown(Inspection *found, const HfLayout *layout)
{
    int n = 0;
    const char *first = NULL;
    for (int i = 0; i < layout->n; i++) {
        if (layout->at[i].param) continue;
        if (!n++) first = layout->at[i].name;
    }
    if (n)
        add_message(
            &found->warnings,
            text_format(found->arena,
                        "%s: %d tensor%s the model does not know, such as %s: train refuses "
                        "or carries them (model.extra_tensors)",
                        found->path, n, n == 1 ? "" : "s", first),
            found->arena);
}

/* Names and shapes against what config.json says there must be; the counts follow from it, too. */
static Status check_model(Inspection *found, Log *log)
{
    Arena *arena = found->arena;
    ModelConfig *config;
    TRY(model_config_read(&config, found->path, arena, log));
    found->model_type = config->family->model_type;
    ParamSet *whole = ARENA_NEW(arena, ParamSet, 1);
    paramset_init(whole, arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(whole, config);
    found->total = count_parameters(config, whole, false);
    found->active = count_parameters(config, whole, true);
    if (!found->index) return OK;
    HfSource source;
    HfLayout *layout;
    TRY(hf_source_of_shards(&source, found->index, arena));
    TRY(hf_layout_create(&layout, config, whole, &source, DTYPE_F32, true, arena));
    check_shapes(found, layout);
    note_unknown(found, layout);
    return OK;
}

static Status check_checkpoint(Inspection *found, bool verify)
{
    const char *path = path_join(found->arena, found->path, "state.json");
    JsonDoc doc;
    TRY(json_doc_read(&doc, path));
    Status st = json_expect_object(doc.root, path);
    if (st == OK) st = json_get_int(doc.root, path, "step", &found->step);
    json_doc_free(&doc);
    TRY(st);
    CheckpointInfo info;
    return verify ? checkpoint_read(&info, found->path, found->arena) : OK;
}

/* ---- the command ----------------------------------------------------------------------------------- */

static void inspect(Inspection *found, const InspectArgs *args, Log *log)
{
    bool is_dir = dir_exists(found->path);
    add_failure(found, shard_index_open(&found->index, found->path, found->arena, log));
    if (found->index) list_tensors(found);
    if (is_dir) add_failure(found, check_model(found, log));
    if (is_dir && checkpoint_is(found->path))
        add_failure(found, check_checkpoint(found, args->verify));
    for (int i = 0; i < found->n && args->verify; i++) verify_tensor(found, &found->tensor[i]);
    for (int i = 0; i < found->n && args->hash; i++) hash_tensor(found, &found->tensor[i]);
}

static Status run(const void *args_, const struct World *world, Arena *arena)
{
    (void)world;
    const InspectArgs *args = args_;
    bool is_dir = dir_exists(args->path);
    if (!is_dir && !file_exists(args->path))
        return FAIL(ERR_IO, "%s: no such file or folder", args->path);
    Inspection found = {.path = args->path,
                        .arena = arena,
                        .kind = !is_dir                     ? "safetensors"
                                : checkpoint_is(args->path) ? "checkpoint"
                                                            : "model",
                        .verified = args->verify,
                        .total = -1,
                        .active = -1,
                        .step = -1};
    Log log;
    TRY(log_open(&log, NULL, 0, true));
    inspect(&found, args, &log);
    log_close(&log);
    TextBuffer out;
    text_buffer_init(&out, arena);
    if (args->json)
        inspect_print_json(&out, &found);
    else
        inspect_print(&out, &found);
    fwrite(out.text, 1, out.length, stdout);
    shard_index_close(&found.index);
    return found.errors.n ? FAIL(ERR_FORMAT, "%s", found.errors.at[0]) : OK;
}

const Command command_inspect = {
    .name = "inspect",
    .summary =
        "what is in a model folder, checkpoint or safetensors file, and what is wrong with it",
    .usage = "PATH [--json] [--verify] [--hash]",
    .about =
        "Lists tensors with shape, dtype and size, repeated layers and experts as one line, and "
        "counts parameters: all of them, and those that are active for a token (of E experts only "
        "the K that the router chooses). Headers, index and, for a folder with config.json, names "
        "and shapes are always checked; the data itself with --verify. What is wrong is listed, "
        "and the exit status is then 2.",
    .example = "stagewright inspect models/tiny --verify",
    .positions = positions,
    .options = options,
    .args_size = sizeof(InspectArgs),
    .run = run,
};
