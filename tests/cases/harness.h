#pragma once
/**
 * What tests that run the program need: a folder that goes away, the program's exit status, and the
 * files it wrote. Independent of src/, as fixtures.h is.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/** A new folder under /tmp; returns its path, owned by the caller. Ends the test program on failure. */
char *folder_make(void);
/** Remove a folder with all that is in it, and free its path. */
void folder_remove(char *path);
/** `folder/name` (printf form of the name), for reading at once: one of 8 buffers used in turn. */
const char *path_in(const char *folder, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

enum { ARGUMENTS_MAX = 128 };

/** Arguments of one run of the program, in order; texts are copied. */
typedef struct Arguments {
    char *at[ARGUMENTS_MAX + 1];
    int n;
} Arguments;

/** Append one argument (printf form). */
void arguments_add(Arguments *args, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arguments_free(Arguments *args);
/**
 * Run `program` with these arguments; stdout and stderr go to out.txt and err.txt in `folder`.
 * Returns the exit status, or 128 + signal; a run of more than limit_s seconds ends by SIGALRM (142).
 */
int program_run(const char *program, const Arguments *args, const char *folder, unsigned limit_s);
/** Print a text file to stderr, each line marked: for a run that ended otherwise than expected. */
void file_show(const char *path);
/** Whether two files hold the same bytes. False if one cannot be read. */
bool files_equal(const char *path, const char *other);

typedef struct FileTensor {
    char name[128];
    char dtype[8]; /* as the file says: F32, BF16, F16 */
    int n_dims;
    int64_t dim[4];
    int64_t n; /* elements */
    float *value;
} FileTensor;

/** All tensors of a safetensors file, or of all such files of a folder. */
typedef struct TensorFile {
    FileTensor *at;
    int n;
} TensorFile;

/** Returns false, with a line on stderr, if a file is not there or is not as the format says. */
bool tensor_file_read(TensorFile *file, const char *path);
bool tensor_folder_read(TensorFile *file, const char *folder);
const FileTensor *tensor_file_find(const TensorFile *file, const char *name); /* NULL: not there */
void tensor_file_free(TensorFile *file);

/** How far apart two tensors are. */
typedef struct TensorError {
    double difference, reference; /* 2-norms */
    double worst;                 /* largest |got - want| */
    int64_t worst_at;
    float worst_got, worst_want;
    double largest; /* largest |want| */
} TensorError;

/** Of n elements. */
TensorError tensor_error(const float *got, const float *want, int64_t n);
