#pragma once
/**
 * nn: the modules of a model, from linear to block. Each declares its parameters and has forward,
 * backward_input and backward_weight. The room knows neither families, files nor schedules; read linear.h
 * first, then block.h.
 *
 * What all modules share: forward overwrites y; backward_input computes dx = beta dx + …; backward_weight adds
 * into gradients. Matrices get their gradient in backward_weight, vectors (norm scales, biases) in
 * backward_input. Frozen parameters (no gradient memory) are skipped. Leaf modules take nothing but scratch.
 */
#include "comm/comm.h"
#include "core/microbatch.h"
#include "core/param.h"
#include "core/shapes.h"
#include "kernels/backend.h"

/** Keys and values of one sequence, per layer; for generate. Keys are stored after norm and rope. */
typedef struct KvCache {
    int64_t length, capacity;  /* tokens; the caller advances length after a whole forward */
    int first_layer, n_layers; /* of this stage, global index */
    Tensor *k_tk, *v_tk;       /* [n_layers] of [capacity, G*C] */
} KvCache;

/** What a call needs around it. Passed down, never stored. */
typedef struct Run {
    const Backend *be;
    Arena *scratch;
    const MicroBatch *mb;
    DType dtype;     /* activations and working weights: f32 or bf16 (f64 in tests) */
    DType dtype_acc; /* statistics, router, softmax, loss, weight gradients: f32 (f64 with f64) */
    KvCache *kv; /* NULL: none. With one, mb is one segment that continues the cached sequence. */
    Comm *ep;    /* the ranks that share out the experts (nn/exchange.h); NULL: all are here */
    const double *dprob_e; /* [E] dL/dp_te of a balancing loss of all layers; NULL: each its own */
} Run;
