#pragma once
/**
 * How errors flow. What can be wrong before the first step is a Status: recorded once where it is
 * decided, passed up with TRY, printed once by the command line. What goes wrong inside a step ends
 * the process with die(), one line naming rank, step, action, layer and operation.
 * The message belongs to the calling thread (one rank, one thread).
 */
#include <stdbool.h>
#include <stdint.h>

typedef enum Status {
    OK = 0,
    ERR_USAGE,       /* command line or configuration                         -> exit 2 */
    ERR_FORMAT,      /* a file's or line's content                             -> exit 2 */
    ERR_IO,          /* open, read, write, rename                              -> exit 2 */
    ERR_MEMORY,      /* an allocation failed                                   -> exit 2 */
    ERR_UNSUPPORTED, /* known, but not available                               -> exit 2 */
    ERR_PEER,        /* another rank failed and says why; this one is silent   -> exit 2 */
    ERR_FAILED,      /* the run failed after its start                         -> exit 1 */
    ERR_STOPPED,     /* stopped by a signal after saving                       -> exit 3 */
} Status;

#define MUST_USE __attribute__((warn_unused_result))
#define PRINTF_LIKE(string, first) __attribute__((format(printf, string, first)))

/**
 * Record a one-line message ("PLACE: what is wrong (found … expected …)"); its value is the code. The code stands
 * here once more so that compilers see that a failure is not OK, and warn of no output that only success sets.
 */
#define FAIL(code, ...) (status_fail(__VA_ARGS__), (Status)(code))
/** Return from the calling function if the expression fails. */
#define TRY(expression) \
    do { \
        Status try_status = (expression); \
        if (try_status != OK) return try_status; \
    } while (0)

void status_fail(const char *format, ...) PRINTF_LIKE(1, 2);

/** The calling thread's last recorded message; "" if none. Lent until the next FAIL. */
const char *status_message(void);

/**
 * What a failure is once the work has begun: ERR_FAILED with the same message. OK, ERR_PEER and ERR_STOPPED
 * stay what they are.
 */
Status status_after_start(Status status) MUST_USE;
/** The work begins with this expression: its failures, and deaths of this thread from here on, end with 1. */
#define AFTER_START(expression) (breadcrumb()->started = true, status_after_start(expression))

/** Exit code of the process for a status (contract: 0, 1, 2, 3). */
int status_exit_code(Status status);

/** Where this thread is inside a step; plain stores, read by die() only. */
typedef struct Breadcrumb {
    int rank;
    int64_t step;       /* 0: outside of a step */
    const char *action; /* "2F0", lent */
    int layer;          /* -1: none */
    const char *op;     /* "moe.dispatch", lent; NULL: none */
    bool started;       /* the work has begun: a death is a failure (1), no refusal (2) */
} Breadcrumb;

Breadcrumb *breadcrumb(void);

/**
 * Print one line `stagewright: error: rank … step … action … layer … op: reason` and end the process with 1, or with 2
 * where nothing has started yet. The first thread that dies speaks, others that do so meanwhile wait for the end.
 */
_Noreturn void die(const char *format, ...) PRINTF_LIKE(1, 2);
/** Its two halves, for a death that several ranks speak of. */
void die_line(const char *format, ...) PRINTF_LIKE(1, 2);
_Noreturn void die_now(void);

/**
 * What die() calls after its line, to end the processes of the other ranks too; NULL: nothing. It is the one
 * variable that all threads of the process share: a death concerns the process, whoever dies in it.
 */
void die_hook(void (*end_others)(int exit_code));
