#define _XOPEN_SOURCE 700 /* nftw */
#include "cases/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

_Noreturn static void stop(const char *what, const char *path)
{
    fprintf(stderr, "harness: %s %s: %s\n", what, path, strerror(errno));
    exit(1);
}

/* ---- folders and paths --------------------------------------------------------------------- */

char *folder_make(void)
{
    char *path = strdup("/tmp/stagewright-test-XXXXXX");
    if (!path || !mkdtemp(path)) stop("cannot make", "/tmp/stagewright-test-XXXXXX");
    return path;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info, (void)type, (void)walk;
    return remove(path);
}

void folder_remove(char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0) stop("cannot remove", path);
    free(path);
}

const char *path_in(const char *folder, const char *format, ...)
{
    static _Thread_local char buffer[8][1024];
    static _Thread_local int next;
    char *path = buffer[next++ % 8];
    int n = snprintf(path, sizeof buffer[0], "%s/", folder);
    va_list list;
    va_start(list, format);
    vsnprintf(path + n, sizeof buffer[0] - (size_t)n, format, list);
    va_end(list);
    return path;
}

/* ---- running the program ------------------------------------------------------------------- */

void arguments_add(Arguments *args, const char *format, ...)
{
    if (args->n == ARGUMENTS_MAX) stop("too many arguments", format);
    va_list list;
    va_start(list, format);
    char text[1024];
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    args->at[args->n] = strdup(text);
    if (!args->at[args->n++]) stop("no memory for", text);
}

void arguments_free(Arguments *args)
{
    for (int i = 0; i < args->n; i++) free(args->at[i]);
    *args = (Arguments){0};
}

static void send_to(int fd, const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0 || dup2(file, fd) < 0) _exit(126);
    close(file);
}

int program_run(const char *program, const Arguments *args, const char *folder, unsigned limit_s)
{
    const char *out = path_in(folder, "out.txt"), *err = path_in(folder, "err.txt");
    const char *command[ARGUMENTS_MAX + 2] = {program};
    memcpy(command + 1, args->at, (size_t)args->n * sizeof *command);
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) stop("cannot fork for", program);
    if (child == 0) {
        send_to(STDOUT_FILENO, out);
        send_to(STDERR_FILENO, err);
        alarm(limit_s); /* kept by exec */
        execv(program, (char *const *)command);
        _exit(127);
    }
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) stop("cannot wait for", program);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void file_show(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[512];
    while (file && fgets(line, sizeof line, file)) fprintf(stderr, "    | %s", line);
    if (file) fclose(file);
}

static char *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    char *bytes = NULL;
    long n = -1;
    if (fseek(file, 0, SEEK_END) == 0 && (n = ftell(file)) >= 0) {
        rewind(file);
        bytes = malloc((size_t)n + 1);
        if (bytes && fread(bytes, 1, (size_t)n, file) != (size_t)n) free(bytes), bytes = NULL;
    }
    fclose(file);
    *size = bytes ? (size_t)n : 0;
    return bytes;
}

bool files_equal(const char *path, const char *other)
{
    size_t n, n_other;
    char *bytes = read_all(path, &n), *bytes_other = read_all(other, &n_other);
    bool equal = bytes && bytes_other && n == n_other && memcmp(bytes, bytes_other, n) == 0;
    free(bytes);
    free(bytes_other);
    return equal;
}

/* ---- tensors ------------------------------------------------------------------------------- */

