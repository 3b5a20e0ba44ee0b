#include "kernels/cpu/cpu.h"

void backend_cpu_init(Backend *be, int n_threads)
{
    backend_ref_init(be, n_threads);
    be->name = "cpu";
    be->gemm = cpu_gemm;
    be->grouped_gemm = cpu_grouped_gemm;
}
