#pragma once
/**
 * Lines for people: to stderr, and to the run's log.txt with rank and time. One line, one write, so
 * the lines of ranks do not mix. A NULL Log is silent.
 */
#include "base/text.h"

typedef struct Log {
    int fd; /* log.txt, opened for appending; -1: none */
    int rank;
    bool to_stderr;     /* usually rank 0 only */
    bool silent;        /* as if it were NULL */
    bool terminal;      /* stderr is one: progress may overwrite its line */
    bool line_open;     /* a progress line without its newline is on the terminal */
    TextBuffer waiting; /* lines of a log that has no file yet; without an arena they are dropped */
} Log;

/** path NULL: stderr only (see log_keep). */
Status log_open(Log *log, const char *path, int rank, bool to_stderr) MUST_USE;
/** From now on lines wait in the arena until log_attach. */
void log_keep(Log *log, Arena *arena);
/** Give a log without a file its file; the lines that waited go there first. */
Status log_attach(Log *log, const char *path) MUST_USE;
void log_close(Log *log);
void log_line(Log *log, const char *format, ...) PRINTF_LIKE(2, 3);
/** The same with "warning: " before it, shown by every rank. */
void log_warning(Log *log, const char *format, ...) PRINTF_LIKE(2, 3);
/** To log.txt alone. */
void log_file_line(Log *log, const char *format, ...) PRINTF_LIKE(2, 3);
/** On a terminal one line, cut to its width, that the next overwrites; elsewhere nothing (the caller logs plain lines). */
void log_progress(Log *log, const char *format, ...) PRINTF_LIKE(2, 3);
