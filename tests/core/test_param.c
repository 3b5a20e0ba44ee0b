#include "core/param.h"
#include "base/arena_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void param__declared_in_order_with_defaults(void **state)
{
    ParamSet set;
    paramset_init(&set, *state, DTYPE_F32, DTYPE_F32);
    char name[32];
    for (int i = 0; i < 200; i++) {
        snprintf(name, sizeof name, "p%d", i);
        if (i == 100) set.next_order = 1000;
        Param *p = paramset_declare(&set, name, PARAM_INIT_NORMAL, i % 2 ? 2 : 1,
                                    (int64_t[]){3, 4, 99, 99});
        assert_ptr_equal(p, set.at[i]);
        assert_int_equal(p->order, i < 100 ? i : 900 + i);
    }
    assert_int_equal(set.n, 200);
    /* The list has moved while it grew; the parameters have not. */
    for (int i = 0; i < 200; i++) {
        const Param *p = set.at[i];
        snprintf(name, sizeof name, "p%d", i);
        assert_string_equal(p->name, name);
        assert_ptr_equal(paramset_find(&set, name), p);
        assert_int_equal(tensor_size(p->value), i % 2 ? 12 : 3);
        assert_int_equal(p->is_matrix, i % 2);
        assert_true(p->trainable && !p->tied_copy && !p->tied);
        assert_true(p->lr_scale == 1 && isnan(p->weight_decay));
        assert_true(tensor_is_null(p->value) && tensor_is_null(p->grad));
        assert_true(tensor_is_null(p->moment[0]) && tensor_is_null(p->moment[1]));
    }
    assert_null(paramset_find(&set, "p200"));
}

static void param__layout_gives_memory_of_its_own_to_each(void **state)
{
    ParamSet set;
    paramset_init(&set, *state, DTYPE_F32, DTYPE_F64);
    Param *a = paramset_declare(&set, "a", PARAM_INIT_NORMAL, 2, (int64_t[]){5, 7});
    Param *b = paramset_declare(&set, "b", PARAM_INIT_ONES, 1, (int64_t[]){3});
    Param *frozen = paramset_declare(&set, "f", PARAM_INIT_NORMAL, 1, (int64_t[]){11});
    Param *c = paramset_declare(&set, "c", PARAM_INIT_ZEROS, 3, (int64_t[]){2, 3, 4});
    frozen->trainable = false;
    assert_int_equal(paramset_layout(&set, true), OK);
    Param *all[] = {a, b, frozen, c};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(all[i]->value.dtype, DTYPE_F32);
        memset(all[i]->value.data, i + 1, tensor_bytes(all[i]->value));
        if (all[i] == frozen) continue;
        assert_int_equal(all[i]->grad.dtype, DTYPE_F64);
        assert_int_equal(tensor_size(all[i]->grad), tensor_size(all[i]->value));
        for (int64_t k = 0; k < tensor_size(all[i]->grad); k++)
            assert_true(((double *)all[i]->grad.data)[k] == 0);
    }
    assert_true(tensor_is_null(frozen->grad));
    assert_int_equal(tensor_size(set.grads), 35 + 3 + 24);
    for (int i = 0; i < 4; i++) {
        const char *bytes = all[i]->value.data;
        for (size_t k = 0; k < tensor_bytes(all[i]->value); k++) assert_int_equal(bytes[k], i + 1);
    }
    /* The flat tensor is the gradients, in order, without gaps or overlap. */
    for (int64_t k = 0; k < tensor_size(set.grads); k++) ((double *)set.grads.data)[k] = (double)k;
    assert_true(((double *)a->grad.data)[34] == 34);
    assert_true(((double *)b->grad.data)[0] == 35);
    assert_true(((double *)c->grad.data)[23] == 61);
    paramset_zero_grads(&set);
    for (int64_t k = 0; k < tensor_size(set.grads); k++)
        assert_true(((double *)set.grads.data)[k] == 0);
    /* Another type than the values': masters of their own. */
    assert_int_equal(a->master.dtype, DTYPE_F64);
    assert_ptr_not_equal(a->master.data, a->value.data);
    assert_ptr_equal(param_tensor(a, PARAM_MASTER).data, a->master.data);
    assert_ptr_equal(param_tensor(a, PARAM_GRAD).data, a->grad.data);
    a->moment[1].data = a;
    assert_ptr_equal(param_tensor(a, PARAM_MOMENT_1).data, a);
    assert_null(param_tensor(a, PARAM_MOMENT_0).data);
}

static void param__layout_without_gradients(void **state)
{
    ParamSet set;
    paramset_init(&set, *state, DTYPE_F32, DTYPE_F32);
    Param *a = paramset_declare(&set, "a", PARAM_INIT_NORMAL, 2, (int64_t[]){5, 7});
    assert_int_equal(paramset_layout(&set, false), OK);
    assert_false(tensor_is_null(a->value));
    assert_true(tensor_is_null(a->grad) && tensor_is_null(set.grads));
    assert_ptr_equal(a->master.data, a->value.data);
    paramset_zero_grads(&set); /* nothing to do, and nothing breaks */
    ParamSet half;
    paramset_init(&half, *state, DTYPE_BF16, DTYPE_F32);
    Param *b = paramset_declare(&half, "b", PARAM_INIT_NORMAL, 1, (int64_t[]){5});
    assert_int_equal(paramset_layout(&half, false), OK);
    assert_true(tensor_is_null(b->master)); /* nothing is trained: no second copy */
}

