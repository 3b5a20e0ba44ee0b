#include "io/file.h"
#include "model/weights.h"

#include <string.h>

/* ---- the plan ------------------------------------------------------------------------------- */

/* Which tensors go out, and to which files. */
typedef struct Plan {
    int n;
    int *tensor;      /* [n] in layout->at */
    TensorDecl *decl; /* [n] */
    ShardPlan files;  /* index_text NULL: no index beside them */
} Plan;

/* The source's file per tensor; one that has none joins the first. */
static Status plan_as_source(Plan *plan, const HfLayout *layout, Arena *arena)
{
    ShardPlan *files = &plan->files;
    TRY(arena_alloc(arena, &files->file_name, (size_t)plan->n + 1, sizeof *files->file_name));
    TRY(arena_alloc(arena, &files->shard_of, (size_t)plan->n, sizeof *files->shard_of));
    for (int i = 0; i < plan->n; i++) {
        const char *file = layout->at[plan->tensor[i]].file;
        int f = 0;
        while (f < files->n_shards && strcmp(files->file_name[f], file) != 0) f++;
        if (f == files->n_shards) files->file_name[files->n_shards++] = file;
        files->shard_of[i] = f;
    }
    return layout->sharded ? shard_plan_index(files, plan->decl, plan->n, arena) : OK;
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
    TRY(shard_plan(&plan->files, plan->decl, plan->n,
                   how->only_file         ? INT64_MAX
                   : how->max_shard_bytes ? how->max_shard_bytes
                                          : 5000000000,
                   arena));
    if (how->only_file) plan->files.file_name[0] = how->only_file;
    if (plan->files.n_shards == 1) plan->files.index_text = NULL, plan->files.index_bytes = 0;
    return OK;
}

/* ---- in turns ------------------------------------------------------------------------------- */

struct HfWriter {
    Plan plan;
    const HfLayout *layout;
    HfWrite how;
    const char *index_path;
    bool carries;               /* one rank writes what belongs to no parameter */
    SafetensorsWriter **file_f; /* [plan.files.n_shards] */
};

static Status create_file(HfWriter *w, int file, Arena *arena)
{
    TensorDecl *decl;
    int n = 0;
    TRY(arena_alloc(arena, &decl, (size_t)w->plan.n, sizeof *decl));
    for (int i = 0; i < w->plan.n; i++)
        if (w->plan.files.shard_of[i] == file) decl[n++] = w->plan.decl[i];
    const char *path = path_join(arena, w->how.dir, w->plan.files.file_name[file]);
    return safetensors_writer_create(&w->file_f[file], path, decl, n, arena);
}

Status hf_writer_create(HfWriter **out, const HfLayout *layout, const HfWrite *how,
                        const bool *present, bool first, Arena *arena)
{
    HfWriter *w;
    TRY(arena_alloc(arena, &w, 1, sizeof *w));
    *w = (HfWriter){.layout = layout, .how = *how, .carries = first};
    w->index_path = path_join(arena, how->dir, "model.safetensors.index.json");
    TRY(make_plan(&w->plan, layout, how, present, arena));
    TRY(arena_alloc(arena, &w->file_f, (size_t)w->plan.files.n_shards, sizeof *w->file_f));
    for (int f = 0; f < w->plan.files.n_shards; f++) TRY(create_file(w, f, arena));
    *out = w;
    return OK;
}

int64_t hf_writer_bytes(const HfWriter *w)
{
    int64_t bytes = (int64_t)w->plan.files.index_bytes;
    for (int f = 0; f < w->plan.files.n_shards; f++)
        bytes += safetensors_writer_bytes(w->file_f[f]);
    return bytes;
}

Status hf_writer_begin(HfWriter *w)
{
    TRY(dir_require_space(w->how.dir, hf_writer_bytes(w)));
    for (int f = 0; f < w->plan.files.n_shards; f++) {
        TRY(safetensors_writer_begin(w->file_f[f]));
        TRY(safetensors_writer_leave(w->file_f[f]));
    }
    return OK;
}

/* This rank's part of one tensor. Files of which it has nothing are not even opened. */
static Status write_own(HfWriter *w, SafetensorsWriter *file, const HfTensor *t,
                        const ParamSet *set)
{
    if (!t->param) {
        if (!w->carries) return OK;
        TRY(safetensors_writer_join(file));
        return safetensors_write_raw(file, t->name, 0, t->count,
                                     safetensors_bytes(t->source->file, t->source->entry));
    }
    const Param *p = paramset_find(set, t->param);
    if (!p) return OK;
    if (tensor_is_null(param_tensor(p, w->how.what)))
        return FAIL(ERR_FORMAT, "tensor %s: nothing to write", t->name);
    ParamSlice s = param_slice_in(p, p->own, t->offset, t->count);
    if (!s.n) return OK;
    TRY(safetensors_writer_join(file));
    return safetensors_write_f32(file, t->name, s.skip, s.n,
                                 tensor_at(param_own(p, w->how.what), s.at));
}

