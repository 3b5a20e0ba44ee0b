#include "base/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Thread_local char message[2048];
static _Thread_local Breadcrumb crumb = {.layer = -1};
static void (*_Atomic end_others_at_death)(int exit_code);

void status_fail(const char *format, ...)
{
    /* Formatted aside first: an argument may be the old message itself. */
    char text[sizeof message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' ';
    memcpy(message, text, sizeof message);
}

const char *status_message(void)
{
    return message;
}

Status status_after_start(Status status)
{
    return status == OK || status == ERR_PEER || status == ERR_STOPPED ? status : ERR_FAILED;
}

int status_exit_code(Status status)
{
    switch (status) {
    case OK: return 0;
    case ERR_FAILED: return 1;
    case ERR_STOPPED: return 3;
    default: return 2;
    }
}

Breadcrumb *breadcrumb(void)
{
    return &crumb;
}

static void print_death(const char *format, va_list args)
{
    char reason[1024], place[256] = "";
    vsnprintf(reason, sizeof reason, format, args);
    size_t n = 0;
    if (crumb.step > 0)
        n += (size_t)snprintf(place + n, sizeof place - n, " step %lld", (long long)crumb.step);
    if (crumb.action)
        n += (size_t)snprintf(place + n, sizeof place - n, " action %s", crumb.action);
    if (crumb.layer >= 0)
        n += (size_t)snprintf(place + n, sizeof place - n, " layer %d", crumb.layer);
    if (crumb.op) snprintf(place + n, sizeof place - n, " %s", crumb.op);
    fprintf(stderr, "stagewright: error: rank %d%s: %s\n", crumb.rank, place, reason);
}

void die_line(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_death(format, args);
    va_end(args);
}

void die_now(void)
{
    int exit_code = crumb.started ? 1 : 2;
    fflush(NULL);
    void (*end_others)(int) = atomic_load(&end_others_at_death);
    if (end_others) end_others(exit_code);
    _exit(exit_code);
}

void die(const char *format, ...)
{
    static atomic_flag dying = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&dying)) pause();
    /* The last line of this process: ranks that are threads of it say no more. A launcher's library may have to. */
    if (!atomic_load(&end_others_at_death)) flockfile(stderr);
    va_list args;
    va_start(args, format);
    print_death(format, args);
    va_end(args);
    die_now();
}

void die_hook(void (*end_others)(int exit_code))
{
    atomic_store(&end_others_at_death, end_others);
}