/* Experts 4 and 5 of 6, [E, O, I] = [6, 5, 2]. */
static void param__a_share_of_the_experts_is_rows_of_the_whole(void **state)
{
    ParamSet set;
    paramset_init(&set, *state, DTYPE_F32, DTYPE_F32);
    set.ep_rank = 2;
    set.ep_size = 3;
    Param *a = paramset_declare_experts(&set, "a", (int64_t[]){6, 5, 2});
    Param *v = paramset_declare(&set, "v", PARAM_INIT_ONES, 1, (int64_t[]){7});
    assert_true(a->is_expert && a->is_matrix && !v->is_expert);
    assert_int_equal(a->value.dim[0], 2);
    assert_int_equal(a->first_row, 4);
    assert_int_equal(param_whole(a).value.dim[0], 6);
    assert_int_equal(param_whole(v).value.dim[0], 7);
    static const struct {
        int64_t offset, count;
        ParamSlice slice;
    } rows[] = {{0, 60, {40, 20, 0}}, {40, 10, {0, 10, 0}}, {50, 10, {0, 10, 10}},
                {45, 5, {0, 5, 5}},   {38, 4, {2, 2, 0}},   {20, 20, {0, 0, 0}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ParamSlice got = param_slice(a, rows[i].offset, rows[i].count);
        assert_memory_equal(&got, &rows[i].slice, sizeof got);
    }
    assert_int_equal(param_slice(v, 3, 4).at, 3);
}

/* All of it, each element once, cut between blocks, and no two blocks more on one rank than on another. */
static void param__shards_cover_it_in_blocks(void **state)
{
    static const int64_t sizes[] = {1, 4095, 4096, 4097, 5 * 4096, 40 * 4096 + 7};
    ParamSet set;
    paramset_init(&set, *state, DTYPE_F32, DTYPE_F32);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int n = 1; n <= 8; n++) {
            Param *p = paramset_declare(&set, "a", PARAM_INIT_NORMAL, 1, &sizes[i]);
            int64_t covered = 0, blocks = (sizes[i] + PARAM_BLOCK - 1) / PARAM_BLOCK;
            for (int r = 0; r < n; r++) {
                ParamRange part = param_shard(p, r, n), next = param_shard(p, (r + 1) % n, n);
                int64_t size = part.end - part.begin;
                assert_true(part.begin % PARAM_BLOCK == 0 || part.begin == sizes[i]);
                assert_true(next.begin == part.end || next.begin == 0);
                assert_true(size <= (blocks + n - 1) / n * PARAM_BLOCK);
                covered += size;
            }
            assert_int_equal(covered, sizes[i]);
        }
    /* Small ones do not all go to one rank, and a tied copy is cut as the embedding. */
    Param *head = paramset_declare(&set, "h", PARAM_INIT_NORMAL, 1, &sizes[5]), first = *head;
    head->tied_copy = true;
    first.order = 0;
    ParamRange a = param_shard(head, 1, 3), b = param_shard(&first, 1, 3);
    assert_memory_equal(&a, &b, sizeof a);
    int64_t small[2] = {0};
    for (int k = 0; k < 2; k++) {
        Param *p = paramset_declare(&set, "s", PARAM_INIT_ONES, 1, &sizes[0]);
        for (int r = 0; r < 2; r++) {
            ParamRange part = param_shard(p, r, 2);
            small[r] += part.end - part.begin;
        }
    }
    assert_true(small[0] == 1 && small[1] == 1);
}

/* With ZeRO master and moments hold a part; what is written and summed is found in it. */
static void param__keeps_a_part(void **state)
{
    for (int wide = 0; wide < 2; wide++) {
        ParamSet set;
        paramset_init(&set, *state, wide ? DTYPE_F32 : DTYPE_BF16, DTYPE_F32);
        Param *p = paramset_declare(&set, "a", PARAM_INIT_NORMAL, 2, (int64_t[]){3, 4096});
        p->own = p->kept = param_shard(p, 1, 3);
        assert_int_equal(paramset_layout(&set, true), OK);
        assert_int_equal(tensor_size(p->master), 4096);
        assert_int_equal(tensor_size(p->value), 3 * 4096);
        if (wide) assert_ptr_equal(p->master.data, tensor_at(p->value, p->kept.begin));
        assert_ptr_equal(param_own(p, PARAM_MASTER).data, p->master.data);
        assert_ptr_equal(param_own(p, PARAM_GRAD).data, tensor_at(p->grad, p->own.begin));
        ParamSlice slice = param_slice_in(p, p->kept, 4096, 4096);
        assert_int_equal(slice.n, p->kept.begin == 4096 ? 4096 : 0);
        slice = param_slice_in(p, (ParamRange){100, 300}, 200, 1000);
        assert_true(slice.skip == 0 && slice.n == 100 && slice.at == 100);
    }
}

static void param__layout_too_large_is_refused(void **state)
{
    ParamSet set;
    paramset_init(&set, *state, DTYPE_F32, DTYPE_F32);
    paramset_declare(&set, "a", PARAM_INIT_NORMAL, 3, (int64_t[]){100000, 20000000, 1000000});
    assert_int_equal(paramset_layout(&set, false), ERR_MEMORY);
    assert_non_null(strstr(status_message(), "out of memory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARENA_TEST(param__declared_in_order_with_defaults),
        ARENA_TEST(param__layout_gives_memory_of_its_own_to_each),
        ARENA_TEST(param__layout_without_gradients),
        ARENA_TEST(param__a_share_of_the_experts_is_rows_of_the_whole),
        ARENA_TEST(param__shards_cover_it_in_blocks),
        ARENA_TEST(param__keeps_a_part),
        ARENA_TEST(param__layout_too_large_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
