#include "comm/world.h"

#include "comm/comm_threads.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_BYTES = 16 * 1024 * 1024 };

typedef struct RankRun {
    ThreadWorld *world;
    int rank;
    Status (*body)(Comm *world, void *arg);
    void *arg;
    Status status;
    char *message; /* from malloc; NULL: status OK, or no memory for it */
    pthread_t thread;
} RankRun;

static void run_rank(RankRun *run)
{
    int rank_before = breadcrumb()->rank;
    breadcrumb()->rank = run->rank;
    run->status = run->body(thread_world_comm(run->world, run->rank), run->arg);
    if (run->status != OK) run->message = strdup(status_message());
    thread_world_leave(run->world, run->rank);
    breadcrumb()->rank = rank_before;
}

static void *thread_main(void *arg)
{
    run_rank(arg);
    return NULL;
}

static int start(RankRun *run)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error) return error;
    error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (!error) error = pthread_create(&run->thread, &attributes, thread_main, run);
    pthread_attr_destroy(&attributes);
    return error;
}

/* The lowest rank with an error of its own; else the lowest with any; else NULL. */
static const RankRun *first_failure(const RankRun *run_r, int n_ranks)
{
    const RankRun *first = NULL;
    for (int r = n_ranks - 1; r >= 0; r--)
        if (run_r[r].status != OK &&
            (run_r[r].status != ERR_PEER || !first || first->status == ERR_PEER))
            first = &run_r[r];
    return first;
}

Status world_run_threads(int n_ranks, Status (*body)(Comm *world, void *arg), void *arg)
{
    ThreadWorld *world;
    TRY(thread_world_create(&world, n_ranks));
    RankRun *run_r = calloc((size_t)n_ranks, sizeof *run_r);
    if (!run_r) {
        thread_world_free(&world);
        return FAIL(ERR_MEMORY, "out of memory: %d thread ranks", n_ranks);
    }
    for (int r = 0; r < n_ranks; r++)
        run_r[r] = (RankRun){.world = world, .rank = r, .body = body, .arg = arg};

    int n_started = 1; /* rank 0 is this thread */
    int error = 0;
    while (n_started < n_ranks && (error = start(&run_r[n_started])) == 0) n_started++;
    for (int r = n_started; r < n_ranks; r++) thread_world_leave(world, r);
    run_rank(&run_r[0]);
    for (int r = 1; r < n_started; r++) pthread_join(run_r[r].thread, NULL);

    Status status = OK;
    const RankRun *first = first_failure(run_r, n_started);
    if (error)
        status =
            FAIL(ERR_MEMORY, "rank %d: cannot start a thread (%s)", n_started, strerror(error));
    else if (first)
        status = FAIL(first->status, "%s", first->message ? first->message : "out of memory");
    for (int r = 0; r < n_started; r++) free(run_r[r].message);
    free(run_r);
    thread_world_free(&world);
    return status;
}
