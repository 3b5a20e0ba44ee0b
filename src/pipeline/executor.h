#pragma once
/**
 * Runs a rank's list of actions on its stages: for each action a switch over its kind, nothing decided
 * here. RECV posts a receive into memory of the stage that needs it (open_forward, open_backward); F, I and B
 * wait for theirs; y and dx for another rank go to send buffers numbered by the schedule, awaited when
 * a buffer is reused or at the end; between stages of one rank y and dx are written where the
 * neighbour reads them.
 */
#include "comm/comm.h"
#include "pipeline/schedule.h"

/** clock_seconds() of an action in the last step. */
typedef struct ActionTime {
    double wait; /* compute: where it began to wait for its input and for room for its output */
    double begin, end; /* compute: after its waiting; SEND, RECV: posted, and seen to be done */
} ActionTime;

/** On its way, or no more. */
typedef struct Posted {
    CommRequest request;
    int action; /* that posted it */
} Posted;

/**
 * The sum of a stage's gradients over ranks outside of the pipeline, for schedules that have a REDUCE. `start` begins it,
 * `advance` gets on with what has begun; both never wait. Who gave it also sees to its end.
 */
typedef struct PipelineReduce {
    void (*start)(void *self, int stage);
    void (*advance)(void *self); /* before every action */
    void *self;
} PipelineReduce;

typedef struct Pipeline {
    const Schedule *schedule; /* lent */
    Comm *pp;                 /* lent */
    const StageRef *stages;   /* [n_stages] lent; self NULL when not on this rank */
    int rank;
    PipelineReduce reduce; /* set by the owner, before the first step, if the schedule has_reduce */
    ActionList list;       /* this rank's, lent from the schedule */
    ActionTime *time;      /* [list.n] of the last step */
    double busy;           /* last step: seconds inside the stages' functions */
    double first, last;    /* last step: begin of its first, end of its last compute action */
    double
        clock_offset; /* to add to this rank's times for those of rank 0; set by the caller (comm_clock_offset) */
    bool watch_messages; /* look for their end after each action, not only where it is waited for */

    char (*name)[16];        /* [list.n] of actions, for the breadcrumb */
    HandOver *x, *dy;        /* by f_to_i slot, by i_to_w slot: opened and not yet used */
    Posted *recv_f, *recv_b; /* by f_to_i slot, by i_to_w slot */
    Posted *sent;            /* by send slot */
    void **send_buffer;      /* by send slot */
    size_t send_bytes;       /* of each */
    Arena send;              /* the buffers; grows with the longest microbatch seen */
} Pipeline;

/**
 * The schedule must have comm and slots (schedule_build); pp.size = its n_ranks.
 *
 * Shapes: stages [n_stages], by global stage; ops and self set for this rank's.
 * Owner:  *out lives in arena, its send buffers until pipeline_free; all arguments are lent until then.
 * Errors: ERR_USAGE if the comm's size or a stage is missing; ERR_MEMORY.
 */
Status pipeline_create(Pipeline **out, const Schedule *schedule, Comm *pp, const StageRef *stages,
                       Arena *arena) MUST_USE;
void pipeline_free(Pipeline **pipeline);

/**
 * Run the list once. FORWARD_TRAIN needs a training schedule, the other modes a forward-only one.
 *
 * Shapes:     mb [n_mb], T may differ between them
 * Collective: over pp, all ranks with the same lengths T and mode. Dies when a peer is lost.
 * Memory:     allocates only when a microbatch is longer than any before.
 */
void pipeline_step(Pipeline *pipeline, MicroBatch *const *mb, ForwardMode mode);
