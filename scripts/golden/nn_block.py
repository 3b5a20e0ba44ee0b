#!/usr/bin/env python3
"""Output and gradients of one decoder layer of HF transformers 4.57.6 (Qwen3Moe) in f64, each tensor as its norm and
its dot product with a fixed vector: the rows of tests/nn/test_block.c.   Usage: python3 scripts/golden/nn_block.py

Weights come from a formula both sides know. transformers casts norms, softmax and routing to torch.float32; naming
float64 so keeps the whole layer in f64, so that the comparison is exact to rounding."""
import math

import torch

torch.float32 = torch.float = torch.float64
torch.set_default_dtype(torch.float64)
from transformers.models.qwen3_moe import modeling_qwen3_moe as hf

T, D, H, C, F_DENSE, F, E, THETA = 7, 8, 4, 4, 6, 5, 4, 1e4
CASES = [  # name, key/value heads, bias, dense, experts per token, normalise
    ("dense", 1, True, True, 1, False),
    ("moe normalised", 2, False, False, 2, True),
    ("moe plain", 4, False, False, 3, False),
]


def wave(n, key):
    i = torch.arange(n, dtype=torch.float64)
    return torch.sin(0.37 * i * i + key)


def summary(t):
    t = t.detach().reshape(-1)
    return f"{{{t.norm().item():.15g}, {(t * wave(t.numel(), 99)).sum().item():.15g}}}"


for name, n_kv, bias, dense, top_k, normalise in CASES:
    config = hf.Qwen3MoeConfig(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=n_kv, head_dim=C, intermediate_size=F_DENSE,
        moe_intermediate_size=F, num_experts=E, num_experts_per_tok=top_k, norm_topk_prob=normalise,
        attention_bias=bias, rms_norm_eps=1e-6, rope_theta=THETA, mlp_only_layers=[0] if dense else [],
        attn_implementation="eager")
    layer = hf.Qwen3MoeDecoderLayer(config, 0)
    a, mlp = layer.self_attn, layer.mlp
    groups = [[layer.input_layernorm.weight]]  # HF's tensors that make up each of ours, in our order
    for proj in (a.q_proj, a.k_proj, a.v_proj, a.o_proj):
        groups += [[proj.weight]] + ([[proj.bias]] if bias else [])
    groups += [[a.q_norm.weight], [a.k_norm.weight], [layer.post_attention_layernorm.weight]]
    if dense:
        groups += [[mlp.gate_proj.weight, mlp.up_proj.weight], [mlp.down_proj.weight]]
    else:
        groups += [[mlp.gate.weight],
                   [w for e in mlp.experts for w in (e.gate_proj.weight, e.up_proj.weight)],
                   [e.down_proj.weight for e in mlp.experts]]
    for key, group in enumerate(groups):
        flat = wave(sum(w.numel() for w in group), key)
        flat = 0.5 * flat if group[0].dim() > 1 else 1 + 0.3 * flat
        for w in group:
            w.data = flat[: w.numel()].reshape(w.shape).clone()
            flat = flat[w.numel():]
    x = wave(T * D, 50).reshape(1, T, D).requires_grad_()
    frequency = THETA ** (-torch.arange(0, C, 2) / C)
    angle = torch.outer(torch.arange(T).double(), torch.cat([frequency, frequency]))[None]
    mask = torch.full((T, T), -math.inf).triu(1)[None, None]
    y = layer(x, position_embeddings=(angle.cos(), angle.sin()), attention_mask=mask)
    (y * wave(T * D, 60).reshape(1, T, D)).sum().backward()
    rows = [summary(y), summary(x.grad)]
    rows += [summary(torch.cat([w.grad.reshape(-1) for w in group])) for group in groups]
    print(f"{{\"{name}\", {n_kv}, {str(bias).lower()}, {str(not dense).lower()}, {top_k}, {str(normalise).lower()},")
    print(" {" + ",\n  ".join(rows) + "}},")
