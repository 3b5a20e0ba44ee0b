#pragma once
/**
 * All that a pipeline knows about a model: a struct of functions with a state. `model` implements it
 * and never sees a schedule; `pipeline` calls it and never sees a model.
 */
#include "core/microbatch.h"

/**
 * Which buffers an action uses; numbered by the schedule, per kind (-1: none). The numbers run over all
 * stages of a rank together. A call may touch only those of its microbatch that live then: open_forward
 * f_to_i, open_backward i_to_w, since the others may still be another microbatch's.
 */
typedef struct Slots {
    int f_to_i; /* x of the stage and what only the input gradient needs: from F (or its receive) to I */
    int f_to_w; /* inputs of the linears:  from F to W */
    int i_to_w; /* dy of the stage and output gradients of the linears: from I (or its receive) to W */
    int send; /* y or dx on its way to another rank: until the send is awaited */
} Slots;

/**
 * What passes a stage border, and on the way back its gradient: one block of memory that begins with
 * hidden_td, hence one message. Null at the model's ends (no x on the first, no y on the last stage).
 */
typedef struct HandOver {
    Tensor hidden_td; /* [T, D] in the compute dtype */
    Tensor routed_2e; /* [2, E] f64: the row's tokens per expert and sums of probabilities over all
                         layers so far (numerics.md 3, form hf); null: not wanted */
} HandOver;

size_t handover_bytes(HandOver shape);
/** The same shapes in a block of handover_bytes, aligned as arenas do; data pointers of `shape` do not count. */
HandOver handover_at(HandOver shape, void *block);

typedef enum ForwardMode {
    FORWARD_TRAIN, /* keeps what backward needs; the last stage computes loss and head gradients */
    FORWARD_LOSS,  /* keeps nothing: eval */
    FORWARD_LOGITS /* keeps nothing, labels unused: generate; also with labels for probe --logits */
} ForwardMode;

typedef struct StageOps {
    /**
     * Empty the f_to_i slot and take x [T, D] from it; a receive or the stage before writes there.
     * Called once per microbatch on every stage, some actions before its forward; null on the first stage.
     */
    HandOver (*open_forward)(void *self, Slots at, const MicroBatch *mb);
    /** Empty the i_to_w slot and take dy [T, D] from it, as open_forward. Null on the last stage. */
    HandOver (*open_backward)(void *self, Slots at, const MicroBatch *mb);
    /** Shapes of y and dx: where the pipeline makes its send buffers (data pointers null). */
    HandOver (*border)(void *self, const MicroBatch *mb);
    /** x -> y. y is written in full. Empties the f_to_w slot first. */
    void (*forward)(void *self, Slots at, const MicroBatch *mb, HandOver y, HandOver x,
                    ForwardMode mode);
    /** dy -> dx (overwritten); vectors' gradients are added. The f_to_i slot is free afterwards. */
    void (*backward_input)(void *self, Slots at, const MicroBatch *mb, HandOver dx, HandOver dy);
    /** Matrices' gradients are added. The f_to_w and i_to_w slots are free afterwards. */
    void (*backward_weight)(void *self, Slots at, const MicroBatch *mb);
} StageOps;

/** One stage of one rank, as the pipeline gets it. */
typedef struct StageRef {
    const StageOps *ops;
    void *self;
} StageRef;
