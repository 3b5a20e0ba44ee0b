#include "io/json.h"
#include "io/safetensors_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct Named {
    const char *name;
    int shard;
} Named;

static int compare_named(const void *a, const void *b)
{
    return strcmp(((const Named *)a)->name, ((const Named *)b)->name);
}

Status shard_plan_index(ShardPlan *plan, const TensorDecl *decl, int n, Arena *arena)
{
    Named *sorted;
    int64_t total = 0;
    TRY(arena_alloc(arena, &sorted, (size_t)n, sizeof *sorted));
    for (int i = 0; i < n; i++) {
        size_t bytes;
        TRY(tensor_decl_bytes(&decl[i], &bytes));
        if (__builtin_add_overflow(total, (int64_t)bytes, &total))
            return FAIL(ERR_FORMAT, "tensor %s: the total size overflows", decl[i].name);
        sorted[i] = (Named){.name = decl[i].name, .shard = plan->shard_of[i]};
    }
    if (n) qsort(sorted, (size_t)n, sizeof *sorted, compare_named);
    for (int i = 1; i < n; i++)
        if (strcmp(sorted[i].name, sorted[i - 1].name) == 0)
            return FAIL(ERR_FORMAT, "tensor %s: listed twice", sorted[i].name);
    TextBuffer text;
    text_buffer_init(&text, arena);
    text_append_format(&text,
                       "{\n  \"metadata\": {\n    \"total_size\": %" PRId64 "\n  },\n"
                       "  \"weight_map\": {",
                       total);
    for (int i = 0; i < n; i++) {
        text_append_format(&text, "%s\n    ", i ? "," : "");
        json_append_string(&text, sorted[i].name);
        text_append_format(&text, ": ");
        json_append_string(&text, plan->file_name[sorted[i].shard]);
    }
    text_append_format(&text, "\n  }\n}\n");
    plan->total_size = total;
    plan->index_text = text.text;
    plan->index_bytes = text.length;
    return OK;
}

Status shard_plan(ShardPlan *out, const TensorDecl *decl, int n, int64_t max_shard_bytes,
                  Arena *arena)
{
    if (max_shard_bytes < 1)
        return FAIL(ERR_USAGE, "shard size: expected at least 1 byte (found %" PRId64 ")",
                    max_shard_bytes);
    ShardPlan plan = {.n_shards = 1};
    TRY(arena_alloc(arena, &plan.shard_of, (size_t)n, sizeof *plan.shard_of));
    int64_t filled = 0; /* bytes of the last shard */
    for (int i = 0; i < n; i++) {
        size_t bytes;
        TRY(tensor_decl_bytes(&decl[i], &bytes));
        if (filled > 0 && bytes > 0 && (int64_t)bytes > max_shard_bytes - filled) {
            plan.n_shards++;
            filled = 0;
        }
        filled += (int64_t)bytes;
        plan.shard_of[i] = plan.n_shards - 1;
    }
    TRY(arena_alloc(arena, &plan.file_name, (size_t)plan.n_shards, sizeof *plan.file_name));
    for (int s = 0; s < plan.n_shards; s++)
        plan.file_name[s] =
            plan.n_shards == 1
                ? "model.safetensors"
                : text_format(arena, "model-%05d-of-%05d.safetensors", s + 1, plan.n_shards);
    TRY(shard_plan_index(&plan, decl, n, arena));
    *out = plan;
    return OK;
}
