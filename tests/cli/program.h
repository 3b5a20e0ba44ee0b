#pragma once
/** Run the built program as a user does, and look at its output, messages and exit status. */
#include "../io/temp_dir.h"

#include <sys/wait.h>
#include <unistd.h>

typedef struct Ran {
    int status; /* exit status; -1: ended by a signal */
    char *out, *err;
} Ran;

/** arguments: a shell's words after the program's name. */
static inline Ran run_program(Temp *temp, const char *arguments)
{
    const char *out = temp_path(temp, "stdout.txt"), *err = temp_path(temp, "stderr.txt");
    int status =
        system(text_format(&temp->arena, "'%s' %s >'%s' 2>'%s'", SW_PROGRAM, arguments, out, err));
    Ran ran = {.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1};
    assert_ok(file_read(&temp->arena, out, &ran.out, NULL));
    assert_ok(file_read(&temp->arena, err, &ran.err, NULL));
    return ran;
}

/** Runs, and the text has all the words (NULL ends them). */
static inline void assert_says(const char *arguments, const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(text, *words)) fail_msg("%s: not \"%s\" in: %s", arguments, *words, text);
}

/** Refused with exit status 2, one line on stderr and nothing on stdout. */
static inline void assert_refused(Temp *temp, const char *arguments, const char *const *words)
{
    Ran ran = run_program(temp, arguments);
    if (ran.status != 2) fail_msg("%s: exit %d: %s", arguments, ran.status, ran.err);
    assert_string_equal(ran.out, "");
    assert_int_equal(strncmp(ran.err, "stagewright: error: ", 20), 0);
    const char *newline = strchr(ran.err, '\n');
    assert_true(newline && !newline[1]);
    assert_says(arguments, ran.err, words);
}

static inline Ran assert_runs(Temp *temp, const char *arguments)
{
    Ran ran = run_program(temp, arguments);
    if (ran.status != 0) fail_msg("%s: exit %d: %s", arguments, ran.status, ran.err);
    return ran;
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
