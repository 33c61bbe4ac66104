"""A tiny model with random weights for each kind of state. Nothing of them is round: widths, windows, groups."""

from __future__ import annotations

from functools import cache

import torch
import transformers
from parity import tiny_model, twin

from milepost.models.base import Model

VOCAB_SIZE = 151
POISON = VOCAB_SIZE - 1
"""A token that no text has: a scenario can make its row NaN."""

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 16384,
    "initializer_range": 0.2,
}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}

KINDS = {
    "gated_delta": transformers.Qwen3_5TextConfig(
        **SHAPE,
        **HYBRID,
        head_dim=16,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=12,
        linear_value_head_dim=8,
    ),
    "mamba2": transformers.GraniteMoeHybridConfig(
        **SHAPE,
        **HYBRID,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=12,
        mamba_n_groups=1,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=40,
    ),
    "mamba1": transformers.MambaConfig(
        hidden_size=32, num_hidden_layers=2, vocab_size=VOCAB_SIZE, initializer_range=0.2, state_size=6
    ),
    "short_conv": transformers.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"], conv_L_cache=4),
    "attention": transformers.LlamaConfig(**SHAPE),
    "sliding_window": transformers.Gemma3TextConfig(
        **SHAPE, head_dim=16, sliding_window=50, layer_types=["sliding_attention", "full_attention"]
    ),
}
"""Mamba-1 is a model without any attention: no KV, states alone."""


@cache
def model_of(kind: str, dtype: torch.dtype = torch.float32) -> Model:
    return twin(tiny_model(KINDS[kind]), dtype=dtype)
