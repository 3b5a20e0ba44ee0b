"""The golden cases: which tiny models there are, and what is run on them.

One row per model. `config` holds what differs from BASE (moe) or DENSE; everything else of a row
says how the folder is written and which settings the golden values are computed with.
"""

BASE = dict(
    model_type="qwen3_moe",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    tie_word_embeddings=False,
    attention_bias=False,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    router_aux_loss_coef=0.001,
    output_router_logits=False,
)

_MOE_KEYS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "router_aux_loss_coef",
    "output_router_logits",
)
DENSE = {k: v for k, v in BASE.items() if k not in _MOE_KEYS} | dict(model_type="qwen3")

# A row of the batch: lengths of its segments, and what its labels are.
#   none    no labels key: every token is trained (but a segment's first)
#   random  a third of the labels is -100, a few differ from the token, first ones are not -100
#   hole    as random, and the middle segment has no trained label at all
# A row of one segment is written without cu_seqlens unless its labels are "random".
SHORT = [([9, 5, 12], "random"), ([17], "none"), ([1], "none"), ([1, 14, 6], "hole"), ([23], "random")]
LONG = [([45, 7, 20], "random"), ([60], "none"), ([1, 9, 3], "hole")]

ADAMW = dict(type="adamw", lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.01, decay_1d=True)
CONSTANT = dict(type="constant", warmup=0.0, lr_min=0.0)

YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)

# Keys that a config.json may do without.
DEFAULTED = ("head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings", "attention_bias")
DEFAULTED_MOE = DEFAULTED + _MOE_KEYS[3:]


def _train(max_grad_norm, lr_schedule=CONSTANT, optimizer=ADAMW):
    """20 steps of training; max_grad_norm 0 is off."""
    return dict(optimizer=optimizer, lr_schedule=lr_schedule, max_grad_norm=max_grad_norm)


def _case(name, about, config=None, base=BASE, **more):
    row = dict(
        name=name,
        about=about,
        config=base | (config or {}),
        config_style="full",  # full: as save_pretrained writes it; minimal, v5: see make_models.py
        drop=(),  # keys left out of a minimal config.json
        source_dtype="float32",
        experts="per_expert",  # or fused
        shards=1,
        std=0.12,  # of all matrices and biases but the router's
        router_std=0.2,
        idle_expert=None,  # this one's row of each gate is 0, and no token of the batch goes there
        seed=None,  # of weights and rows: the first one from here on with clear routing
        rows=SHORT,
        reduction="token",
        alpha=0.01,
        form="per_layer",  # or hf
        z_alpha=0.0,
        train=None,  # or _train(...)
    )
    assert set(more) <= set(row), set(more) - set(row)
    return row | more


CASES = [
    _case(
        "moe_plain",
        "untied, normalised top-2 of 4, grouped-query attention 2:1, head_dim 16 (not 32/4)",
        train=_train(2.0),
    ),
    _case(
        "moe_tied",
        "tied embedding, weights of the chosen not normalised, top-2 of 8, queries 4:1, theta 1e6, "
        "sharp router, z-loss",
        dict(
            tie_word_embeddings=True,
            norm_topk_prob=False,
            num_experts=8,
            num_key_value_heads=1,
            rope_theta=1000000.0,
        ),
        router_std=1.0,
        reduction="sample",
        z_alpha=1e-3,
        train=_train(1.0, dict(type="cosine", warmup=0.25, lr_min=1e-4)),
    ),
    _case(
        "moe_dense_first",
        "layer 0 dense by mlp_only_layers, as many key as query heads, all matrices std 0.02",
        dict(num_hidden_layers=3, mlp_only_layers=[0], num_key_value_heads=4, head_dim=8),
        std=0.02,
        router_std=0.02,
        reduction="square",
        train=_train(0.0, dict(type="linear", warmup=3, lr_min=1e-5), ADAMW | dict(decay_1d=False)),
    ),
    _case(
        "moe_every_second",
        "layers 0 and 2 dense by decoder_sparse_step 2; z-loss",
        dict(num_hidden_layers=4, decoder_sparse_step=2, head_dim=8, intermediate_size=32),
        z_alpha=0.01,
        alpha=0.1,
    ),
    _case(
        "moe_top1",
        "one expert of 8 per token, its probability as weight; one expert without tokens",
        dict(num_experts=8, num_experts_per_tok=1, norm_topk_prob=False, head_dim=8),
        router_std=1.0,
        idle_expert=5,
        train=_train(1.0),
    ),
    _case(
        "moe_top1_sharded",
        "one expert per token, normalised (weight 1), in three shards with an index",
        dict(num_experts_per_tok=1, norm_topk_prob=True, head_dim=8),
        shards=3,
        reduction="square",
    ),
    _case(
        "moe_fused",
        "experts of a layer in one tensor, config.json with rope_parameters and dtype",
        dict(head_dim=8, rope_theta=500000.0),
        config_style="v5",
        experts="fused",
        router_std=1.0,
        reduction="sample",
        alpha=0.1,
        train=_train(0.0, optimizer=dict(type="sgd", lr=0.004, weight_decay=0.01)),
    ),
    _case(
        "moe_yarn_bf16",
        "yarn rope, attention biases, bf16 weights in the folder",
        dict(attention_bias=True, rope_scaling=YARN),
        source_dtype="bfloat16",
        rows=LONG,
    ),
    _case(
        "moe_all_experts",
        "every token to every expert; yarn rope with all of its options",
        dict(
            head_dim=16,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_experts_per_tok=4,
            norm_topk_prob=False,
            rope_scaling=YARN
            | dict(beta_fast=4.0, beta_slow=0.5, mscale=0.8, mscale_all_dim=0.3, truncate=False),
        ),
        rows=LONG,
    ),
    _case(
        "moe_defaults",
        "config.json without the keys that have defaults: head_dim is hidden/heads, chosen weights "
        "are not normalised, every layer sparse",
        dict(head_dim=8, norm_topk_prob=False),
        config_style="minimal",
        drop=DEFAULTED_MOE,
        rows=SHORT[:2],
    ),
    _case(
        "dense_bias",
        "no experts, attention biases, linear rope",
        dict(attention_bias=True, rope_scaling=dict(rope_type="linear", factor=4.0)),
        base=DENSE,
        reduction="sample",
        alpha=0.0,
        train=_train(2.0, dict(type="cosine", warmup=2, lr_min=1e-6)),
    ),
    _case(
        "dense_llama3_f16",
        "no experts, tied, llama3 rope, f16 weights in the folder",
        dict(
            tie_word_embeddings=True,
            rope_scaling=dict(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        base=DENSE,
        source_dtype="float16",
        rows=LONG,
        alpha=0.0,
    ),
    _case(
        "dense_defaults",
        "no experts, config.json without the keys that have defaults: head_dim is 128 here",
        dict(
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=128,
            intermediate_size=32,
        ),
        base=DENSE,
        config_style="minimal",
        drop=DEFAULTED,
        rows=SHORT[:2],
        alpha=0.0,
    ),
    _case(
        "moe_hf_form",
        "balancing loss in the hf form, over layers 1 and 2, with 0 and 3 dense; z-loss",
        dict(
            num_hidden_layers=4,
            hidden_size=24,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            moe_intermediate_size=12,
            mlp_only_layers=[0, 3],
        ),
        router_std=0.5,
        alpha=0.1,
        form="hf",
        z_alpha=1e-3,
        train=_train(1.0),
    ),
]
for i, row in enumerate(CASES):
    row["seed"] = 10 * (i + 1)
