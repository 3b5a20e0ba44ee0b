#pragma once
/**
 * Between parameters and the tensors of a HuggingFace folder. The list of a folder's tensors is the same on all
 * ranks and does not depend on the layout; each rank reads and writes only the slices of its own parameters.
 */
#include "comm/comm.h"
#include "core/param.h"
#include "io/json.h"
#include "io/safetensors_index.h"
#include "model/config.h"

/** A tensor of a folder. */
typedef struct HfTensor {
    const char *name;
    DType dtype; /* as the source stores it */
    int n_dims;
    int64_t dim[4];
    const char
        *param;    /* the parameter it is a slice of; NULL: carried along, unknown to the family */
    int64_t order; /* that parameter's */
    int64_t offset, count;     /* elements of the parameter */
    bool alias;                /* lm_head.weight of a tied folder that stores it too */
    const char *file;          /* of the source, without folder; NULL: no source */
    const ShardTensor *source; /* where a carried one's bytes are; else NULL */
} HfTensor;

/** All tensors of a folder, in model order. */
typedef struct HfLayout {
    HfTensor *at;
    int n;
    bool sharded; /* the source has an index */
} HfLayout;

/** What a folder holds, without its data: from its shards, or from a checkpoint's manifest. Sorted by name. */
typedef struct HfSource {
    const char *place; /* for messages */
    int n;
    const char **name;
    DType *dtype;      /* DTYPE_COUNT: cannot be loaded */
    const char **file; /* or NULL */
    bool sharded;
} HfSource;

Status hf_source_of_shards(HfSource *out, const ShardIndex *index, Arena *arena) MUST_USE;
/** A checkpoint's manifest keeps the list of the folder that the run started from: {"sharded", "tensors": {name: {dtype, file}}}. */
Status hf_source_of_json(HfSource *out, const json_t *object, const char *place,
                         Arena *arena) MUST_USE;
json_t *hf_layout_to_json(const HfLayout *layout); /* the caller's */
/**
 * What a folder says it holds: a checkpoint's manifest.json (its "source"), else its shards.
 */
Status hf_source_read(HfSource *out, const char *dir, const ShardIndex *index,
                      Arena *arena) MUST_USE;

/**
 * The folder's tensors for a model. `whole` holds the declarations of all parameters of the whole model.
 * source NULL: the layout with a tensor per expert and lm_head only if untied, all of dtype `fallback`.
 * carry: tensors that the family does not know are kept (extra_tensors: carry), else refused.
 * Errors: ERR_FORMAT naming place and tensor (missing, unknown); ERR_UNSUPPORTED (a dtype that cannot be loaded).
 */
Status hf_layout_create(HfLayout **out, const ModelConfig *config, const ParamSet *whole,
                        const HfSource *source, DType fallback, bool carry, Arena *arena) MUST_USE;

/** Check the shapes of all tensors, then fill the values of the set's parameters (a tied copy gets the embedding). */
Status hf_load(const HfLayout *layout, const ShardIndex *index, ParamSet *set, Arena *scratch,
               Log *log) MUST_USE;

/**
 * Fill optimizer moments; the index holds them under the layout's names, f32. A parameter without moments here is skipped.
 * ERR_FORMAT: one is missing, or of another dtype or shape.
 */
Status hf_load_moments(const HfLayout *layout, const ShardIndex *index, ParamSet *set,
                       ParamTensor what, Arena *scratch) MUST_USE;

/**
 * Random values: 1 for norms, 0 for biases, else normal(0, init_range) drawn per element from (seed, name in the layout with
 * a tensor per expert, element index). Independent of the layout.
 */
void hf_init(const ModelConfig *config, ParamSet *set, uint64_t seed, Arena *scratch);

typedef struct HfWrite {
    const char *dir; /* must exist */
    ParamTensor what;
    DType dtype; /* of all; DTYPE_COUNT: each source tensor's */
    bool
        keep_files; /* the source's file per tensor and index; false: one file, or shards of max_shard_bytes */
    bool aliases; /* write aliases and carried tensors too */
    const char
        *only_file; /* one file of this name whatever the size (probe's grads); NULL: as above */
    int64_t max_shard_bytes; /* 0: 5 GB */
} HfWrite;

/**
 * Write a part of each parameter (values f32). Collective over comm (the ranks that together hold the whole model); the files
 * are the same in every layout. A parameter without that tensor (frozen: no gradient or moments) is left out; `present`
 * says so for the whole model: NULL, or [layout->n] flags that are the same on all ranks.
 */
Status hf_write(const HfLayout *layout, const ParamSet *set, Comm *comm, const HfWrite *how,
                const bool *present, Arena *scratch) MUST_USE;

/**
 * The same in turns, of which only one communicates, so that the long one can go on beside other work:
 *
 *   create   on all ranks, the same; `first` on one of them
 *   begin    the first rank: the files with their headers, as long as they will be
 *   fill     all, once begun: this rank's elements, on disk when it returns (set: of any memory, as param_own gives it)
 *   count    collective over comm, once all are filled: how much was written of each tensor
 *   finish   the first rank: checks that, and gives the files their names; or abort: on all, nothing stays
 *
 * One turn at a time, on any thread. Everything lives in the arena. Errors: those of safetensors_writer_….
 */
typedef struct HfWriter HfWriter;
Status hf_writer_create(HfWriter **out, const HfLayout *layout, const HfWrite *how,
                        const bool *present, bool first, Arena *arena) MUST_USE;
int64_t hf_writer_bytes(const HfWriter *writer); /* of all files */
Status hf_writer_begin(HfWriter *writer) MUST_USE;
Status hf_writer_fill(HfWriter *writer, const ParamSet *set) MUST_USE;
Status hf_writer_count(HfWriter *writer, Comm *comm) MUST_USE;
Status hf_writer_finish(HfWriter *writer) MUST_USE;
void hf_writer_abort(HfWriter *writer); /* NULL is fine */

/**
 * config, generation config, tokenizer and chat template files, byte for byte: all files of a model's folder `from` but the
 * weights; or, where `from` is a config file, that one as config.json and those beside it that are called as such files are.
 */
Status hf_copy_side_files(const char *to, const char *from, Arena *scratch) MUST_USE;
/** How many bytes that would be. */
Status hf_side_files_bytes(int64_t *bytes, const char *from, Arena *scratch) MUST_USE;
/** The same, and config.json's dtype key(s) replaced when dtype is not DTYPE_COUNT. */
Status hf_write_config(const char *to, const char *from, DType dtype, Arena *scratch) MUST_USE;
