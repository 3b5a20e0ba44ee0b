#include "base/worker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void run_job(Worker *w)
{
    w->status = w->job(w->arg);
    if (w->status != OK) snprintf(w->message, sizeof w->message, "%s", status_message());
}

static void *thread_main(void *arg)
{
    Worker *w = arg;
    *breadcrumb() = (Breadcrumb){.rank = w->rank, .layer = -1, .started = true};
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->job && !w->ends) pthread_cond_wait(&w->changed, &w->lock);
        if (!w->job) break;
        pthread_mutex_unlock(&w->lock);
        run_job(w);
        pthread_mutex_lock(&w->lock);
        w->job = NULL;
        pthread_cond_signal(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

Status worker_start(Worker *w)
{
    *w = (Worker){.rank = breadcrumb()->rank};
    pthread_condattr_t clock;
    int error = pthread_mutex_init(&w->lock, NULL);
    if (!error) error = pthread_condattr_init(&clock);
    if (!error) error = pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    if (!error) error = pthread_cond_init(&w->changed, &clock);
    if (!error) error = pthread_create(&w->thread, NULL, thread_main, w);
    if (error) return FAIL(ERR_MEMORY, "cannot start a thread (%s)", strerror(error));
    w->started = true;
    return OK;
}

void worker_give(Worker *w, WorkerJob *job, void *arg)
{
    if (!w->started) {
        w->job = job;
        w->arg = arg;
        run_job(w);
        w->job = NULL;
        return;
    }
    pthread_mutex_lock(&w->lock);
    w->job = job;
    w->arg = arg;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

bool worker_idle(Worker *w)
{
    if (!w->started) return true;
    pthread_mutex_lock(&w->lock);
    bool idle = !w->job;
    pthread_mutex_unlock(&w->lock);
    return idle;
}

Status worker_wait(Worker *w)
{
    if (w->started) {
        pthread_mutex_lock(&w->lock);
        while (w->job) pthread_cond_wait(&w->changed, &w->lock);
        pthread_mutex_unlock(&w->lock);
    }
    return w->status == OK ? OK : FAIL(w->status, "%s", w->message);
}

bool worker_wait_for(Worker *w, double seconds)
{
    if (!w->started) return true;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanoseconds = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&w->lock);
    while (w->job && pthread_cond_timedwait(&w->changed, &w->lock, &until) != ETIMEDOUT) {
    }
    bool idle = !w->job;
    pthread_mutex_unlock(&w->lock);
    return idle;
}

void worker_stop(Worker *w)
{
    if (!w->started) return;
    pthread_mutex_lock(&w->lock);
    w->ends = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    w->started = false;
}
