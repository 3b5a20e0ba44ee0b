#include "model_test.h"

#include <math.h>
#include <unistd.h>

static ModelConfig *read_patched(Bench *b, const char *base, const char *patch)
{
    ModelConfig *config = NULL;
    assert_ok(config_of(&config, &b->arena, base, patch, NULL));
    return config;
}

static const char *bench_write(Bench *b, const char *name, const char *text)
{
    const char *path = bench_path(b, name);
    assert_ok(file_write_atomic(path, text, strlen(text)));
    return path;
}

/* ---- what is read ---------------------------------------------------------------------------------- */

static void config__reads_a_family_of_experts(void **state)
{
    Bench *b = *state;
    ModelConfig *c = read_patched(
        b, MOE_JSON,
        "{\"rms_norm_eps\": 1e-5, \"initializer_range\": 0.5, \"attention_bias\": true, "
        "\"tie_word_embeddings\": true, \"router_aux_loss_coef\": 0.25, "
        "\"max_position_embeddings\": 99, "
        "\"output_router_logits\": true, \"dtype\": \"bfloat16\", \"eos_token_id\": 7}");
    assert_string_equal(c->family->model_type, "qwen3_moe");
    assert_string_equal(c->dir, "DIR");
    assert_int_equal(c->n_layers, 4);
    assert_int_equal(c->hidden, 16);
    assert_int_equal(c->vocab, 50);
    assert_int_equal(c->n_heads, 4);
    assert_int_equal(c->n_kv_heads, 2);
    assert_int_equal(c->head_dim, 8);
    assert_int_equal(c->ffn_dense, 24);
    assert_int_equal(c->n_experts, 4);
    assert_int_equal(c->experts_per_token, 2);
    assert_int_equal(c->ffn_expert, 12);
    assert_int_equal(c->max_positions, 99);
    assert_true(c->norm_eps == 1e-5 && c->init_range == 0.5 && c->aux_coef == 0.25);
    assert_true(c->attention_bias && c->tied && c->normalise && c->output_router_logits);
    assert_int_equal(c->dtype, DTYPE_BF16);
    assert_int_equal(c->n_eos, 1);
    assert_int_equal(c->eos[0], 7);
}

/* transformers' Qwen3MoeConfig and Qwen3Config. */
static void config__what_is_absent_is_huggingfaces_default(void **state)
{
    Bench *b = *state;
    ModelConfig *moe = read_patched(b, MOE_JSON,
                                    "{\"head_dim\": \"-\", \"mlp_only_layers\": \"-\", "
                                    "\"norm_topk_prob\": \"-\", \"initializer_range\": \"-\"}");
    ModelConfig *dense = read_patched(b, DENSE_JSON, NULL);
    assert_int_equal(moe->head_dim, 4);     /* hidden_size / num_attention_heads */
    assert_int_equal(dense->head_dim, 128); /* whatever the sizes */
    ModelConfig *both[] = {moe, dense};
    for (int i = 0; i < 2; i++) {
        const ModelConfig *c = both[i];
        assert_true(c->norm_eps == 1e-6 && c->init_range == 0.02 && c->rope.theta == 10000);
        assert_int_equal(c->rope.kind, ROPE_DEFAULT);
        assert_int_equal(c->max_positions, 32768);
        assert_false(c->attention_bias || c->tied || c->normalise || c->output_router_logits);
        assert_int_equal(c->dtype, DTYPE_F32);
        assert_int_equal(c->n_eos, 0);
    }
    assert_true(moe->aux_coef == 0.001);
    assert_int_equal(moe->sparse_step, 1);
    assert_int_equal(model_config_n_moe_layers(moe), 4);
    assert_int_equal(dense->n_experts, 0);
    assert_int_equal(model_config_n_moe_layers(dense), 0);
    /* null is absent */
    moe = read_patched(b, MOE_JSON, "{\"head_dim\": null, \"norm_topk_prob\": null}");
    assert_int_equal(moe->head_dim, 4);
    assert_false(moe->normalise);
}

