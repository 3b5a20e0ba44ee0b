#!/usr/bin/env python3
"""Frequencies and attention factors of rope as HF transformers 4.57.6 computes them, as the rows of
tests/nn/test_rope.c.   Usage: python3 scripts/golden/nn_rope.py"""
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

CASES = [
    ("default", 1e4, {}),
    ("linear", 1e4, {"factor": 4.0}),
    ("llama3", 5e5, {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64}),
    ("yarn", 1e4, {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                   "original_max_position_embeddings": 2048}),
    ("yarn", 1.5e5, {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                     "original_max_position_embeddings": 4096}),
    ("yarn", 1e4, {"factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                   "mscale_all_dim": 0.7, "original_max_position_embeddings": 4096}),
    ("yarn", 1e4, {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.25,
                   "original_max_position_embeddings": 2048}),
    # the range of blended dims is empty: HF widens it by 0.001
    ("yarn", 1e4, {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
                   "original_max_position_embeddings": 4}),
    ("yarn", 1e4, {"factor": 4.0, "beta_fast": 8.0, "beta_slow": 8.0, "truncate": False,
                   "original_max_position_embeddings": 2048}),
    # the range ends behind the last dim
    ("yarn", 10.0, {"factor": 4.0, "beta_fast": 900.0, "beta_slow": 1.0,
                    "original_max_position_embeddings": 10000}),
]
for kind, theta, scaling in CASES:
    config = LlamaConfig(hidden_size=16, num_attention_heads=1, head_dim=16, rope_theta=theta,
                         max_position_embeddings=1 << 15,
                         rope_scaling={"rope_type": kind, **scaling} if scaling else None)
    frequency, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    print(f"/* {kind} {theta} {scaling} */ {factor!r}, {{{', '.join(f'{f:.9g}' for f in frequency.tolist())}}},")
