#include "train/metrics.h"
#include "io/file.h"
#include "io/json.h"
#include "io/jsonl.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The sign of a NaN says nothing, and depends on the machine. */
static double without_nan_sign(double value)
{
    return isnan(value) ? NAN : value;
}

void metrics_line(char *out, size_t n, const Metrics *m, int64_t n_steps)
{
    snprintf(out, n, "step %lld/%lld  loss %.4f  ce %.4f  norm %.3g  lr %.3g  %.0f tokens/s",
             (long long)m->step, (long long)n_steps, without_nan_sign(m->total),
             without_nan_sign(m->ce), without_nan_sign(m->grad_norm), m->lr,
             (double)m->tokens / m->time_step);
}

/* How many bytes of the file hold the steps up to the last kept one, and which that is. */
static Status bytes_to_keep(const char *path, int64_t keep_steps, int64_t *bytes, int64_t *last,
                            Arena *arena)
{
    char *text;
    size_t n;
    TRY(file_read(arena, path, &text, &n));
    *bytes = 0;
    int64_t line = 0;
    for (char *end; *last < keep_steps && (end = memchr(text + *bytes, '\n', n - (size_t)*bytes));
         *bytes = end + 1 - text) {
        JsonDoc doc;
        int64_t step;
        const char *place = text_format(arena, "%s:%lld", path, (long long)++line);
        TRY(json_doc_parse(&doc, place, text + *bytes, (size_t)(end - text - *bytes)));
        Status status = json_expect_object(doc.root, place);
        if (status == OK) status = json_get_int(doc.root, place, "step", &step);
        json_doc_free(&doc);
        if (status != OK) return status;
        if (step > keep_steps) break;
        *last = step;
    }
    return OK;
}

Status metrics_open(MetricsFile *file, const char *path, int64_t keep_steps, Arena *arena)
{
    file->path = text_copy(arena, path);
    file->fd = -1;
    file->last_step = 0;
    int64_t bytes = 0;
    if (keep_steps >= 0 && file_exists(path))
        TRY(bytes_to_keep(path, keep_steps, &bytes, &file->last_step, arena));
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, bytes) != 0) {
        Status status = FAIL(ERR_IO, "%s: cannot open for writing (%s)", path, strerror(errno));
        if (fd >= 0) close(fd);
        return status;
    }
    file->fd = fd;
    return OK;
}

static void put_real(TextBuffer *out, const char *key, double value)
{
    text_append_format(out, ", \"%s\": ", key);
    json_append_real(out, value);
}

static void put_int(TextBuffer *out, const char *key, int64_t value)
{
    text_append_format(out, ", \"%s\": %lld", key, (long long)value);
}

/* Resident bytes of the process now; 0 when the system does not say. */
static int64_t process_bytes(void)
{
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    char text[128];
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    long long pages = 0;
    if (n > 0) {
        text[n] = '\0';
        const char *blank = strchr(text, ' ');
        if (blank) pages = atoll(blank);
    }
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

Status metrics_append(MetricsFile *file, const Metrics *m, Arena *scratch)
{
    ArenaMark mark = arena_mark(scratch);
    TextBuffer out;
    text_buffer_init(&out, scratch);
    text_append_format(&out, "{\"step\": %lld", (long long)m->step);
    put_real(&out, "epoch", m->epoch);
    put_real(&out, "loss/total", m->total);
    put_real(&out, "loss/ce", m->ce);
    put_real(&out, "loss/balancing", m->balancing);
    put_real(&out, "loss/z", m->z);
    text_append_format(&out, ", \"loss/mtp\": null");
    put_real(&out, "grad_norm", m->grad_norm);
    put_real(&out, "lr", m->lr);
    put_int(&out, "tokens", m->tokens);
    put_int(&out, "trained_tokens", m->trained_tokens);
    put_int(&out, "skipped", m->skipped);
    put_real(&out, "router/max_violation", m->max_violation);
    put_real(&out, "time/step", m->time_step);
    put_real(&out, "time/data", m->time_data);
    put_real(&out, "tokens_per_second", (double)m->tokens / m->time_step);
    put_real(&out, "flops_per_second", m->flops / m->time_step);
    put_real(&out, "pipeline/bubble", m->bubble);
    put_real(&out, "pipeline/bubble_predicted", m->bubble_predicted);
    text_append_format(&out, ", \"memory/peak_bytes\": [");
    for (int r = 0; r < m->n_ranks; r++)
        text_append_format(&out, "%s%lld", r ? ", " : "", (long long)m->memory_r[r]);
    text_append_format(&out, "]");
    put_int(&out, "memory/process_bytes", process_bytes());
    put_real(&out, "eval/loss", m->eval_loss);
    text_append(&out, "}\n", 2);
    Status status = fd_write(file->fd, file->path, out.text, out.length);
    arena_rewind(scratch, mark);
    return status;
}

void metrics_close(MetricsFile *file)
{
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}
