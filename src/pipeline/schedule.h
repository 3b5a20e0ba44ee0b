#pragma once
/**
 * Room `pipeline`: who computes what, in which order. A schedule is data: a list of actions per rank.
 *
 *   generators (generators*.c)  write the compute actions of a named schedule
 *   passes     (schedule_add_comm, schedule_hoist_receives, schedule_assign_slots) complete it
 *   check, simulate, print      read it
 *   executor   (executor.h)     runs it and decides nothing
 *
 * The room knows no model (a stage is StageOps, core/stage.h) and no training loop. Read this file
 * first, then generators.c; adding a schedule is one function and one row there.
 *
 * Words: p ranks, m microbatches, v virtual stages per rank, S = p v stages, all counted from 0. F forward,
 * I input gradient, W weight gradient, B = I then W. "2F0" is the forward of microbatch 0 on stage 2.
 */
#include "base/text.h"
#include "core/stage.h"

typedef enum ActionKind {
    ACT_F,
    ACT_I,
    ACT_W,
    ACT_B,
    ACT_SEND_F, /* y to the next stage's rank */
    ACT_RECV_F, /* posts the receive of x; the F waits for it */
    ACT_SEND_B, /* dx to the stage before */
    ACT_RECV_B, /* posts the receive of dy; the I or B waits for it */
    ACT_REDUCE, /* the stage's gradients are complete: their sum over ranks begins; mb is the last W's */
    ACT_COUNT
} ActionKind;

extern const char *const action_names[ACT_COUNT]; /* "F", …, "REDUCE_GRAD" */

static inline bool action_is_compute(ActionKind kind)
{
    return kind <= ACT_B;
}

static inline bool action_is_message(ActionKind kind)
{
    return kind > ACT_B && kind <= ACT_RECV_B;
}

typedef struct Action {
    ActionKind kind;
    int stage, mb; /* of a SEND: the stage that made it; of a RECV: the stage that needs it */
    int peer;      /* of SEND and RECV: the other rank; else -1 */
    Slots
        at; /* of (stage, mb); `send` belongs to this F, I, B or SEND alone. An action touches only slots live then */
    Slots
        to; /* where y or dx goes when the next stage is on this rank: that stage's slots; all -1: elsewhere */
} Action;

/** What `Slots` numbers; slots_field picks one. */
typedef enum SlotKind { SLOT_F_TO_I, SLOT_F_TO_W, SLOT_I_TO_W, SLOT_SEND, SLOT_COUNT } SlotKind;
int *slots_field(Slots *slots, SlotKind kind);
extern const Slots slots_none; /* all -1 */

typedef struct ActionList {
    Action *at;
    int n;
} ActionList;

typedef struct Schedule {
    const char *name; /* "1f1b", or the file it was read from */
    int n_ranks, n_stages, n_mb;
    int *rank_of_stage; /* [n_stages]; a V placement or interleaving is just another array */
    ActionList *list;   /* [n_ranks] */
    bool forward_only;  /* F alone: eval, generate */
    bool has_comm;      /* SEND and RECV are in the lists */
    bool has_reduce;    /* and a REDUCE for each stage */
    bool has_slots;     /* Action.at, .to and n_slots are set */
    bool
        ascending; /* F, I, W, B in ascending microbatch order on each stage (set by schedule_build); without it results are not bitwise those of other schedules */
    Slots *
        n_slots; /* [n_ranks] how many slots of each kind a rank needs, counted over all its stages together */
} Schedule;

/* ---- names ---------------------------------------------------------------------------------------- */

typedef enum Placement {
    PLACE_LOOP, /* rank r owns stages r, p + r, 2p + r, … */
    PLACE_V     /* v = 2: rank r owns r and 2p - 1 - r */
} Placement;

/** p, m, v of the schedule being generated. */
typedef struct Layout {
    int n_ranks, n_mb, n_virtual;
} Layout;

typedef struct ScheduleKind {
    const char *name;
    /** Append the compute actions of one rank; NULL: not built yet. */
    void (*generate)(const Layout *layout, int rank, ActionList *out);
    Placement placement;
    int n_virtual_default, n_virtual_min, n_virtual_max;
    int n_mb_per_rank_min; /* fewest microbatches = this x ranks; 0: 1 will do */
    const char *help;      /* one line */
} ScheduleKind;

/** All names of the configuration, ending with a NULL name. */
extern const ScheduleKind schedule_kinds[];
/** Whether a schedule's name is that of a file: it ends in ".csv". */
bool schedule_is_file(const char *name);
/** Errors: ERR_USAGE for an unknown name (with the nearest known one). */
Status schedule_find(const ScheduleKind **out, const char *name) MUST_USE;

/* ---- building ------------------------------------------------------------------------------------- */

typedef struct ScheduleRequest {
    const char *name; /* of the table, or a file's (schedule_is_file) */
    int n_ranks;      /* 0: what the file says (files only) */
    int n_mb;         /* 0: what the file says, or the fewest that the schedule takes */
    int n_virtual;    /* 0: default of the schedule, or what the file says */
} ScheduleRequest;

/**
 * Generate or read, add communication, post receives early, number the slots, check.
 *
 * Owner:  *out and all it points to live in arena.
 * Errors: ERR_USAGE unknown name, or numbers that do not fit (keys and numbers named); ERR_UNSUPPORTED
 *         a schedule that is not built; ERR_IO, ERR_FORMAT the file; ERR_FORMAT an order that cannot
 *         run (rank, position, reason).
 */
