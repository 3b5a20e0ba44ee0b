#include "kernels/ref/ref.h"

/* sum_k a[a0 + k sa] b[b0 + k sb] */
static double dot(Tensor a, int64_t a0, int64_t sa, Tensor b, int64_t b0, int64_t sb, int64_t n)
{
    double sum = 0;
    for (int64_t k = 0; k < n; k++) sum += ref_load(a, a0 + k * sa) * ref_load(b, b0 + k * sb);
    return sum;
}

void ref_gemm(const Backend *be, const GemmArgs *args)
{
    (void)be;
    int64_t rows = args->c.dim[0], cols = args->c.dim[1];
    int64_t lda = args->a.dim[1], ldb = args->b.dim[1];
    int64_t inner = args->trans_a ? args->a.dim[0] : args->a.dim[1];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            double sum = dot(args->a, args->trans_a ? i : i * lda, args->trans_a ? lda : 1, args->b,
                             args->trans_b ? j * ldb : j, args->trans_b ? 1 : ldb, inner);
            ref_update(args->c, i * cols + j, args->beta, sum);
        }
}

/** Expert e as a plain product on its rows and its own slice of the three-dimensional operand. */
void ref_grouped_gemm(const Backend *be, const GroupedGemmArgs *args)
{
    for (int64_t e = 0; e < args->n_groups; e++) {
        int64_t first = args->offset_e[e], rows = args->offset_e[e + 1] - first;
        if (rows == 0) continue;
        GemmArgs gemm = {.a = tensor_rows(args->a, first, rows), .beta = args->beta};
        if (args->kind == GROUPED_BACKWARD_WEIGHT) {
            gemm.c = tensor_rows(args->c, e, 1);
            gemm.c = tensor_reshape2(gemm.c, args->c.dim[1], args->c.dim[2]);
            gemm.b = tensor_rows(args->b, first, rows);
            gemm.trans_a = true;
            gemm.beta = 1;
        } else {
            gemm.c = tensor_rows(args->c, first, rows);
            gemm.b = tensor_rows(args->b, e, 1);
            gemm.b = tensor_reshape2(gemm.b, args->b.dim[1], args->b.dim[2]);
            gemm.trans_b = args->kind == GROUPED_FORWARD;
        }
        ref_gemm(be, &gemm);
    }
}

void ref_add_bias(const Backend *be, Tensor x_nd, Tensor b_d)
{
    (void)be;
    int64_t cols = tensor_size(b_d);
    for (int64_t i = 0; i < tensor_size(x_nd); i++)
        ref_store(x_nd, i, ref_load(x_nd, i) + ref_load(b_d, i % cols));
}

void ref_bias_backward(const Backend *be, Tensor db_d, Tensor dy_nd, Arena *scratch)
{
    (void)be, (void)scratch;
    int64_t cols = tensor_size(db_d);
    for (int64_t j = 0; j < cols; j++) {
        double sum = 0;
        for (int64_t i = j; i < tensor_size(dy_nd); i += cols) sum += ref_load(dy_nd, i);
        ref_update(db_d, j, 1, sum);
    }
}
