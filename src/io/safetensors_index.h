#pragma once
/**
 * All tensors of a HuggingFace folder: model.safetensors, or model.safetensors.index.json and the
 * shards it names (weight_map: tensor -> file). And the other way: which tensor goes to which shard.
 */
#include "base/log.h"
#include "io/safetensors.h"

/** A tensor of the folder. */
typedef struct ShardTensor {
    const char *name;
    const SafetensorsFile *file;
    const SafetensorsEntry *entry;
    bool unlisted; /* in a shard, but not in the index: usable, worth a warning when needed */
} ShardTensor;

typedef struct ShardIndex {
    const char *path; /* for messages: the index, or the only file */
    bool has_index;
    int n_files;
    SafetensorsFile **file; /* [n_files], sorted by name */
    int n;
    ShardTensor *tensor; /* [n], sorted by name (strcmp) */
    int n_unlisted;
    int64_t total_size; /* bytes of all n tensors */
} ShardIndex;

/**
 * path: a folder, or one *.safetensors file. The lists live in the arena, the maps until close.
 * A model.safetensors that the index beside it does not name wins over that index, with a warning
 * (as HuggingFace does). A wrong total_size (neither of the listed
 * tensors nor of all) is a warning. log NULL: no warnings.
 * Errors: ERR_IO when no weights are there or a shard is missing; ERR_FORMAT when the index is no such
 * thing, an entry names a file outside the folder or one that lacks the tensor, a tensor is in two
 * shards, or a shard is broken (safetensors_open).
 */
Status shard_index_open(ShardIndex **out, const char *path, Arena *arena, Log *log) MUST_USE;
void shard_index_close(ShardIndex **index); /* clears the handle; NULL is fine */

/** NULL: not there. */
const ShardTensor *shard_index_find(const ShardIndex *index, const char *name);

/** safetensors_read of a tensor found. */
Status shard_tensor_read(const ShardTensor *tensor, int64_t first, int64_t count, DType dtype,
                         void *dst) MUST_USE;

/** "NAME.safetensors" in the folder itself, not hidden: what a list of tensors may name, and nothing else is written over. */
bool shard_name_is_plain(const char *name);

/** What an index file says, before any shard is opened. */
typedef struct ShardMap {
    const char *path; /* of the index, for messages */
    int n;
    const char **tensor; /* [n], sorted */
    const char **shard;  /* [n] file name of each */
    bool has_total_size;
    double total_size;    /* as the file says; may be wrong */
    int n_shards;         /* distinct files */
    const char **by_name; /* [n_shards] sorted */
} ShardMap;

/** Parse and check the text of an index. ERR_FORMAT as for shard_index_open. */
Status shard_map_parse(ShardMap *out, const char *path, const char *text, size_t n,
                       Arena *arena) MUST_USE;
/**
 * Join a map (NULL: none) with its opened shards, file [n_files] in the order of map->by_name.
 * The index takes over the files only on success.
 */
Status shard_index_join(ShardIndex **out, const char *path, const ShardMap *map,
                        SafetensorsFile **file, int n_files, Arena *arena, Log *log) MUST_USE;

/** How a list of tensors is dealt to files. */
typedef struct ShardPlan {
    int n_shards;
    const char **
        file_name; /* [n_shards] "model.safetensors" if one, else "model-00001-of-00003.safetensors" */
    int *shard_of;          /* [n] by tensor */
    int64_t total_size;     /* bytes of all tensors */
    const char *index_text; /* model.safetensors.index.json; not needed beside a single file */
    size_t index_bytes;
} ShardPlan;

/**
 * Fill shards in the order of the list; a new one starts when a tensor does not fit any more (a tensor
 * larger than max_shard_bytes gets its own). All in the arena.
 * ERR_FORMAT: a name twice, bad dims. ERR_USAGE: max_shard_bytes < 1.
 */
Status shard_plan(ShardPlan *out, const TensorDecl *decl, int n, int64_t max_shard_bytes,
                  Arena *arena) MUST_USE;
/**
 * Fill total_size and the index from file_name and shard_of: of a plan that was made in another way. Sorted by name, as
 * HuggingFace writes it. ERR_FORMAT: a name twice, bad dims.
 */
Status shard_plan_index(ShardPlan *plan, const TensorDecl *decl, int n, Arena *arena) MUST_USE;
