#pragma once
/**
 * The arithmetic of the program as one table of functions. Modules (nn) hold no loop over floats: they call
 * these. backend_ref_init fills the whole table with plain loops that compute in f64 and round once when they
 * store (the oracle; takes tensors of any float dtype); backend_cpu_init copies it and overrides what it does faster
 * (f32 and bf16). No empty slots, no casts, no capability queries.
 *
 * Shared rules
 *   Shapes:      letters of core/shapes.h; tensors are contiguous, row-major; a [T, H*C] tensor is [T, H, C].
 *   Dtypes:      float tensors of one call have one dtype unless said; "f32+" is f32, or f64 in f64 models. Those of
 *                products may differ from one another: bf16 activations and weights, f32 logits and weight gradients.
 *   Overwrite:   outputs are overwritten unless they have a `beta` (out = beta*out + result, beta 0 or 1; with
 *                beta 0 the old content is not read) or the comment says "adds".
 *   Aliasing:    none unless said.
 *   Determinism: results depend on shapes and values only, never on n_threads: parallel blocks have borders
 *                fixed by shapes, partial sums are added in block order (numerics.md 12).
 *   Memory:      temporaries come from args.scratch (rewound before return) where a call has one.
 *   Threads:     a call opens its own parallel region of be->n_threads, or none when there is little to do.
 */
#include "core/tensor.h"
#include "kernels/path.h"

typedef struct Backend Backend;

/** c = op(a) op(b) + beta c, f32+ accumulation. op transposes when trans_* is set. All 2-D. */
typedef struct GemmArgs {
    Tensor c, a, b;
    bool trans_a, trans_b;
    double beta;
} GemmArgs;

typedef enum GroupedKind {
    GROUPED_FORWARD,        /* c_ro [R, O]  = a_ri [R, I] w_e^T            + beta c */
    GROUPED_BACKWARD_INPUT, /* c_ri [R, I]  = a_ro [R, O] w_e              + beta c */
    GROUPED_BACKWARD_WEIGHT /* c_eoi[E,O,I] += a_ro^T b_ri per group; groups without rows are untouched */
} GroupedKind;

/** Rows offset_e[e] … offset_e[e+1]-1 belong to expert e. Weights [E, O, I] are b for the first two kinds. */
typedef struct GroupedGemmArgs {
    GroupedKind kind;
    Tensor c, a, b;
    const int32_t *offset_e; /* [E+1], ascending from 0 to R */
    int64_t n_groups;
    double beta; /* kinds FORWARD and BACKWARD_INPUT */
} GroupedGemmArgs;

/**
 * rstd_n = 1/sqrt(mean(x²) + eps); y = w * (x * rstd). Statistics in f32+; rstd_n [N] f32+. x * rstd is rounded to y's
 * dtype before w multiplies it (numerics.md 6).
 */
typedef struct RmsNormArgs {
    Tensor y_nd, rstd_n, x_nd, w_d;
    double eps;
} RmsNormArgs;

/** dx = beta dx + rstd (w dy - x̂ mean(x̂ w dy)), x̂ = x rstd;  dw_d += sum_n dy x̂ (f32+; null data: frozen, skipped). */
typedef struct RmsNormBackwardArgs {
    Tensor dx_nd, dw_d, dy_nd, x_nd, w_d, rstd_n;
    double beta;
    Arena *scratch;
} RmsNormBackwardArgs;

/**
 * In place on x_thc [T, H, C]: halves (x1, x2) of each head -> (x1 cos - x2 sin, x2 cos + x1 sin) with the row
 * position_t[t] of the tables [P, C/2] (f32+). inverse: sin negated (the transpose: gradients).
 */
typedef struct RopeArgs {
    Tensor x_thc, cos_pc, sin_pc;
    const int32_t *position_t;
    bool inverse;
} RopeArgs;

/**
 * Causal attention within segments. Query rows of segment s: cu_q[s] … cu_q[s+1]-1, key rows cu_k[s] …; the last
 * query meets the last key, so query i of nq sees keys j <= i + nk - nq (training: cu_q = cu_k). Head h reads
 * key/value head h / (H/G).  p = softmax(scale q k^T), o = p v;  lse_ht [H, Tq] f32+ = log sum exp of the scores.
 * Never holds a [T, T] matrix.
 */
typedef struct AttentionArgs {
    Tensor o_tq, lse_ht, q_tq, k_tk, v_tk; /* [Tq, H*C], [H, Tq], [Tq, H*C], [Tk, G*C], [Tk, G*C] */
    int64_t n_heads, n_kv_heads, head_dim;
    const int32_t *cu_q, *cu_k;
    int n_segments;
    double scale;
    Arena *scratch;
} AttentionArgs;

/** dq, dk, dv (overwritten) from d_o; o and lse as forward left them. */
typedef struct AttentionBackwardArgs {
    Tensor dq_tq, dk_tk, dv_tk, do_tq, o_tq, lse_ht, q_tq, k_tk, v_tk;
    int64_t n_heads, n_kv_heads, head_dim;
    const int32_t *cu_q, *cu_k;
    int n_segments;
    double scale;
    Arena *scratch;
} AttentionBackwardArgs;

/**
 * Softmax router (numerics.md 5): p = softmax(logit) in f32+; id_tk = the K largest in descending order, ties to the
 * lower index (compared as logits, whose order p has: no rounding makes a tie); weight_tk = p[id], divided by their sum if normalise; lse_t = log sum exp(logit).
 * Statistics: count_e [E] I64 = how often each expert was chosen; prob_sum_e [E] F64 = sum_t p_te.
 */
