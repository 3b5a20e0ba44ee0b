#pragma once
/**
 * Each file of kernels/cpu is compiled once per kernel path (kernels/path.h), and what the files share carries the path's
 * name: cpu_gemm is cpu_gemm_avx512 to the linker. Everything else in them is static. CPU_PATH comes from CMakeLists.txt.
 */
#if !defined(CPU_PATH)
#define CPU_PATH generic
#endif
#define CPU_JOIN_NOW(name, path) name##_##path
#define CPU_JOIN(name, path) CPU_JOIN_NOW(name, path)
#define CPU_NAME(name) CPU_JOIN(name, CPU_PATH)

#define cpu_backend_init CPU_NAME(cpu_backend_init)
#define cpu_product CPU_NAME(cpu_product)
#define cpu_tile_product CPU_NAME(cpu_tile_product)
#define cpu_gemm CPU_NAME(cpu_gemm)
#define cpu_grouped_gemm CPU_NAME(cpu_grouped_gemm)
#define cpu_rmsnorm CPU_NAME(cpu_rmsnorm)
#define cpu_rmsnorm_backward CPU_NAME(cpu_rmsnorm_backward)
#define cpu_bias_backward CPU_NAME(cpu_bias_backward)
#define cpu_attention CPU_NAME(cpu_attention)
#define cpu_attention_backward CPU_NAME(cpu_attention_backward)
#define cpu_router CPU_NAME(cpu_router)
#define cpu_router_backward CPU_NAME(cpu_router_backward)
#define cpu_rope CPU_NAME(cpu_rope)
#define cpu_swiglu CPU_NAME(cpu_swiglu)
#define cpu_swiglu_backward CPU_NAME(cpu_swiglu_backward)
#define cpu_add CPU_NAME(cpu_add)
#define cpu_add_bias CPU_NAME(cpu_add_bias)
#define cpu_convert CPU_NAME(cpu_convert)
#define cpu_gather_rows CPU_NAME(cpu_gather_rows)
#define cpu_combine_rows CPU_NAME(cpu_combine_rows)
#define cpu_scatter_add_rows CPU_NAME(cpu_scatter_add_rows)
#define cpu_cross_entropy CPU_NAME(cpu_cross_entropy)
#define cpu_sum_squares CPU_NAME(cpu_sum_squares)
#define cpu_adamw CPU_NAME(cpu_adamw)
#define cpu_sgd CPU_NAME(cpu_sgd)
