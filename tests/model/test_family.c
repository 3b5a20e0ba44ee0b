/* The families' tables against folders that transformers wrote: the same tensors with the same shapes, in both directions. */
#include "model_test.h"

/* Every folder below tests/golden; at least this many are expected, or the test does not see them. */
enum { CASES_MIN = 10 };

static void check_folder(Bench *b, const char *name, const char *dir)
{
    ModelConfig *config;
    ParamSet whole;
    ShardIndex *index;
    HfSource source;
    HfLayout *layout;
    assert_ok(model_config_read(&config, dir, &b->arena, NULL));
    paramset_init(&whole, &b->arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(&whole, config);
    assert_ok(shard_index_open(&index, dir, &b->arena, NULL));
    assert_ok(hf_source_of_shards(&source, index, &b->arena));
    /* Refuses a tensor of the folder that the table does not know, and one of the table that the folder lacks. */
    assert_ok(hf_layout_create(&layout, config, &whole, &source, DTYPE_F32, false, &b->arena));
    assert_int_equal(layout->n, index->n);
    bool *seen = ARENA_NEW(&b->arena, bool, index->n);
    for (int i = 0; i < layout->n; i++) {
        const HfTensor *t = &layout->at[i];
        const ShardTensor *found = shard_index_find(index, t->name);
        if (!found) fail_msg("%s: %s is not in the folder", name, t->name);
        assert_false(seen[found - index->tensor]);
        seen[found - index->tensor] = true;
        assert_int_equal(t->dtype, found->entry->dtype);
        assert_int_equal(t->n_dims, found->entry->n_dims);
        for (int d = 0; d < t->n_dims; d++)
            if (t->dim[d] != found->entry->dim[d])
                fail_msg("%s: %s: dim %d is %d, the folder says %d", name, t->name, d,
                         (int)t->dim[d], (int)found->entry->dim[d]);
        assert_int_equal(t->count, found->entry->n_elements);
    }
    /* Together the slices are the parameters, each element once. */
    for (int i = 0; i < whole.n; i++) {
        const Param *p = whole.at[i];
        if (p->tied_copy) continue;
        int64_t covered = 0;
        for (int k = 0; k < layout->n; k++)
            if (!layout->at[k].alias && !strcmp(layout->at[k].param, p->name))
                covered += layout->at[k].count;
        if (covered != tensor_size(p->value)) fail_msg("%s: %s is covered in part", name, p->name);
    }
    shard_index_close(&index);
}

static void family__tables_hold_what_transformers_writes(void **state)
{
    Bench *b = *state;
    const char *golden = SW_SOURCE_DIR "/tests/golden";
    char **names;
    int n, n_cases = 0;
    assert_ok(dir_list(&b->arena, golden, &names, &n));
    for (int i = 0; i < n; i++) {
        const char *dir = path_join(&b->arena, path_join(&b->arena, golden, names[i]), "model");
        if (!dir_exists(dir)) continue;
        ArenaMark mark = arena_mark(&b->arena);
        check_folder(b, names[i], dir);
        arena_rewind(&b->arena, mark);
        n_cases++;
    }
    assert_true(n_cases >= CASES_MIN);
}

/* Orders are the same in every cut, ascending, and no two alike. */
static void family__orders_do_not_depend_on_the_cut(void **state)
{
    Bench *b = *state;
    ModelConfig *config;
    assert_ok(config_of(&config, &b->arena, MOE_JSON, "{\"attention_bias\": true}", NULL));
    ParamSet whole, parts;
    paramset_init(&whole, &b->arena, DTYPE_F32, DTYPE_F32);
    paramset_init(&parts, &b->arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(&whole, config);
    static const LayerRange ranges[] = {
        {0, 1, true, false}, {1, 2, false, false}, {3, 1, false, true}};
    ModelPart part;
    for (int s = 0; s < 3; s++) model_part_declare(&part, &parts, config, ranges[s], NULL, 0);
    assert_int_equal(parts.n, whole.n);
    for (int i = 0; i < whole.n; i++) {
        assert_string_equal(parts.at[i]->name, whole.at[i]->name);
        assert_true(parts.at[i]->order == whole.at[i]->order);
        if (i) assert_true(whole.at[i]->order > whole.at[i - 1]->order);
    }
    /* A stage in the middle alone has the same ones. */
    ParamSet middle;
    paramset_init(&middle, &b->arena, DTYPE_F32, DTYPE_F32);
    model_part_declare(&part, &middle, config, ranges[1], NULL, 0);
    for (int i = 0; i < middle.n; i++)
        assert_true(paramset_find(&whole, middle.at[i]->name)->order == middle.at[i]->order);
}

static void family__tied_pair_knows_each_other(void **state)
{
    Bench *b = *state;
    ModelConfig *config;
    assert_ok(config_of(&config, &b->arena, DENSE_JSON, "{\"tie_word_embeddings\": true}", NULL));
    ParamSet set;
    paramset_init(&set, &b->arena, DTYPE_F32, DTYPE_F32);
    model_declare_whole(&set, config);
    model_link_tied(&set);
    Param *embedding = paramset_find(&set, "model.embed_tokens.weight"),
          *head = paramset_find(&set, "lm_head.weight");
    assert_true(head->tied_copy && !embedding->tied_copy);
    assert_ptr_equal(head->tied, embedding);
    assert_ptr_equal(embedding->tied, head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(family__tables_hold_what_transformers_writes),
        BENCH_TEST(family__orders_do_not_depend_on_the_cut),
        BENCH_TEST(family__tied_pair_knows_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
