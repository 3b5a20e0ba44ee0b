#include "io/lock.h"
#include "temp_dir.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* A process that holds the lock until it is killed; it is held when this returns. */
static pid_t start_holder(const char *path)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int fd;
        if (file_lock(&fd, path, 0) != OK || write(ends[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return child;
}

static void lock__is_of_one_process_until_it_ends(void **state)
{
    Temp *temp = *state;
    const char *path = temp_path(temp, "log.txt");
    int fd;
    pid_t holder = start_holder(path);
    assert_int_equal(file_lock(&fd, path, 0.05), ERR_USAGE);
    assert_message("log.txt: in use by another run");
    assert_int_equal(fd, -1);
    file_unlock(&fd);
    assert_int_equal(kill(holder, SIGKILL), 0);
    assert_ok(file_lock(&fd, path, 60));
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    file_unlock(&fd);
    assert_ok(file_lock(&fd, path, 0));
    file_unlock(&fd);
    assert_int_equal(file_lock(&fd, temp_path(temp, "no/log.txt"), 0), ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEMP_TEST(lock__is_of_one_process_until_it_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
