#include "io/file.h"
#include "model/shared_file.h"
#include "model/weights.h"

#include <string.h>

/* Which tensors go out, to which files, and the index beside them. */
typedef struct Plan {
    int n;
    int *tensor;      /* [n] in layout->at */
    TensorDecl *decl; /* [n] */
    int n_files;
    const char **file_name;
    int *file_of;           /* [n] */
    const char *index_text; /* NULL: none */
    size_t index_bytes;
} Plan;

/* The source's file per tensor; one that has none joins the first. */
static Status plan_as_source(Plan *plan, const HfLayout *layout, Arena *arena)
{
    TRY(arena_alloc(arena, &plan->file_name, (size_t)plan->n + 1, sizeof *plan->file_name));
    TRY(arena_alloc(arena, &plan->file_of, (size_t)plan->n, sizeof *plan->file_of));
    for (int i = 0; i < plan->n; i++) {
        const char *file = layout->at[plan->tensor[i]].file;
        int f = 0;
        while (f < plan->n_files && strcmp(plan->file_name[f], file) != 0) f++;
        if (f == plan->n_files) plan->file_name[plan->n_files++] = file;
        plan->file_of[i] = f;
    }
    if (!layout->sharded) return OK;
    ShardPlan files = {plan->n_files, plan->file_name, plan->file_of, 0, NULL, 0};
    TRY(shard_plan_index(&files, plan->decl, plan->n, arena));
    plan->index_text = files.index_text;
    plan->index_bytes = files.index_bytes;
    return OK;
}

static Status make_plan(Plan *plan, const HfLayout *layout, const HfWrite *how, const bool *present,
                        Arena *arena)
{
    bool from_source = how->keep_files;
    TRY(arena_alloc(arena, &plan->tensor, (size_t)layout->n, sizeof *plan->tensor));
    TRY(arena_alloc(arena, &plan->decl, (size_t)layout->n, sizeof *plan->decl));
    for (int i = 0; i < layout->n; i++) {
        const HfTensor *t = &layout->at[i];
        if ((present && !present[i]) || (!how->aliases && (t->alias || !t->param))) continue;
        if (!t->file) from_source = false;
        DType dtype = how->dtype == DTYPE_COUNT || !t->param ? t->dtype : how->dtype;
        plan->tensor[plan->n] = i;
        plan->decl[plan->n++] = (TensorDecl){t->name, dtype, t->n_dims, t->dim};
    }
    if (from_source && !how->only_file) return plan_as_source(plan, layout, arena);
    ShardPlan shards;
    TRY(shard_plan(&shards, plan->decl, plan->n,
                   how->only_file         ? INT64_MAX
                   : how->max_shard_bytes ? how->max_shard_bytes
                                          : 5000000000,
                   arena));
    plan->n_files = shards.n_shards;
    plan->file_name = shards.file_name;
    plan->file_of = shards.shard_of;
    if (how->only_file && plan->n_files) plan->file_name[0] = how->only_file;
    if (plan->n_files > 1) {
        plan->index_text = shards.index_text;
        plan->index_bytes = shards.index_bytes;
    }
    return OK;
}

/* What goes into one file. */
typedef struct Part {
    const Plan *plan;
    int file;
    const HfLayout *layout;
    const ParamSet *set;
    const HfWrite *how;
    bool carries; /* one rank writes what belongs to no parameter */
} Part;

/* This rank's part of one file. */
static Status write_own(SafetensorsWriter *writer, void *arg)
{
    const Part *part = arg;
    const Plan *plan = part->plan;
    ParamTensor what = part->how->what;
    for (int i = 0; i < plan->n; i++) {
        const HfTensor *t = &part->layout->at[plan->tensor[i]];
        if (plan->file_of[i] != part->file) continue;
        if (!t->param) {
            if (part->carries)
                TRY(safetensors_write_raw(writer, t->name, 0, t->count,
                                          safetensors_bytes(t->source->file, t->source->entry)));
            continue;
        }
        const Param *p = paramset_find(part->set, t->param);
        if (!p) continue;
        if (tensor_is_null(param_tensor(p, what)))
            return FAIL(ERR_FORMAT, "tensor %s: nothing to write", t->name);
        ParamSlice s = param_slice_in(p, p->own, t->offset, t->count);
        if (s.n)
            TRY(safetensors_write_f32(writer, t->name, s.skip, s.n,
                                      tensor_at(param_own(p, what), s.at)));
    }
    return OK;
}

