#define _XOPEN_SOURCE 600 /* pseudo terminals */
#include "base/log.h"

#include <fcntl.h>
#include <pthread.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <cmocka.h>

/* A folder with log.txt; stderr goes to err.txt from begin_stderr to end_stderr. */
typedef struct Place {
    char dir[64], log[96], err[96];
    int stderr_fd;
    Arena arena;
} Place;

static int setup(void **state)
{
    Place *p = calloc(1, sizeof *p);
    if (!p) return -1;
    strcpy(p->dir, "/tmp/sw-log-XXXXXX");
    if (!mkdtemp(p->dir)) return -1;
    snprintf(p->log, sizeof p->log, "%s/log.txt", p->dir);
    snprintf(p->err, sizeof p->err, "%s/err.txt", p->dir);
    arena_init(&p->arena, "test");
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    Place *p = *state;
    unlink(p->log);
    unlink(p->err);
    int failed = rmdir(p->dir);
    arena_free(&p->arena);
    free(p);
    return failed;
}

static void begin_stderr(Place *p)
{
    p->stderr_fd = dup(STDERR_FILENO);
    int fd = open(p->err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static char *read_all(Place *p, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    char *text = arena_take_zeroed(&p->arena, 1 << 20);
    size_t n = fread(text, 1, (1 << 20) - 1, file);
    text[n] = '\0';
    fclose(file);
    return text;
}

static char *end_stderr(Place *p)
{
    fflush(stderr);
    dup2(p->stderr_fd, STDERR_FILENO);
    close(p->stderr_fd);
    return read_all(p, p->err);
}

static void assert_regex(const char *text, const char *pattern)
{
    regex_t regex;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    int found = regexec(&regex, text, 0, NULL, 0);
    regfree(&regex);
    if (found != 0) fail_msg("\"%s\" does not match %s", text, pattern);
}

#define TIME "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}"

static void log__lines_have_time_and_rank_in_the_file(void **state)
{
    Place *p = *state;
    Log log;
    assert_int_equal(log_open(&log, p->log, 3, false), OK);
    begin_stderr(p);
    log_line(&log, "step %d", 5);
    log_file_line(&log, "aside");
    log_warning(&log, "careful");
    log_progress(&log, "never");
    char *err = end_stderr(p);
    log_close(&log);
    /* Another rank is silent on stderr but for its warnings. */
    assert_string_equal(err, "warning: careful\n");
    assert_regex(read_all(p, p->log), "^" TIME " rank 3: step 5\n" TIME " rank 3: aside\n" TIME
                                      " rank 3: warning: careful\n$");
}

static void log__the_leading_rank_shows_its_lines(void **state)
{
    Place *p = *state;
    Log log;
    begin_stderr(p);
    Status opened = log_open(&log, NULL, 0, true);
    log_line(&log, "a %s", "b");
    log_file_line(&log, "nowhere");
    log_progress(&log, "no terminal, no progress");
    log_close(&log);
    char *err = end_stderr(p);
    assert_int_equal(opened, OK);
    assert_string_equal(err, "a b\n");
    assert_int_equal(access(p->log, F_OK), -1);
}

static void log__progress_overwrites_its_line_on_a_terminal(void **state)
{
    Place *p = *state;
    Log log;
    begin_stderr(p);
    Status opened = log_open(&log, NULL, 0, true);
    bool terminal = log.terminal;
    log.terminal = true;
    log_progress(&log, "one");
    log_progress(&log, "two");
    log_line(&log, "line");
    log_progress(&log, "three");
    log_close(&log);
    char *err = end_stderr(p);
    assert_int_equal(opened, OK);
    assert_false(terminal); /* a file is none */
    assert_string_equal(err, "\r\033[Kone\r\033[Ktwo\r\033[Kline\n\r\033[Kthree\n");
}

/* A line that wraps could not be overwritten. */
static void log__progress_is_cut_to_the_terminals_width(void **state)
{
    (void)state;
    int outer = posix_openpt(O_RDWR | O_NOCTTY);
    if (outer < 0 || grantpt(outer) || unlockpt(outer)) skip();
    int inner = open(ptsname(outer), O_RDWR | O_NOCTTY);
    assert_true(inner >= 0);
    struct winsize window = {.ws_row = 5, .ws_col = 10};
    assert_int_equal(ioctl(inner, TIOCSWINSZ, &window), 0);
    int before = dup(STDERR_FILENO);
    dup2(inner, STDERR_FILENO);
    Log log;
    Status opened = log_open(&log, NULL, 0, true);
    bool terminal = log.terminal;
    log_progress(&log, "0123\xc3\xa9"
                       "56789");
    char text[64] = "";
    ssize_t n = read(outer, text, sizeof text - 1);
    log.line_open = false;
    log_close(&log);
    dup2(before, STDERR_FILENO);
    close(before);
    close(inner);
    close(outer);
    assert_int_equal(opened, OK);
    assert_true(terminal && n > 0);
    assert_string_equal(text, "\r\033[K0123\xc3\xa9"
                              "5678");
}

static void log__appends_to_what_is_there(void **state)
{
    Place *p = *state;
    for (int i = 0; i < 2; i++) {
        Log log;
        assert_int_equal(log_open(&log, p->log, i, false), OK);
        log_line(&log, "run");
        log_close(&log);
    }
    assert_regex(read_all(p, p->log), "^" TIME " rank 0: run\n" TIME " rank 1: run\n$");
}

static void log__a_long_line_is_cut_and_ends(void **state)
{
    Place *p = *state;
    static char big[10000];
    memset(big, 'x', sizeof big - 1);
    Log log;
    assert_int_equal(log_open(&log, p->log, 0, false), OK);
    log_line(&log, "%s", big);
    log_line(&log, "next");
    log_close(&log);
    char *text = read_all(p, p->log);
    assert_regex(text, "^" TIME " rank 0: x+\n" TIME " rank 0: next\n$");
    assert_true(strlen(text) < 5000);
}

static void log__null_is_silent(void **state)
{
    Place *p = *state;
    begin_stderr(p);
    log_line(NULL, "a");
    log_warning(NULL, "b");
    log_file_line(NULL, "c");
    log_progress(NULL, "d");
    assert_string_equal(end_stderr(p), "");
}

static void log__a_path_that_cannot_be_is_an_error(void **state)
{
    Place *p = *state;
    Log log;
    char path[128];
    snprintf(path, sizeof path, "%s/missing/log.txt", p->dir);
    assert_int_equal(log_open(&log, path, 0, false), ERR_IO);
    assert_non_null(strstr(status_message(), path));
    log_close(&log);
}

static void log__lines_before_the_file_wait_for_it(void **state)
{
    Place *p = *state;
    Log log;
    assert_int_equal(log_open(&log, NULL, 0, false), OK);
    log_line(&log, "lost"); /* nothing keeps it yet */
    log_keep(&log, &p->arena);
    log_line(&log, "kept");
    assert_int_equal(log_attach(&log, p->log), OK);
    log_line(&log, "after");
    log_close(&log);
    assert_regex(read_all(p, p->log), "^" TIME " rank 0: kept\n" TIME " rank 0: after\n$");
}

enum { RANKS = 4, LINES = 200 };

static void *write_lines(void *arg)
{
    Log *log = arg;
    for (int i = 0; i < LINES; i++) log_line(log, "line %d of rank %d, all of it", i, log->rank);
    return NULL;
}

static void log__lines_of_ranks_do_not_mix(void **state)
{
    Place *p = *state;
    Log log[RANKS];
    pthread_t thread[RANKS];
    for (int r = 0; r < RANKS; r++) assert_int_equal(log_open(&log[r], p->log, r, false), OK);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, write_lines, &log[r]), 0);
    for (int r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
        log_close(&log[r]);
    }
    int next[RANKS] = {0}, n = 0;
    char *text = read_all(p, p->log);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), n++) {
        int rank, i, rank_again, end = 0;
        assert_int_equal(sscanf(line, "%*s rank %d: line %d of rank %d, all of it%n", &rank, &i,
                                &rank_again, &end),
                         3);
        assert_int_equal(line[end], '\0');
        assert_int_equal(rank, rank_again);
        assert_int_equal(i, next[rank]++);
    }
    assert_int_equal(n, RANKS * LINES);
}

int main(void)
{
#define ROW(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        ROW(log__lines_have_time_and_rank_in_the_file),
        ROW(log__the_leading_rank_shows_its_lines),
        ROW(log__progress_overwrites_its_line_on_a_terminal),
        ROW(log__progress_is_cut_to_the_terminals_width),
        ROW(log__appends_to_what_is_there),
        ROW(log__a_long_line_is_cut_and_ends),
        ROW(log__null_is_silent),
        ROW(log__a_path_that_cannot_be_is_an_error),
        ROW(log__lines_before_the_file_wait_for_it),
        ROW(log__lines_of_ranks_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
