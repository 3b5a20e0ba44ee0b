#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static Status open_file(Log *log, const char *path)
{
    log->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->fd < 0) return FAIL(ERR_IO, "%s: cannot open for writing (%s)", path, strerror(errno));
    return OK;
}

Status log_open(Log *log, const char *path, int rank, bool to_stderr)
{
    *log = (Log){
        .fd = -1, .rank = rank, .to_stderr = to_stderr, .terminal = isatty(STDERR_FILENO) == 1};
    return path ? open_file(log, path) : OK;
}

/* A full disk must not end a run over its log: what cannot be written is dropped. */
static void write_file(const Log *log, const char *bytes, size_t n)
{
    if (n && write(log->fd, bytes, n) < 0) return;
}

void log_keep(Log *log, Arena *arena)
{
    text_buffer_init(&log->waiting, arena);
}

Status log_attach(Log *log, const char *path)
{
    TRY(open_file(log, path));
    write_file(log, log->waiting.text, log->waiting.length);
    return OK;
}

void log_close(Log *log)
{
    if (log->line_open) fputc('\n', stderr);
    log->line_open = false;
    if (log->fd >= 0) close(log->fd);
    log->fd = -1;
}

static void put(Log *log, bool show, const char *prefix, const char *text)
{
    if (show) {
        fprintf(stderr, "%s%s%s\n", log->line_open ? "\r\033[K" : "", prefix, text);
        log->line_open = false;
    }
    if (log->fd < 0 && !log->waiting.arena) return;
    char line[4096], when[32];
    time_t now = time(NULL);
    struct tm parts;
    localtime_r(&now, &parts);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &parts);
    int n = snprintf(line, sizeof line, "%s rank %d: %s%s\n", when, log->rank, prefix, text);
    if (n >= (int)sizeof line) line[(n = (int)sizeof line - 1) - 1] = '\n';
    if (log->fd < 0)
        text_append(&log->waiting, line, (size_t)n);
    else
        write_file(log, line, (size_t)n);
}

#define FORMAT_INTO(text, format) \
    do { \
        va_list args; \
        va_start(args, format); \
        vsnprintf(text, sizeof text, format, args); \
        va_end(args); \
    } while (0)

void log_line(Log *log, const char *format, ...)
{
    if (!log || log->silent) return;
    char text[3072];
    FORMAT_INTO(text, format);
    put(log, log->to_stderr, "", text);
}

void log_warning(Log *log, const char *format, ...)
{
    if (!log || log->silent) return;
    char text[3072];
    FORMAT_INTO(text, format);
    put(log, true, "warning: ", text);
}

void log_file_line(Log *log, const char *format, ...)
{
    if (!log || log->silent) return;
    char text[3072];
    FORMAT_INTO(text, format);
    put(log, false, "", text);
}

/* A line that wraps cannot be taken back: its first rows would stay. Bytes of the text for one row, whole characters. */
static int bytes_that_fit(const char *text)
{
    struct winsize window;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) != 0 || window.ws_col < 2) return INT_MAX;
    int n = 0, columns = 0;
    for (; text[n]; n++)
        if (((unsigned char)text[n] & 0xC0) != 0x80 && ++columns == window.ws_col) break;
    return n;
}

void log_progress(Log *log, const char *format, ...)
{
    if (!log || log->silent || !log->to_stderr || !log->terminal) return;
    char text[512];
    FORMAT_INTO(text, format);
    fprintf(stderr, "\r\033[K%.*s", bytes_that_fit(text), text);
    fflush(stderr);
    log->line_open = true;
}
