#pragma once
/**
 * Kernel paths. The files of kernels/cpu are compiled once per path, for processors of different abilities, and a process
 * chooses one when it starts. It goes by what the processor says it can do and the system allows, never by its model: the
 * same path gives the same bits wherever it runs (numerics.md 12); two paths may differ in the last places.
 *
 *   generic   what the compiler's target has at least (x86-64: SSE2)
 *   avx2      x86-64-v3: AVX2, FMA
 *   avx512    x86-64-v4: AVX-512 F, BW, CD, DQ, VL
 *   amx       avx512, and products with a bf16 operand by AMX tiles
 *
 * A later path includes the ones before it. Other processors than x86-64 have generic alone.
 */
#include "base/status.h"

#include <stdbool.h>

typedef enum KernelPath {
    KERNEL_GENERIC,
    KERNEL_AVX2,
    KERNEL_AVX512,
    KERNEL_AMX,
    KERNEL_PATH_COUNT
} KernelPath;

const char *kernel_path_name(KernelPath path);

/**
 * Whether this machine can. For amx this asks Linux for the tiles' registers. It gives them to the whole process, to threads
 * that run already too, however often it is asked.
 */
bool kernel_path_works(KernelPath path);
/** The last one that works. */
KernelPath kernel_path_best(void);

/**
 * The path called `name`; "auto": the best one.
 * Errors: ERR_USAGE "PLACE: train.isa: …", with what there is, if this machine cannot.
 */
Status kernel_path_find(KernelPath *out, const char *name, const char *place) MUST_USE;
