#pragma once
/**
 * A thread that does one job at a time beside its owner. One owner, on one thread; what both touch belongs to the job from
 * worker_give until worker_wait has returned or worker_idle has said true.
 */
#include "base/status.h"

#include <pthread.h>

typedef Status WorkerJob(void *arg);

typedef struct Worker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool started; /* false: jobs are done at once, by the owner */
    bool ends;
    WorkerJob *job; /* NULL: idle */
    void *arg;
    int rank;           /* the owner's, for messages */
    Status status;      /* of the last job */
    char message[2048]; /* its status_message */
} Worker;

/** A zeroed Worker has no thread: it does each job inside worker_give. ERR_MEMORY: no thread to be had. */
Status worker_start(Worker *worker) MUST_USE;
/** The worker is idle. Takes no memory. */
void worker_give(Worker *worker, WorkerJob *job, void *arg);
bool worker_idle(Worker *worker);
/** Waits for the job's end: its status, and its message as this thread's. Again: the same. */
Status worker_wait(Worker *worker) MUST_USE;
/** Waits for the job's end so long at most; whether it has come. */
bool worker_wait_for(Worker *worker, double seconds);
/** Waits for the job's end and ends the thread. A zeroed one is fine. */
void worker_stop(Worker *worker);