typedef struct RouterArgs {
    Tensor p_te, lse_t, weight_tk; /* f32+ [T, E], [T], [T, K] */
    Tensor id_tk;                  /* I32 [T, K] */
    int64_t *count_e;
    double *prob_sum_e;
    Tensor logit_te; /* f32+ */
    bool normalise;
    Arena *scratch;
} RouterArgs;

/**
 * dlogit (overwritten) from the gradient of the weights, of the balancing loss (dL/dp_te = balance_e[e] for every t;
 * NULL: none) and of the z-loss (dL/dlse_t = 2 z_scale lse_t).
 */
typedef struct RouterBackwardArgs {
    Tensor dlogit_te, dweight_tk, p_te, lse_t, weight_tk, id_tk;
    const double *balance_e;
    double z_scale;
    bool normalise;
} RouterBackwardArgs;

/** a_nf = silu(gate) * up, h_n2f = [gate | up] by columns. */
typedef struct SwiGluArgs {
    Tensor a_nf, h_n2f;
} SwiGluArgs;

/**
 * dh from da. With weight_n (f32+ [N], routing weights; null: 1): da holds the gradient of weight_n * (row's output), so
 * dweight_n[n] = sum_f da a (overwritten, f32+), and dh comes from weight_n[n] * da.
 */
typedef struct SwiGluBackwardArgs {
    Tensor dh_n2f, dweight_n, da_nf, h_n2f, a_nf, weight_n;
} SwiGluBackwardArgs;

/** y_nd[n] = x_td[index_n[n]], zeros if the index is negative, times scale_n[n] if given (f32+). Embedding lookup, dispatch. */
typedef struct GatherRowsArgs {
    Tensor y_nd, x_td, scale_n;
    const int32_t *index_n;
} GatherRowsArgs;

/**
 * y_td = beta y + sum_k weight_tk[t,k] x_rd[row_tk[t,k]] in ascending k without the negative rows, in f32+, rounded once; weight
 * null: 1. y and x may differ in dtype. Combine.
 */
typedef struct CombineRowsArgs {
    Tensor y_td, x_rd, weight_tk;
    const int32_t *row_tk;
    int64_t n_slots; /* K */
    double beta;
} CombineRowsArgs;

/** dw_vd[id_t[t]] += dy_td[t] in ascending t (f32+). Gradient of the embedding. */
typedef struct ScatterAddRowsArgs {
    Tensor dw_vd, dy_td;
    const int32_t *id_t;
} ScatterAddRowsArgs;

/**
 * Rows with target >= 0: lse = log sum exp(logit), ce = lse - logit[target]; *loss = sum weight ce in f64, ascending rows.
 * With want_grad the logits are overwritten by dlogit = weight (softmax - onehot), zero rows where there is no target.
 */
typedef struct CrossEntropyArgs {
    Tensor logit_nv;         /* f32+ */
    const int32_t *target_n; /* negative: none */
    const double *weight_n;
    double *loss;
    bool want_grad;
    Arena *scratch;
} CrossEntropyArgs;

/** t counts real updates from 1; gradients are multiplied by grad_scale (clipping) first. Formulas: numerics.md 8. */
typedef struct AdamWArgs {
    Tensor w, g, m, v; /* f32+, same size */
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    int64_t t;
} AdamWArgs;

typedef struct SgdArgs {
    Tensor w, g;
    double lr, weight_decay, grad_scale;
} SgdArgs;

struct Backend {
    const char *name; /* "ref", or the kernel path's */
    int n_threads;
    void (*gemm)(const Backend *be, const GemmArgs *args);
    void (*grouped_gemm)(const Backend *be, const GroupedGemmArgs *args);
    void (*rmsnorm)(const Backend *be, const RmsNormArgs *args);
    void (*rmsnorm_backward)(const Backend *be, const RmsNormBackwardArgs *args);
    void (*rope)(const Backend *be, const RopeArgs *args);
    void (*attention)(const Backend *be, const AttentionArgs *args);
    void (*attention_backward)(const Backend *be, const AttentionBackwardArgs *args);
    void (*router)(const Backend *be, const RouterArgs *args);
    void (*router_backward)(const Backend *be, const RouterBackwardArgs *args);
    void (*swiglu)(const Backend *be, const SwiGluArgs *args);
    void (*swiglu_backward)(const Backend *be, const SwiGluBackwardArgs *args);
    void (*gather_rows)(const Backend *be, const GatherRowsArgs *args);
    void (*combine_rows)(const Backend *be, const CombineRowsArgs *args);
    void (*scatter_add_rows)(const Backend *be, const ScatterAddRowsArgs *args);
    void (*cross_entropy)(const Backend *be, const CrossEntropyArgs *args);
    /** y = a + b elementwise; y may be a or b. */
    void (*add)(const Backend *be, Tensor y, Tensor a, Tensor b);
    /** x[r, :] += b for every row r (b [cols]): a linear's bias. */
    void (*add_bias)(const Backend *be, Tensor x_nd, Tensor b_d);
    /** db_d += sum_n dy_nd, rows in blocks fixed by shape (f32+). */
    void (*bias_backward)(const Backend *be, Tensor db_d, Tensor dy_nd, Arena *scratch);
    /** y = x between float dtypes (round to nearest even). */
    void (*convert)(const Backend *be, Tensor y, Tensor x);
    /** sum of squares in f64 over fixed blocks of 4096 elements, added in block order. */
    double (*sum_squares)(const Backend *be, Tensor x, Arena *scratch);
    void (*adamw)(const Backend *be, const AdamWArgs *args);
    void (*sgd)(const Backend *be, const SgdArgs *args);
};

/** n_threads >= 1: OpenMP threads that calls of this table use. */
void backend_ref_init(Backend *be, int n_threads);
/** path: one that works on this machine; its name is the table's. */
void backend_cpu_init(Backend *be, KernelPath path, int n_threads);