static float from_bf16(const unsigned char *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float from_f16(const unsigned char *at)
{
    uint16_t half;
    memcpy(&half, at, sizeof half);
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent == 0    ? ldexp(fraction, -24)
                  : exponent == 31 ? (fraction ? NAN : INFINITY)
                                   : ldexp(1024 + fraction, exponent - 25);
    return (float)(half >> 15 ? -size : size);
}

static float from_f32(const unsigned char *at)
{
    float x;
    memcpy(&x, at, sizeof x);
    return x;
}

static const struct {
    const char *name;
    int bytes;
    float (*get)(const unsigned char *at);
} dtypes[] = {{"F32", 4, from_f32}, {"BF16", 2, from_bf16}, {"F16", 2, from_f16}};

/* Fill in one tensor from its header entry; false if the entry is not as the format says. */
static bool read_tensor(FileTensor *t, const char *name, const json_t *entry, const char *data,
                        size_t size)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    int64_t begin = json_integer_value(json_array_get(offsets, 0));
    int64_t end = json_integer_value(json_array_get(offsets, 1));
    if (!dtype || json_array_size(shape) > 4 || begin < 0 || end < begin || (size_t)end > size)
        return false;
    *t = (FileTensor){.n_dims = (int)json_array_size(shape), .n = 1};
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    for (int d = 0; d < t->n_dims; d++) {
        t->dim[d] = json_integer_value(json_array_get(shape, (size_t)d));
        t->n *= t->dim[d];
    }
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++) {
        if (strcmp(dtype, dtypes[k].name) != 0) continue;
        if (t->n * dtypes[k].bytes != end - begin) return false;
        t->value = malloc((size_t)(t->n + 1) * sizeof(float));
        if (!t->value) stop("no memory for", name);
        for (int64_t i = 0; i < t->n; i++)
            t->value[i] = dtypes[k].get((const unsigned char *)data + begin + i * dtypes[k].bytes);
        return true;
    }
    return false;
}

/* Append the tensors of one file to those already there. */
static bool append_file(TensorFile *file, const char *path)
{
    size_t size;
    char *bytes = read_all(path, &size);
    json_t *header = NULL;
    uint64_t length = 0;
    if (bytes && size >= 8) {
        for (int i = 0; i < 8; i++) length |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
        if (length <= size - 8) header = json_loadb(bytes + 8, length, 0, NULL);
    }
    bool ok = json_is_object(header);
    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0 || !ok) continue;
        FileTensor *grown = realloc(file->at, (size_t)(file->n + 1) * sizeof *grown);
        if (!grown) stop("no memory for", path);
        file->at = grown;
        ok = read_tensor(&file->at[file->n], name, entry, bytes + 8 + length, size - 8 - length);
        if (ok) file->n++;
    }
    if (!ok) fprintf(stderr, "harness: %s: not a readable safetensors file\n", path);
    json_decref(header);
    free(bytes);
    return ok;
}

bool tensor_file_read(TensorFile *file, const char *path)
{
    *file = (TensorFile){0};
    bool ok = append_file(file, path);
    if (!ok) tensor_file_free(file);
    return ok;
}

bool tensor_folder_read(TensorFile *file, const char *folder)
{
    *file = (TensorFile){0};
    DIR *dir = opendir(folder);
    bool ok = dir != NULL;
    if (!dir) fprintf(stderr, "harness: %s: %s\n", folder, strerror(errno));
    for (struct dirent *entry; ok && (entry = readdir(dir));) {
        const char *end = strrchr(entry->d_name, '.');
        if (end && strcmp(end, ".safetensors") == 0)
            ok = append_file(file, path_in(folder, "%s", entry->d_name));
    }
    if (dir) closedir(dir);
    if (!ok) tensor_file_free(file);
    return ok;
}

const FileTensor *tensor_file_find(const TensorFile *file, const char *name)
{
    for (int i = 0; i < file->n; i++)
        if (strcmp(file->at[i].name, name) == 0) return &file->at[i];
    return NULL;
}

void tensor_file_free(TensorFile *file)
{
    for (int i = 0; i < file->n; i++) free(file->at[i].value);
    free(file->at);
    *file = (TensorFile){0};
}

TensorError tensor_error(const float *got, const float *want, int64_t n)
{
    TensorError error = {0};
    double difference = 0, reference = 0;
    for (int64_t i = 0; i < n; i++) {
        double delta = fabs((double)got[i] - want[i]);
        difference += delta * delta;
        reference += (double)want[i] * want[i];
        error.largest = fmax(error.largest, fabs((double)want[i]));
        if (!(delta <= error.worst)) { /* a NaN is the worst */
            error.worst = delta;
            error.worst_at = i;
            error.worst_got = got[i];
            error.worst_want = want[i];
        }
    }
    error.difference = sqrt(difference);
    error.reference = sqrt(reference);
    return error;
}