static void config__layer_kinds(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *patch, *kinds;
    } rows[] = {
        {"{\"mlp_only_layers\": []}", "mmmmmm"},
        {"{\"mlp_only_layers\": [0, 1]}", "ddmmmm"},
        {"{\"mlp_only_layers\": [5, 0, 5]}", "dmmmmd"},
        {"{\"mlp_only_layers\": [], \"decoder_sparse_step\": 2}", "dmdmdm"},
        {"{\"mlp_only_layers\": [], \"decoder_sparse_step\": 3}", "ddmddm"},
        {"{\"mlp_only_layers\": [3], \"decoder_sparse_step\": 2}", "dmdddm"},
        {"{\"mlp_only_layers\": [0,1,2,3,4,5]}", "dddddd"},
        {"{\"mlp_only_layers\": [], \"decoder_sparse_step\": 7}", "dddddd"},
    };
    char *six = json_patched(&b->arena, MOE_JSON, "{\"num_hidden_layers\": 6}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ModelConfig *c = read_patched(b, six, rows[i].patch);
        int64_t n = 0;
        for (int l = 0; l < 6; l++) {
            assert_int_equal(model_config_is_moe(c, l), rows[i].kinds[l] == 'm');
            n += rows[i].kinds[l] == 'm';
        }
        assert_int_equal(model_config_n_moe_layers(c), n);
    }
}

static void config__both_forms_of_rope_say_the_same(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *old, *new;
        RopeConfig want;
    } rows[] = {
        {"{\"rope_theta\": 5e5}",
         "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}}",
         {.theta = 5e5}},
        {"{\"rope_theta\": 100, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}",
         "{\"rope_parameters\": {\"rope_type\": \"linear\", \"rope_theta\": 100.0, \"factor\": "
         "2.0}}",
         {.kind = ROPE_LINEAR, .theta = 100, .factor = 2, .original_max_positions = 32768}},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}",
         "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64, \"rope_theta\": "
         "10000}}",
         {.kind = ROPE_LLAMA3,
          .theta = 10000,
          .factor = 8,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_max_positions = 64}},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 16, "
         "\"beta_slow\": 2, "
         "\"mscale\": 0.7, \"mscale_all_dim\": 0.5, \"truncate\": false, \"attention_factor\": "
         "1.5, "
         "\"original_max_position_embeddings\": 64}}",
         "{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 16, "
         "\"beta_slow\": 2, "
         "\"mscale\": 0.7, \"mscale_all_dim\": 0.5, \"truncate\": false, \"attention_factor\": "
         "1.5, "
         "\"original_max_position_embeddings\": 64}}",
         {.kind = ROPE_YARN,
          .theta = 10000,
          .factor = 4,
          .beta_fast = 16,
          .beta_slow = 2,
          .mscale = 0.7,
          .mscale_all_dim = 0.5,
          .attention_factor = 1.5,
          .original_max_positions = 64}},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}, \"max_position_embeddings\": 77}",
         "{\"rope_parameters\": {\"type\": \"yarn\", \"factor\": 4}, \"max_position_embeddings\": "
         "77}",
         {.kind = ROPE_YARN,
          .theta = 10000,
          .factor = 4,
          .beta_fast = 32,
          .beta_slow = 1,
          .truncate = true,
          .original_max_positions = 77}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *forms[] = {rows[i].old, rows[i].new};
        for (int form = 0; form < 2; form++) {
            RopeConfig got = read_patched(b, MOE_JSON, forms[form])->rope, want = rows[i].want;
            assert_int_equal(got.kind, want.kind);
            assert_true(got.theta == want.theta && got.factor == want.factor);
            assert_true(got.low_freq_factor == want.low_freq_factor &&
                        got.high_freq_factor == want.high_freq_factor);
            assert_true(got.beta_fast == want.beta_fast && got.beta_slow == want.beta_slow);
            assert_true(got.mscale == want.mscale && got.mscale_all_dim == want.mscale_all_dim);
            assert_true(got.attention_factor == want.attention_factor);
            assert_int_equal(got.truncate, want.truncate);
            assert_int_equal(got.original_max_positions, want.original_max_positions);
        }
        /* Both at once are fine when they agree. */
        read_patched(b, json_patched(&b->arena, MOE_JSON, rows[i].old), rows[i].new);
    }
    /* rope_parameters without a theta take the other's, as in HuggingFace. */
    ModelConfig *c = read_patched(
        b, MOE_JSON, "{\"rope_theta\": 123, \"rope_parameters\": {\"rope_type\": \"default\"}}");
    assert_true(c->rope.theta == 123);
}