static Status fill_file(HfWriter *w, int file, const ParamSet *set)
{
    for (int i = 0; i < w->plan.n; i++)
        if (w->plan.files.shard_of[i] == file)
            TRY(write_own(w, w->file_f[file], &w->layout->at[w->plan.tensor[i]], set));
    return OK;
}

Status hf_writer_fill(HfWriter *w, const ParamSet *set)
{
    for (int f = 0; f < w->plan.files.n_shards; f++) {
        TRY(fill_file(w, f, set)); /* abort closes what stays open */
        TRY(safetensors_writer_leave(w->file_f[f]));
    }
    return OK;
}

Status hf_writer_count(HfWriter *w, Comm *comm)
{
    for (int f = 0; f < w->plan.files.n_shards; f++) {
        int n;
        int64_t *counts = safetensors_writer_counts(w->file_f[f], &n);
        TRY(comm_sum_i64(comm, counts, n));
    }
    return OK;
}

Status hf_writer_finish(HfWriter *w)
{
    for (int f = 0; f < w->plan.files.n_shards; f++) TRY(safetensors_writer_finish(&w->file_f[f]));
    if (!w->plan.files.index_text) return OK;
    return file_write_atomic(w->index_path, w->plan.files.index_text, w->plan.files.index_bytes);
}

void hf_writer_abort(HfWriter *w)
{
    for (int f = 0; w && f < w->plan.files.n_shards; f++) safetensors_writer_abort(&w->file_f[f]);
}

/* What takes long, by a thread beside: see comm_agree_on_work. */
typedef struct WriteJob {
    HfWriter *writer;
    const ParamSet *set;
    bool first;
} WriteJob;

static Status fill(void *arg)
{
    WriteJob *job = arg;
    return hf_writer_fill(job->writer, job->set);
}

static Status finish(void *arg)
{
    WriteJob *job = arg;
    return job->first ? hf_writer_finish(job->writer) : OK;
}

static Status write_by(Worker *worker, WriteJob *job, Comm *comm)
{
    TRY(comm_agree(comm, job->first ? hf_writer_begin(job->writer) : OK));
    worker_give(worker, fill, job);
    TRY(comm_agree_on_work(comm, worker));
    TRY(hf_writer_count(job->writer, comm));
    worker_give(worker, finish, job);
    return comm_agree_on_work(comm, worker);
}

static Status write_together(HfWriter *w, const ParamSet *set, Comm *comm)
{
    Worker worker = {0};
    Status status = comm_agree(comm, comm->size > 1 ? worker_start(&worker) : OK);
    if (status == OK) status = write_by(&worker, &(WriteJob){w, set, comm->rank == 0}, comm);
    worker_stop(&worker); /* also of those that could start one where another could not */
    return status;
}

Status hf_write(const HfLayout *layout, const ParamSet *set, Comm *comm, const HfWrite *how,
                const bool *present, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    HfWriter *w = NULL;
    Status status =
        comm_agree(comm, hf_writer_create(&w, layout, how, present, comm->rank == 0, scratch));
    if (status == OK) status = write_together(w, set, comm);
    if (status != OK) hf_writer_abort(w);
    arena_rewind(scratch, mark);
    return status;
}

/* ---- what lies beside the weights ----------------------------------------------------------- */

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

typedef struct SideFile {
    const char *name, *path;
} SideFile;

static Status list_side_files(SideFile **out, int *n_out, const char *from, Arena *arena)
{
    char **names;
    int n, n_taken = 0;
    bool whole = dir_exists(from);
    const char *slash = strrchr(from, '/');
    const char *dir = whole   ? from
                      : slash ? text_copy_n(arena, from, (size_t)(slash + 1 - from))
                              : ".";
    TRY(dir_list(arena, dir, &names, &n));
    SideFile *list = ARENA_NEW(arena, SideFile, n + 1);
    for (int i = 0; i < n; i++) {
        const char *path = path_join(arena, dir, names[i]);
        /* A link that leads nowhere is taken too: copying it fails, and names it. */
        if ((whole ? is_side_file : goes_with_config)(names[i]) && !dir_exists(path))
            list[n_taken++] = (SideFile){names[i], path};
    }
    if (!whole) list[n_taken++] = (SideFile){"config.json", from};
    *out = list;
    *n_out = n_taken;
    return OK;
}

Status hf_copy_side_files(const char *to, const char *from, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    SideFile *file;
    int n;
    TRY(list_side_files(&file, &n, from, scratch));
    for (int i = 0; i < n; i++) TRY(file_copy(path_join(scratch, to, file[i].name), file[i].path));
    arena_rewind(scratch, mark);
    return OK;
}

Status hf_side_files_bytes(int64_t *bytes, const char *from, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    SideFile *file;
    int n;
    *bytes = 0;
    TRY(list_side_files(&file, &n, from, scratch));
    for (int i = 0; i < n; i++) {
        int64_t own;
        TRY(file_bytes(&own, file[i].path));
        *bytes += own;
    }
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
