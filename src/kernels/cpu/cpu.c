#include "kernels/cpu/cpu.h"

void cpu_backend_init(Backend *be, int n_threads)
{
    backend_ref_init(be, n_threads);
    be->gemm = cpu_gemm;
    be->grouped_gemm = cpu_grouped_gemm;
    be->rmsnorm = cpu_rmsnorm;
    be->rmsnorm_backward = cpu_rmsnorm_backward;
    be->rope = cpu_rope;
    be->attention = cpu_attention;
    be->attention_backward = cpu_attention_backward;
    be->router = cpu_router;
    be->router_backward = cpu_router_backward;
    be->swiglu = cpu_swiglu;
    be->swiglu_backward = cpu_swiglu_backward;
    be->gather_rows = cpu_gather_rows;
    be->combine_rows = cpu_combine_rows;
    be->scatter_add_rows = cpu_scatter_add_rows;
    be->cross_entropy = cpu_cross_entropy;
    be->add = cpu_add;
    be->add_bias = cpu_add_bias;
    be->bias_backward = cpu_bias_backward;
    be->convert = cpu_convert;
    be->sum_squares = cpu_sum_squares;
    be->adamw = cpu_adamw;
    be->sgd = cpu_sgd;
}
