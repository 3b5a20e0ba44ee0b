#pragma once
/**
 * Parameters by name. Modules declare them, paramset_layout gives them memory, and the optimizer,
 * gradient sync and checkpoints see nothing of a model but this list.
 *
 * Names are those of the HuggingFace folder with the experts of a layer in one tensor:
 *   model.layers.3.mlp.experts.gate_up_proj [E, 2F, D] (rows of an expert: gate, then up) and
 *   model.layers.3.mlp.experts.down_proj    [E, D, F].
 * A tensor per expert is a run of rows of these, so both layouts of a folder are slices.
 */
#include "core/tensor.h"

typedef enum ParamInit { PARAM_INIT_NORMAL, PARAM_INIT_ONES, PARAM_INIT_ZEROS } ParamInit;

/** Elements begin … end-1 of a parameter's value, flat. */
typedef struct ParamRange {
    int64_t begin, end;
} ParamRange;

typedef struct Param {
    const char *name;
    ParamInit init;
    int64_t
        order; /* place in the whole model's order, the same in every layout; sums go in this order */
    Tensor value; /* compute dtype: what forward and backward read */
    Tensor
        master; /* dtype_grad, elements `kept`: what the optimizer updates and files hold; memory of value
                      when the dtypes agree, null when they differ and nothing is trained */
    Tensor grad;      /* f32 (f64 when the model is f64); null when frozen */
    Tensor moment[2]; /* optimizer state of elements `kept`, dtype of grad; null: none */
    bool trainable;
    bool is_matrix;     /* false: norm scales and biases (optimizer.decay_1d) */
    bool is_expert;     /* shared out over ep: its copies are on edp, not on all of dp and sp */
    int64_t first_row;  /* of the whole parameter that value begins with */
    int64_t whole_rows; /* dim 0 of the whole parameter */
    ParamRange
        own; /* of the ranks with a copy, what this one sums, takes the norm of and writes to files */
    ParamRange kept; /* what master and moments hold: all, or with ZeRO `own` alone */
    bool tied_copy; /* the head of a tied pair: the embedding is counted, saved and named instead */
    double lr_scale;
    double weight_decay; /* of this parameter; NAN: the optimizer's */
    struct Param *tied;  /* the other of a tied pair when this rank holds both, else NULL */
} Param;

typedef struct ParamSet {
    Arena *arena; /* model arena: the list, names, values, gradients, moments */
    DType dtype, dtype_grad;
    Param **at; /* in order of declaration = ascending `order` */
    int n, capacity;
    int64_t
        next_order; /* `order` of the next declared one; a stage that starts in mid-model sets it */
    int ep_rank, ep_size; /* whose share of the experts is declared; at first 0 of 1: all */
    Tensor grads;         /* all gradients as one flat tensor, for zeroing */
} ParamSet;

void paramset_init(ParamSet *set, Arena *arena, DType dtype, DType dtype_grad);
/** Shape dims beyond n_dims are ignored. The Param lives as long as the set's arena; its tensors have no data yet. */
Param *paramset_declare(ParamSet *set, const char *name, ParamInit init, int n_dims,
                        const int64_t *dim);
/** A matrix per expert, normal: of [E, O, I] the set's share of the experts, which ep_size divides. */
Param *paramset_declare_experts(ParamSet *set, const char *name, const int64_t dim[3]);
/**
 * The part of one of n_ranks that hold a copy: whole blocks of PARAM_BLOCK elements, as even as those allow. It depends
 * on shape and order alone; which rank has the first part changes with the order, so that small parameters spread.
 */
enum { PARAM_BLOCK = 4096 };
ParamRange param_shard(const Param *p, int rank, int n_ranks);

/**
 * Give all parameters values and with_grads (or where it costs nothing) masters, uninitialised, and if
 * trainable and with_grads zeroed gradients.
 */
Status paramset_layout(ParamSet *set, bool with_grads) MUST_USE;

/** Which of a parameter's tensors. */
typedef enum ParamTensor { PARAM_MASTER, PARAM_GRAD, PARAM_MOMENT_0, PARAM_MOMENT_1 } ParamTensor;
Tensor param_tensor(const Param *p, ParamTensor what);

/** Elements of a tensor, flat, lent. */
Tensor param_part(Tensor t, ParamRange range);
/** The elements `own`. */
Tensor param_own(const Param *p, ParamTensor what);

/** The declaration of the whole parameter, without memory. */
Param param_whole(const Param *p);

/** Which of some elements of the whole parameter are held here: `n` from the `skip`-th on, at `at` in its tensors. */
typedef struct ParamSlice {
    int64_t skip, n, at;
} ParamSlice;
/** For elements offset … offset+count-1; n = 0: none. */
ParamSlice param_slice(const Param *p, int64_t offset, int64_t count);
/** The same of a part of what is held here; `at` counts from its begin. */
ParamSlice param_slice_in(const Param *p, ParamRange range, int64_t offset, int64_t count);

Param *paramset_find(const ParamSet *set, const char *name); /* NULL: not there */
void paramset_zero_grads(ParamSet *set);
