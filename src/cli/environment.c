#include "cli/environment.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { KIB = 1024, LEAST_STACK = 2048 * KIB, GOOD_STACK = 4 * LEAST_STACK };
static const char good_stack[] = "8M";

static bool wait_without_spinning(void)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return false;
    return setenv("OMP_WAIT_POLICY", "passive", 1) == 0;
}

/* A size as OpenMP libraries read it: a number and B, K, M or G; `unit` bytes without a letter. What is none is left to them. */
static bool is_small(const char *text, int64_t unit)
{
    static const char letters[] = "BKMG";
    char *end;
    int64_t size = strtoll(text, &end, 10);
    if (end == text || size < 0) return false;
    while (isspace((unsigned char)*end)) end++;
    const char *letter = *end ? strchr(letters, toupper((unsigned char)*end)) : NULL;
    if (letter) unit = (int64_t)1 << 10 * (letter - letters);
    return size < LEAST_STACK / unit;
}

/* Of the OpenMP threads, as far as the environment sets it; else it is as for all threads. */
static bool enlarge_team_stacks(void)
{
    static const struct {
        const char *name;
        int64_t unit;
    } sizes[] = {{"OMP_STACKSIZE", KIB}, {"GOMP_STACKSIZE", KIB}, {"KMP_STACKSIZE", 1}};
    bool changed = false;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = getenv(sizes[i].name);
        if (text && is_small(text, sizes[i].unit) && setenv(sizes[i].name, good_stack, 1) == 0)
            changed = true;
    }
    return changed;
}

/* Of the first thread, and of those started without a size of their own. */
static bool enlarge_stack(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST_STACK) return false;
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max < GOOD_STACK ? limit.rlim_max : GOOD_STACK;
    return limit.rlim_cur > before && setrlimit(RLIMIT_STACK, &limit) == 0;
}

void environment_prepare(char **argv)
{
    bool changed = wait_without_spinning();
    changed |= enlarge_team_stacks();
    changed |= enlarge_stack();
    char path[4096];
    ssize_t n = changed ? readlink("/proc/self/exe", path, sizeof path - 1)
                        : -1; /* ps and pkill show its name */
    if (n <= 0) return;
    path[n] = '\0';
    execv(path, argv);
}

Status environment_check(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= LEAST_STACK) return OK;
    return FAIL(ERR_USAGE,
                "stack: the limit is too small (found %d KiB, expected at least %d KiB; ulimit -s)",
                (int)(limit.rlim_cur / KIB), LEAST_STACK / KIB);
}
