#pragma once
/** metrics.jsonl: one object per step, the same keys in every layout; null where a key does not apply or is not finite. */
#include "base/arena.h"
#include "base/status.h"

typedef struct Metrics {
    int64_t step;
    double epoch;
    double total, ce, balancing, z; /* NAN: null */
    double grad_norm, lr;
    int64_t tokens, trained_tokens, skipped;
    double max_violation;
    double time_step, time_data; /* seconds */
    double flops;                /* of the step */
    double bubble, bubble_predicted;
    const int64_t *memory_r; /* arenas' high-water bytes by rank of the world */
    int n_ranks;
    double eval_loss; /* NAN: not evaluated after this step */
} Metrics;

/** For people: "step 3/10  loss 2.1234  …", cut at n bytes. */
void metrics_line(char *out, size_t n, const Metrics *metrics, int64_t n_steps);

typedef struct MetricsFile {
    int fd;            /* -1: none */
    int64_t last_step; /* in it when it was opened; 0: none */
    const char *path;
} MetricsFile;

/**
 * Open for appending. keep_steps >= 0: lines of later steps are cut off first (resume), and so is a last line without an end.
 * Errors: ERR_IO; ERR_FORMAT for a line that is no metrics object.
 */
Status metrics_open(MetricsFile *file, const char *path, int64_t keep_steps, Arena *arena) MUST_USE;
Status metrics_append(MetricsFile *file, const Metrics *metrics, Arena *scratch) MUST_USE;
void metrics_close(MetricsFile *file);
