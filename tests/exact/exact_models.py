"""The models that must be exact: every family's tiny one, and some of wider, odder shapes for longer prompts."""

import os
from functools import cache
from unittest import mock

import torch
import transformers
from families import FAMILIES
from parity import tiny_model, twin

from milepost.models.base import Model
from milepost.ops.cpu import library

WIDE = {
    "hidden_size": 168,
    "intermediate_size": 600,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "initializer_range": 0.1,
}
MAMBA = {key: WIDE[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size", "initializer_range")}
ATTENTION_BETWEEN = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
DELTA = {
    "head_dim": 72,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 40,
    "linear_value_head_dim": 72,
}
EXPERTS = {
    "num_experts": 11,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 72,
    "shared_expert_intermediate_size": 88,
}
WIDER = {
    "gemma3_text": transformers.Gemma3TextConfig(
        **WIDE,
        head_dim=72,
        sliding_window=600,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        attn_logit_softcapping=3.0,
        final_logit_softcapping=5.0,
    ),
    "granitemoehybrid": transformers.GraniteMoeHybridConfig(
        **WIDE,
        **ATTENTION_BETWEEN,
        mamba_n_heads=8,
        mamba_d_head=42,
        mamba_d_state=72,
        mamba_n_groups=1,
        num_local_experts=9,
        num_experts_per_tok=3,
        shared_intermediate_size=136,
        position_embedding_type="rope",
    ),
    "lfm2": transformers.Lfm2Config(**WIDE, layer_types=["conv", "full_attention", "conv"], conv_bias=True),
    "mamba": transformers.MambaConfig(**MAMBA, state_size=16),
    "qwen3": transformers.Qwen3Config(**WIDE, head_dim=72),
    "qwen3_next": transformers.Qwen3NextConfig(**WIDE, **DELTA, **EXPERTS, **ATTENTION_BETWEEN),
}
"""Heads, states and widths of several vectors, tiles or blocks and a rest; a window longer than attention's splits."""


@cache
def exact_model(family: str, dtype: torch.dtype, instruction_set: str, wider: bool = False) -> Model:
    """The twin of a random model, which computes with one instruction set."""
    with mock.patch.dict(os.environ, {library.CHOICE: instruction_set}):
        return twin(tiny_model((WIDER if wider else FAMILIES)[family]), dtype=dtype)