static void config__dtype_keys(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *patch;
        DType dtype;
    } rows[] = {
        {"{\"torch_dtype\": \"bfloat16\"}", DTYPE_BF16},
        {"{\"dtype\": \"float16\"}", DTYPE_F16},
        {"{\"torch_dtype\": \"float32\"}", DTYPE_F32},
        {"{\"dtype\": \"torch.bfloat16\"}", DTYPE_BF16},
        {"{\"dtype\": null}", DTYPE_F32},
        {"{\"dtype\": \"bfloat16\", \"torch_dtype\": \"float32\"}", DTYPE_BF16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(read_patched(b, MOE_JSON, rows[i].patch)->dtype, rows[i].dtype);
}

static void config__eos_of_the_generation_config_wins(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *config, *generation;
        int n;
        int32_t eos[3];
    } rows[] = {
        {"{}", NULL, 0, {0}},
        {"{\"eos_token_id\": 3}", NULL, 1, {3}},
        {"{\"eos_token_id\": [3, 4]}", NULL, 2, {3, 4}},
        {"{\"eos_token_id\": null}", NULL, 0, {0}},
        {"{\"eos_token_id\": 3}", "{\"eos_token_id\": [5, 6, 0]}", 3, {5, 6, 0}},
        {"{\"eos_token_id\": 3}", "{\"temperature\": 0.6}", 1, {3}},
        {"{}", "{\"eos_token_id\": 49}", 1, {49}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ModelConfig *c;
        assert_ok(config_of(&c, &b->arena, MOE_JSON, rows[i].config, rows[i].generation));
        assert_int_equal(c->n_eos, rows[i].n);
        for (int k = 0; k < c->n_eos; k++) assert_int_equal(c->eos[k], rows[i].eos[k]);
    }
}

/* ---- what is refused ------------------------------------------------------------------------------- */

static void config__refuses_what_it_does_not_compute(void **state)
{
    Bench *b = *state;
    // clang-format off
    static const struct {
        const char *patch, *key;
        Status code;
    } rows[] = {
        /* maths that are not there */
        {"{\"model_type\": \"qwen3_mo\"}", "nearest is qwen3_moe", ERR_UNSUPPORTED},
        {"{\"model_type\": \"llama\"}", "model_type", ERR_UNSUPPORTED},
        {"{\"model_type\": 3}", "model_type", ERR_FORMAT},
        {"{\"model_type\": \"-\"}", "model_type", ERR_FORMAT},
        {"{\"hidden_act\": \"gelu\"}", "hidden_act", ERR_UNSUPPORTED},
        {"{\"use_sliding_window\": true}", "use_sliding_window", ERR_UNSUPPORTED},
        {"{\"attention_dropout\": 0.1}", "attention_dropout", ERR_UNSUPPORTED},
        {"{\"partial_rotary_factor\": 0.5}", "partial_rotary_factor", ERR_UNSUPPORTED},
        {"{\"quantization_config\": {\"bits\": 4}}", "quantization_config", ERR_UNSUPPORTED},
        {"{\"pretraining_tp\": 2}", "pretraining_tp", ERR_UNSUPPORTED},
        {"{\"shared_expert_intermediate_size\": 8}", "shared_expert_intermediate_size", ERR_UNSUPPORTED},
        {"{\"n_shared_experts\": 1}", "n_shared_experts", ERR_UNSUPPORTED},
        {"{\"num_nextn_predict_layers\": 1}", "num_nextn_predict_layers", ERR_UNSUPPORTED},
        {"{\"add_cross_attention\": true}", "add_cross_attention", ERR_UNSUPPORTED},
        {"{\"is_encoder_decoder\": true}", "is_encoder_decoder", ERR_UNSUPPORTED},
        {"{\"is_decoder\": true}", "is_decoder", ERR_UNSUPPORTED},
        {"{\"attn_logit_softcapping\": 50}", "attn_logit_softcapping", ERR_UNSUPPORTED},
        {"{\"final_logit_softcapping\": 30}", "final_logit_softcapping", ERR_UNSUPPORTED},
        {"{\"mlp_bias\": true}", "mlp_bias", ERR_UNSUPPORTED},
        {"{\"use_bidirectional_attention\": true}", "use_bidirectional_attention", ERR_UNSUPPORTED},
        {"{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}", "layer_types", ERR_UNSUPPORTED},
        {"{\"layer_types\": [3]}", "layer_types", ERR_UNSUPPORTED},
        {"{\"dtype\": \"float8_e4m3fn\"}", "dtype", ERR_UNSUPPORTED},
        {"{\"dtype\": 16}", "dtype", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}}", "rope_type", ERR_UNSUPPORTED},
        {"{\"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 2}}", "rope_type", ERR_UNSUPPORTED},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2, \"short_factor\": 1}}", "short_factor", ERR_UNSUPPORTED},
        {"{\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.5}}", "partial_rotary_factor", ERR_UNSUPPORTED},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}}", "full_attention", ERR_UNSUPPORTED},
        /* values that cannot be */
        {"{\"num_hidden_layers\": \"-\"}", "num_hidden_layers", ERR_FORMAT},
        {"{\"hidden_size\": \"-\"}", "hidden_size", ERR_FORMAT},
        {"{\"vocab_size\": \"-\"}", "vocab_size", ERR_FORMAT},
        {"{\"num_attention_heads\": \"-\"}", "num_attention_heads", ERR_FORMAT},
        {"{\"num_key_value_heads\": null}", "num_key_value_heads", ERR_FORMAT},
        {"{\"num_experts\": \"-\"}", "num_experts", ERR_FORMAT},
        {"{\"num_experts_per_tok\": \"-\"}", "num_experts_per_tok", ERR_FORMAT},
        {"{\"moe_intermediate_size\": \"-\"}", "moe_intermediate_size", ERR_FORMAT},
        {"{\"num_hidden_layers\": 0}", "num_hidden_layers", ERR_FORMAT},
        {"{\"num_hidden_layers\": -4}", "num_hidden_layers", ERR_FORMAT},
        {"{\"num_hidden_layers\": 4.0}", "num_hidden_layers", ERR_FORMAT},
        {"{\"num_hidden_layers\": \"4\"}", "num_hidden_layers", ERR_FORMAT},
        {"{\"hidden_size\": 9223372036854775807}", "hidden_size", ERR_FORMAT},
        {"{\"vocab_size\": 0}", "vocab_size", ERR_FORMAT},
        {"{\"rms_norm_eps\": -1e-6}", "rms_norm_eps", ERR_FORMAT},
        {"{\"initializer_range\": \"x\"}", "initializer_range", ERR_FORMAT},
        {"{\"attention_bias\": 1}", "attention_bias", ERR_FORMAT},
        {"{\"tie_word_embeddings\": \"true\"}", "tie_word_embeddings", ERR_FORMAT},
        {"{\"head_dim\": 7}", "head_dim", ERR_FORMAT},
        {"{\"head_dim\": -2}", "head_dim", ERR_FORMAT},
        {"{\"head_dim\": \"-\", \"num_attention_heads\": 6}", "num_attention_heads", ERR_FORMAT},
        {"{\"num_key_value_heads\": 3}", "num_key_value_heads", ERR_FORMAT},
        {"{\"num_key_value_heads\": 8}", "num_key_value_heads", ERR_FORMAT},
        {"{\"num_experts_per_tok\": 5}", "num_experts_per_tok", ERR_FORMAT},
        {"{\"decoder_sparse_step\": 0}", "decoder_sparse_step", ERR_FORMAT},
        {"{\"intermediate_size\": \"-\"}", "intermediate_size", ERR_FORMAT},
        {"{\"mlp_only_layers\": [4]}", "mlp_only_layers", ERR_FORMAT},
        {"{\"mlp_only_layers\": [-1]}", "mlp_only_layers", ERR_FORMAT},
        {"{\"mlp_only_layers\": [\"0\"]}", "mlp_only_layers", ERR_FORMAT},
        {"{\"mlp_only_layers\": 1}", "mlp_only_layers", ERR_FORMAT},
        {"{\"eos_token_id\": 50}", "eos_token_id", ERR_FORMAT},
        {"{\"eos_token_id\": -1}", "eos_token_id", ERR_FORMAT},
        {"{\"eos_token_id\": \"x\"}", "eos_token_id", ERR_FORMAT},
        {"{\"eos_token_id\": [1, [2]]}", "eos_token_id", ERR_FORMAT},
        {"{\"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "eos_token_id", ERR_FORMAT},
        {"{\"rope_theta\": 0}", "rope_theta", ERR_FORMAT},
        {"{\"rope_theta\": -5}", "rope_theta", ERR_FORMAT},
        {"{\"rope_theta\": \"x\"}", "rope_theta", ERR_FORMAT},
        {"{\"rope_theta\": 1, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2}}", "rope_theta", ERR_FORMAT},
        {"{\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 1e6}}", "rope_theta and rope_parameters differ", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 3}}", "rope_scaling and rope_parameters differ", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}, \"rope_parameters\": {\"rope_type\": \"default\"}}", "differ", ERR_FORMAT},
        {"{\"rope_scaling\": 3}", "rope_scaling", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\"}}", "factor", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0.5}}", "factor", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4}}", "original_max_position_embeddings", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}", "high_freq_factor", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"original_max_position_embeddings\": 0}}", "original_max_position_embeddings", ERR_FORMAT},
        {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8, \"mscale\": -1}}", "mscale", ERR_FORMAT},
    };
    // clang-format on
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ModelConfig *c = NULL;
        Status status = config_of(&c, &b->arena, MOE_JSON, rows[i].patch, NULL);
        if (status != rows[i].code || c || !strstr(status_message(), rows[i].key) ||
            strncmp(status_message(), "DIR/config.json: ", 17) != 0)
            fail_msg("%s: status %d, \"%s\"; expected %d and \"%s\"", rows[i].patch, (int)status,
                     status_message(), (int)rows[i].code, rows[i].key);
    }
}

