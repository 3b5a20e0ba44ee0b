#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/worker.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

typedef struct Job {
    atomic_bool may_end;
    int runs;
    pthread_t by;
    Status status;
} Job;

static Status work(void *arg)
{
    Job *job = arg;
    while (!job->may_end) usleep(1000);
    job->runs++;
    job->by = pthread_self();
    return job->status == OK ? OK : FAIL(job->status, "run %d went wrong", job->runs);
}

static void worker__works_beside_its_owner(void **state)
{
    (void)state;
    Worker worker;
    Job job = {0};
    assert_int_equal(worker_start(&worker), OK);
    assert_true(worker_idle(&worker));
    worker_give(&worker, work, &job);
    assert_false(worker_idle(&worker));
    assert_false(worker_wait_for(&worker, 0.002));
    job.may_end = true;
    assert_true(worker_wait_for(&worker, 60));
    assert_int_equal(worker_wait(&worker), OK);
    assert_true(worker_idle(&worker));
    assert_true(worker_wait_for(&worker, 0));
    assert_false(pthread_equal(job.by, pthread_self()));
    job.status = ERR_IO;
    worker_give(&worker, work, &job);
    assert_int_equal(worker_wait(&worker), ERR_IO);
    assert_string_equal(status_message(), "run 2 went wrong");
    assert_int_equal(worker_wait(&worker), ERR_IO);
    job.status = OK;
    worker_give(&worker, work, &job);
    worker_stop(&worker); /* not before the job is done */
    assert_int_equal(job.runs, 3);
}

static void worker__without_a_thread_works_at_once(void **state)
{
    (void)state;
    Worker worker = {0};
    Job job = {.may_end = true, .status = ERR_MEMORY};
    worker_give(&worker, work, &job);
    assert_int_equal(job.runs, 1);
    assert_true(pthread_equal(job.by, pthread_self()));
    assert_true(worker_idle(&worker));
    assert_int_equal(worker_wait(&worker), ERR_MEMORY);
    worker_stop(&worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker__works_beside_its_owner),
        cmocka_unit_test(worker__without_a_thread_works_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
