#include "base/status.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void status__fail_records_one_line(void **state)
{
    (void)state;
    assert_int_equal(FAIL(ERR_FORMAT, "%s:%d: key %s\nis\r\nbroken", "a.json", 7, "x"), ERR_FORMAT);
    assert_string_equal(status_message(), "a.json:7: key x is  broken");
}

static void status__message_may_be_an_argument_of_the_next(void **state)
{
    (void)state;
    assert_int_equal(FAIL(ERR_IO, "inner"), ERR_IO);
    assert_int_equal(FAIL(ERR_USAGE, "outer: %s", status_message()), ERR_USAGE);
    assert_string_equal(status_message(), "outer: inner");
}

static void status__long_message_is_cut_not_overrun(void **state)
{
    (void)state;
    static char big[10000];
    memset(big, 'x', sizeof big - 1);
    assert_int_equal(FAIL(ERR_IO, "%s", big), ERR_IO);
    size_t n = strlen(status_message());
    assert_true(n > 1000 && n < sizeof big - 1);
    assert_int_equal(strspn(status_message(), "x"), n);
}

static Status tries(Status given, bool *went_on)
{
    TRY(given);
    *went_on = true;
    return OK;
}

static void status__try_leaves_on_failure_alone(void **state)
{
    (void)state;
    bool went_on = false;
    assert_int_equal(tries(ERR_PEER, &went_on), ERR_PEER);
    assert_false(went_on);
    assert_int_equal(tries(OK, &went_on), OK);
    assert_true(went_on);
}

static void status__exit_codes_are_the_contracts(void **state)
{
    (void)state;
    static const struct {
        Status status;
        int code;
    } rows[] = {{OK, 0},       {ERR_USAGE, 2},  {ERR_FORMAT, 2},
                {ERR_IO, 2},   {ERR_MEMORY, 2}, {ERR_UNSUPPORTED, 2},
                {ERR_PEER, 2}, {ERR_FAILED, 1}, {ERR_STOPPED, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(status_exit_code(rows[i].status), rows[i].code);
}

static void status__a_failure_after_the_start_is_of_the_run(void **state)
{
    (void)state;
    assert_int_equal(status_after_start(FAIL(ERR_IO, "disk full")), ERR_FAILED);
    assert_string_equal(status_message(), "disk full");
    static const Status kept[] = {OK, ERR_PEER, ERR_FAILED, ERR_STOPPED};
    for (int i = 0; i < 4; i++) assert_int_equal(status_after_start(kept[i]), kept[i]);
}

static void *other_thread(void *arg)
{
    (void)arg;
    const bool fresh = status_message()[0] == '\0' && breadcrumb()->layer == -1;
    Status status = FAIL(ERR_IO, "of the other thread");
    breadcrumb()->rank = 5;
    return fresh && status == ERR_IO ? (void *)&status_fail : NULL;
}

static void status__message_and_breadcrumb_belong_to_the_thread(void **state)
{
    (void)state;
    assert_int_equal(FAIL(ERR_IO, "mine"), ERR_IO);
    breadcrumb()->rank = 1;
    pthread_t thread;
    void *fresh;
    assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &fresh), 0);
    assert_non_null(fresh);
    assert_string_equal(status_message(), "mine");
    assert_int_equal(breadcrumb()->rank, 1);
}

/* What die() prints with this breadcrumb; *code: how the process ended. */
static void run_die(const Breadcrumb *crumb, char *out, size_t size, int *code)
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        *breadcrumb() = *crumb;
        die("no memory for %d bytes", 12);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n < size - 1 && (got = read(ends[0], out + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    out[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void status__die_says_where_and_ends_with_1_or_before_the_start_with_2(void **state)
{
    (void)state;
    char text[512];
    int code;
    run_die(&(Breadcrumb){.rank = 3,
                          .step = 120,
                          .action = "2I5",
                          .layer = 11,
                          .op = "moe.dispatch",
                          .started = true},
            text, sizeof text, &code);
    assert_int_equal(code, 1);
    assert_string_equal(text, "stagewright: error: rank 3 step 120 action 2I5 layer 11 "
                              "moe.dispatch: no memory for 12 bytes\n");
    run_die(&(Breadcrumb){.layer = -1}, text, sizeof text, &code);
    assert_int_equal(code, 2);
    assert_string_equal(text, "stagewright: error: rank 0: no memory for 12 bytes\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status__fail_records_one_line),
        cmocka_unit_test(status__message_may_be_an_argument_of_the_next),
        cmocka_unit_test(status__long_message_is_cut_not_overrun),
        cmocka_unit_test(status__try_leaves_on_failure_alone),
        cmocka_unit_test(status__exit_codes_are_the_contracts),
        cmocka_unit_test(status__a_failure_after_the_start_is_of_the_run),
        cmocka_unit_test(status__message_and_breadcrumb_belong_to_the_thread),
        cmocka_unit_test(status__die_says_where_and_ends_with_1_or_before_the_start_with_2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