Status schedule_build(Schedule **out, const ScheduleRequest *request, Arena *arena) MUST_USE;

/** F alone for n_mb microbatches on the same stages and ranks as `like`; complete and checked as by schedule_build. */
Status schedule_build_forward(Schedule **out, const Schedule *like, int n_mb,
                              Arena *arena) MUST_USE;

/* ---- passes; memory from arena, the lists they replace stay in it -------------------------------------- */

/** An empty schedule: lists with room for `capacity` actions each (n = 0), rank_of_stage zeroed. */
Status schedule_new(Schedule **out, int n_ranks, int n_stages, int n_mb, int capacity,
                    Arena *arena) MUST_USE;
/** Append a compute action. */
void schedule_emit(ActionList *list, ActionKind kind, int stage, int mb);

/**
 * Insert SEND after each producer, and its RECV in front of the consumer or earlier, where needed for
 * receives from a rank to stand in the order of that rank's sends. Nothing between stages of one rank.
 * Needs a schedule that schedule_check accepts.
 */
Status schedule_add_comm(Schedule *schedule, Arena *arena) MUST_USE;

/**
 * Move each RECV in front of the compute action before it, so that the message travels meanwhile,
 * unless the rank would then need one more slot of its kind: a slot holds the activations of a microbatch,
 * worth more than the short time of a message.
 */
Status schedule_hoist_receives(Schedule *schedule, Arena *arena) MUST_USE;

/**
 * A REDUCE behind the last W or B of each stage and its SEND: from there on its gradients are the pipeline's no more, and their sum over
 * data-parallel ranks runs while other stages still compute.
 */
Status schedule_add_reduce(Schedule *schedule, Arena *arena) MUST_USE;

/**
 * Number the slots of each rank from their live intervals, as few as possible of each kind.
 *
 *   f_to_i   from RECV_F (the F of the stage before when on this rank, the F itself on stage 0) to the end of I
 *   f_to_w   from F to the end of W
 *   i_to_w   from RECV_B (the I of the next stage, the I itself on the last stage) to the end of W
 *   send     from the F or I that writes it until the consumer has run, by a simulation at unit costs: one
 *            action more than until it is received, so that small delays of the peer stall nobody
 * Forward only: f_to_i and f_to_w end with F, there is no i_to_w.
 */
Status schedule_assign_slots(Schedule *schedule, Arena *arena) MUST_USE;

/* ---- check and simulate ------------------------------------------------------------------------------ */

/**
 * Prove that a schedule can run, in any stage it is in (has_comm, has_slots):
 * every (stage, microbatch) has one F and either one B or one I and one W (forward only: one F alone), on
 * the owning rank; each border between ranks has one SEND after its producer and one RECV before its
 * consumer; has_reduce: each stage has one REDUCE, behind its last W or B; for each ordered pair of ranks sends and receives stand in the same order; no slot is taken
 * while live; and running all lists against each other, with the given number of send buffers, reaches
 * the end.
 *
 * *ascending (may be NULL): F, I, W and B stand in ascending microbatch order on each stage. Not an error.
 * Errors: ERR_FORMAT "schedule NAME: rank R position N (2F0): reason", positions from 1.
 */
Status schedule_check(const Schedule *schedule, bool *ascending, Arena *scratch) MUST_USE;

/** Times of one microbatch per stage; B takes i + w. Any unit. */
typedef struct Costs {
    const double *f_s, *i_s, *w_s; /* [n_stages] */
    double comm; /* from the end of a producer to its arrival on another rank; occupies no rank */
} Costs;

/** The same for all stages; arrays from arena. */
Costs costs_uniform(int n_stages, double f, double i, double w, double comm, Arena *arena);

typedef struct RankReport {
    double busy;
    int peak_in_flight;     /* pairs (stage, microbatch) with F done and W or B not */
    double peak_activation; /* the same, a pair weighing 1 from F to I and w_share from I to W */
    double *start, *end;    /* [list.n] by action; of SEND and RECV both are the rank's time then */
    double *
        wait; /* [list.n] where a compute action began to wait; NULL: simulated. A measured SEND or RECV starts when posted and ends when done */
} RankReport;

/** What a schedule does in time, simulated or measured (timeline.h). */
typedef struct ScheduleReport {
    double makespan; /* first start anywhere to last end anywhere */
    double work;     /* busy time of the busiest rank */
    double bubble;   /* (makespan - work) / makespan */
    double w_share;
    Costs costs;      /* simulated with these; arrays NULL: measured */
    RankReport *rank; /* [n_ranks] */
} ScheduleReport;

/** Room for the times of all ranks. */
Status schedule_report_new(ScheduleReport *out, const Schedule *schedule, double w_share,
                           Arena *arena) MUST_USE;
/** Makespan, work, bubble and what is kept, from the compute actions' start and end and the ranks' busy. */
void schedule_report_complete(ScheduleReport *report, const Schedule *schedule);

/**
 * Every rank runs its list in order, each action as soon as its inputs are there.
 * Errors: ERR_FORMAT if it does not come to the end.
 */
Status schedule_simulate(ScheduleReport *out, const Schedule *schedule, const Costs *costs,
                         double w_share, Arena *arena) MUST_USE;