/* The values that leave such keys out are fine, however they are written. */
static void config__neutral_values_pass(void **state)
{
    Bench *b = *state;
    read_patched(
        b, MOE_JSON,
        "{\"hidden_act\": \"silu\", \"use_sliding_window\": false, \"sliding_window\": 4096, "
        "\"attention_dropout\": 0, \"partial_rotary_factor\": 1, \"quantization_config\": null, "
        "\"pretraining_tp\": 1, \"shared_expert_intermediate_size\": 0, \"mlp_bias\": false, "
        "\"layer_types\": [\"full_attention\", \"full_attention\"], \"rope_scaling\": null, "
        "\"rope_parameters\": null, \"use_cache\": true, \"my_own_key\": {\"a\": 1}}");
}

static void config__generation_config_is_named_when_it_is_wrong(void **state)
{
    Bench *b = *state;
    static const struct {
        const char *text, *word;
    } rows[] = {{"{\"eos_token_id\": 50}", "eos_token_id"},
                {"[1]", "expected an object"},
                {"{\"eos_token_id\": ", "DIR/generation_config.json"},
                {"", "DIR/generation_config.json"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ModelConfig *c;
        assert_fails(config_of(&c, &b->arena, MOE_JSON, NULL, rows[i].text), ERR_FORMAT,
                     rows[i].word);
        assert_non_null(strstr(status_message(), "DIR/generation_config.json"));
    }
}

/* ---- files ----------------------------------------------------------------------------------------- */

static void config__reads_a_folder_or_a_file(void **state)
{
    Bench *b = *state;
    const char *file = bench_write(b, "config.json", MOE_JSON);
    ModelConfig *c;
    assert_ok(model_config_read(&c, b->dir, &b->arena, NULL));
    assert_string_equal(c->dir, b->dir);
    assert_int_equal(c->n_eos, 0);
    bench_write(b, "generation_config.json", "{\"eos_token_id\": [1, 2]}");
    assert_ok(model_config_read(&c, file, &b->arena, NULL));
    assert_string_equal(c->dir, b->dir);
    assert_int_equal(c->n_eos, 2);
}

static void config__missing_or_broken_file_is_named(void **state)
{
    Bench *b = *state;
    ModelConfig *c;
    assert_fails(model_config_read(&c, b->dir, &b->arena, NULL), ERR_IO, "config.json");
    assert_fails(model_config_read(&c, bench_path(b, "none"), &b->arena, NULL), ERR_IO, "none");
    const char *file = bench_write(b, "config.json", "{\"model_type\": \n qwen3}");
    assert_fails(model_config_read(&c, b->dir, &b->arena, NULL), ERR_FORMAT, file);
    assert_non_null(strstr(status_message(), ":2:"));
    bench_write(b, "config.json", "[]");
    assert_fails(model_config_read(&c, b->dir, &b->arena, NULL), ERR_FORMAT, "expected an object");
}

static void config__unknown_keys_are_named_in_one_warning(void **state)
{
    Bench *b = *state;
    bench_write(b, "config.json",
                json_patched(&b->arena, MOE_JSON,
                             "{\"new_maths\": 1, \"other_key\": [2], \"unset\": null}"));
    const char *path = bench_path(b, "log.txt");
    Log log;
    ModelConfig *c;
    assert_ok(log_open(&log, path, 0, false));
    /* Warnings go to stderr too: aside with it. */
    int saved = dup(STDERR_FILENO);
    assert_non_null(freopen("/dev/null", "w", stderr));
    Status status = model_config_read(&c, b->dir, &b->arena, &log);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    log_close(&log);
    assert_ok(status);
    char *text;
    assert_ok(file_read(&b->arena, path, &text, NULL));
    const char *first = strstr(text, "warning: ");
    assert_non_null(first);
    assert_null(strstr(first + 1, "warning: "));
    assert_non_null(strstr(text, "config.json: "));
    assert_non_null(strstr(text, "new_maths, other_key\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BENCH_TEST(config__reads_a_family_of_experts),
        BENCH_TEST(config__what_is_absent_is_huggingfaces_default),
        BENCH_TEST(config__layer_kinds),
        BENCH_TEST(config__both_forms_of_rope_say_the_same),
        BENCH_TEST(config__dtype_keys),
        BENCH_TEST(config__eos_of_the_generation_config_wins),
        BENCH_TEST(config__refuses_what_it_does_not_compute),
        BENCH_TEST(config__neutral_values_pass),
        BENCH_TEST(config__generation_config_is_named_when_it_is_wrong),
        BENCH_TEST(config__reads_a_folder_or_a_file),
        BENCH_TEST(config__missing_or_broken_file_is_named),
        BENCH_TEST(config__unknown_keys_are_named_in_one_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