static Status write_file(const Part *part, Comm *comm, Arena *scratch)
{
    const Plan *plan = part->plan;
    TensorDecl *decl = ARENA_NEW(scratch, TensorDecl, plan->n);
    int n = 0;
    for (int i = 0; i < plan->n; i++)
        if (plan->file_of[i] == part->file) decl[n++] = plan->decl[i];
    const char *path = path_join(scratch, part->how->dir, plan->file_name[part->file]);
    Part own = *part;
    return shared_file_write(comm, path, decl, n, write_own, &own, scratch);
}

Status hf_write(const HfLayout *layout, const ParamSet *set, Comm *comm, const HfWrite *how,
                const bool *present, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    Plan plan = {0};
    TRY(comm_agree(comm, make_plan(&plan, layout, how, present, scratch)));
    for (int f = 0; f < plan.n_files; f++)
        TRY(write_file(&(Part){&plan, f, layout, set, how, comm->rank == 0}, comm, scratch));
    Status status = OK;
    if (comm->rank == 0 && plan.index_text && !how->only_file)
        status = file_write_atomic(path_join(scratch, how->dir, "model.safetensors.index.json"),
                                   plan.index_text, plan.index_bytes);
    arena_rewind(scratch, mark);
    return comm_agree(comm, status);
}

static bool matches_any(const char *const *patterns, const char *name)
{
    for (const char *const *p = patterns; *p; p++)
        if (text_matches(*p, name)) return true;
    return false;
}

/* Everything in a model's folder that is no weights, or a folder of ours. */
static bool is_side_file(const char *name)
{
    static const char *const weights[] = {"*.safetensors",
                                          "*.safetensors.index.json",
                                          "*.bin",
                                          "*.bin.index.json",
                                          "*.pt",
                                          "*.pth",
                                          "*.gguf",
                                          "*.tmp",
                                          ".*",
                                          "state.json",
                                          "manifest.json",
                                          NULL};
    return !matches_any(weights, name);
}

/* Of a folder that need not be a model's, what belongs to a config file in it. */
static bool goes_with_config(const char *name)
{
    static const char *const files[] = {"generation_config.json",
                                        "tokenizer*",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "*.tiktoken",
                                        "chat_template*",
                                        NULL};
    return matches_any(files, name) && is_side_file(name);
}

static const char *config_path(const char *from, Arena *arena)
{
    return dir_exists(from) ? path_join(arena, from, "config.json") : from;
}

Status hf_copy_side_files(const char *to, const char *from, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    char **names;
    int n;
    bool whole = dir_exists(from);
    const char *slash = strrchr(from, '/');
    const char *dir = whole   ? from
                      : slash ? text_copy_n(scratch, from, (size_t)(slash + 1 - from))
                              : ".";
    TRY(dir_list(scratch, dir, &names, &n));
    for (int i = 0; i < n; i++) {
        const char *path = path_join(scratch, dir, names[i]);
        if ((whole ? is_side_file : goes_with_config)(names[i]) && file_exists(path))
            TRY(file_copy(path_join(scratch, to, names[i]), path));
    }
    if (!whole) TRY(file_copy(path_join(scratch, to, "config.json"), from));
    arena_rewind(scratch, mark);
    return OK;
}

/* The text between the quotes after "key": in JSON text, or NULL. Only a top-level key of a string value is meant, and config.json has no other. */
static char *find_value(char *text, const char *key, size_t *n)
{
    for (char *at = text; (at = strstr(at, key)); at++) {
        char *c = at + strlen(key);
        c += strspn(c, " \t\r\n");
        if (*c++ != ':') continue;
        c += strspn(c, " \t\r\n");
        if (*c++ != '"') continue;
        *n = strcspn(c, "\"");
        return c;
    }
    return NULL;
}

Status hf_write_config(const char *to, const char *from, DType dtype, Arena *scratch)
{
    TRY(hf_copy_side_files(to, from, scratch));
    if (dtype == DTYPE_COUNT) return OK;
    static const char *const names[] = {[DTYPE_F32] = "float32",
                                        [DTYPE_F64] = "float64",
                                        [DTYPE_BF16] = "bfloat16",
                                        [DTYPE_F16] = "float16"};
    static const char *const keys[] = {"\"torch_dtype\"", "\"dtype\""};
    ArenaMark mark = arena_mark(scratch);
    char *text;
    TRY(file_read(scratch, config_path(from, scratch), &text, NULL));
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *value = find_value(text, keys[i], &n);
        if (value)
            text = text_format(scratch, "%.*s%s%s", (int)(value - text), text, names[dtype],
                               value + n);
    }
    TRY(file_write_atomic(path_join(scratch, to, "config.json"), text, strlen(text)));
    arena_rewind(scratch, mark);
    return OK;
}
