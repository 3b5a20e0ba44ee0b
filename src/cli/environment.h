#pragma once
/**
 * What the C library and OpenMP's read once, when the program is loaded: how threads wait, and how large their stacks
 * are. So the program sets it and starts itself again. What the user has set stays where the program can work with it.
 */
#include "base/status.h"

/**
 * Starts the program again if one of these is not as below, and returns if all are, or if they cannot be set.
 *
 *   OMP_WAIT_POLICY   unset (and GOMP_SPINCOUNT too): passive. Threads of a rank that wait for its next parallel region
 *                     must not spin: ranks may outnumber cores, and then a short region costs milliseconds.
 *   stacks            less than 2 MiB (ulimit -s; OMP_STACKSIZE, GOMP_STACKSIZE, KMP_STACKSIZE): 8 MiB, or the hard limit.
 *                     A product takes almost 1 MiB (kernels/cpu/cpu.h).
 */
void environment_prepare(char **argv);

/** Errors: ERR_USAGE if the stack is less than 2 MiB and the hard limit forbids more. */
Status environment_check(void) MUST_USE;
