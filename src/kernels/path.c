#include "kernels/path.h"
#include "kernels/backend.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bits of CPUID leaf 1 (ecx), 0x80000001 (ecx) and 7 (ebx, edx), and of XCR0: registers that the system saves. */
typedef struct Features {
    uint32_t basic_c, extended_c, more_b, more_d;
    uint64_t saved;
} Features;

// clang-format off
#define BIT(n) (1u << (n))
/* What a path needs beyond those before it. Source: x86-64 psABI, micro-architecture levels; Intel SDM volume 1, 13 and 18. */
static const Features needs[KERNEL_PATH_COUNT] = {
    [KERNEL_AVX2] = {
        .basic_c = BIT(0) | BIT(9) | BIT(12) | BIT(13) | BIT(19) | BIT(20) | BIT(22) | BIT(23) /* SSE3, SSSE3, FMA, CX16, SSE4.1, SSE4.2, MOVBE, POPCNT */
                 | BIT(27) | BIT(28) | BIT(29),   /* OSXSAVE, AVX, F16C */
        .extended_c = BIT(0) | BIT(5),            /* LAHF, LZCNT */
        .more_b = BIT(3) | BIT(5) | BIT(8),       /* BMI1, AVX2, BMI2 */
        .saved = BIT(1) | BIT(2)},                /* xmm, ymm */
    [KERNEL_AVX512] = {
        .more_b = BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31), /* F, DQ, CD, BW, VL */
        .saved = BIT(5) | BIT(6) | BIT(7)},       /* masks, zmm */
    [KERNEL_AMX] = {
        .more_d = BIT(22) | BIT(24),              /* AMX-BF16, AMX-TILE */
        .saved = BIT(17) | BIT(18)},              /* tile configuration, tiles */
};
// clang-format on

static Features features_here(void)
{
    Features f = {0};
    unsigned a, b, c, d;
    if (__get_cpuid(1, &a, &b, &c, &d)) f.basic_c = c;
    if (__get_cpuid(0x80000001, &a, &b, &c, &d)) f.extended_c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) f.more_b = b, f.more_d = d;
    if (f.basic_c & BIT(27)) { /* else there is no xgetbv */
        __asm__("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
        f.saved = a | (uint64_t)d << 32;
    }
    return f;
}

/* Source: Linux, Documentation/arch/x86/xstate.rst. */
static bool tiles_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

bool kernel_path_works(KernelPath path)
{
    const Features f = features_here();
    for (int p = 0; p <= (int)path; p++) {
        const Features *n = &needs[p];
        if ((n->basic_c & ~f.basic_c) || (n->extended_c & ~f.extended_c) ||
            (n->more_b & ~f.more_b) || (n->more_d & ~f.more_d) || (n->saved & ~f.saved))
            return false;
    }
    return path < KERNEL_AMX || tiles_permitted();
}
#else
bool kernel_path_works(KernelPath path)
{
    return path == KERNEL_GENERIC;
}
#endif

/* Each in the copy of kernels/cpu/cpu.c of its path. */
typedef void BackendInit(Backend *be, int n_threads);
BackendInit cpu_backend_init_generic, cpu_backend_init_avx2, cpu_backend_init_avx512,
    cpu_backend_init_amx;

static const struct {
    const char *name;
    BackendInit *init;
} paths[KERNEL_PATH_COUNT] = {
    [KERNEL_GENERIC] = {"generic", cpu_backend_init_generic},
#if defined(__x86_64__)
    [KERNEL_AVX2] = {"avx2", cpu_backend_init_avx2},
    [KERNEL_AVX512] = {"avx512", cpu_backend_init_avx512},
    [KERNEL_AMX] = {"amx", cpu_backend_init_amx},
#else
    [KERNEL_AVX2] = {"avx2", NULL},
    [KERNEL_AVX512] = {"avx512", NULL},
    [KERNEL_AMX] = {"amx", NULL},
#endif
};

const char *kernel_path_name(KernelPath path)
{
    return paths[path].name;
}

void backend_cpu_init(Backend *be, KernelPath path, int n_threads)
{
    paths[path].init(be, n_threads);
    be->name = paths[path].name;
}

KernelPath kernel_path_best(void)
{
    int path = KERNEL_PATH_COUNT - 1;
    while (path > 0 && !kernel_path_works((KernelPath)path)) path--;
    return (KernelPath)path;
}

Status kernel_path_find(KernelPath *out, const char *name, const char *place)
{
    const KernelPath best = kernel_path_best();
    if (!strcmp(name, "auto")) {
        *out = best;
        return OK;
    }
    char there[64] = "";
    for (int path = (int)best; path >= 0; path--) {
        if (!strcmp(name, paths[path].name)) {
            *out = (KernelPath)path;
            return OK;
        }
        size_t n = strlen(there);
        snprintf(there + n, sizeof there - n, ", %s", paths[path].name);
    }
    return FAIL(ERR_USAGE, "%s: train.isa: this machine cannot (found %s, expected auto%s)", place,
                name, there);
}
