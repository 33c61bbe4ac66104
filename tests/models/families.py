"""A tiny model of every family, for the tests that hold for all. A new family: one row in FAMILIES."""

from functools import cache

import torch
import transformers
from parity import tiny_model, twin

from milepost.models.base import Model

SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
MAMBA = {key: SHAPE[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size", "initializer_range")}
MAMBA2 = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2}
WINDOW = {"sliding_window": 50, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "decoder_sparse_step": 2,
}
FAMILIES = {
    "falcon_h1": transformers.FalconH1Config(**SHAPE, **MAMBA2, mamba_d_ssm=96, mamba_rms_norm=True),
    "falcon_mamba": transformers.FalconMambaConfig(**MAMBA, state_size=6),
    "gemma3_text": transformers.Gemma3TextConfig(**SHAPE, **WINDOW, head_dim=32),
    "granitemoehybrid": transformers.GraniteMoeHybridConfig(
        **SHAPE,
        **MAMBA2,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_local_experts=5,
        num_experts_per_tok=2,
        shared_intermediate_size=40,
    ),
    "lfm2": transformers.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv"], conv_L_cache=4),
    "llama": transformers.LlamaConfig(**SHAPE),
    "mamba": transformers.MambaConfig(**MAMBA, state_size=6),
    "mamba2": transformers.Mamba2Config(**MAMBA, num_heads=6, head_dim=16, state_size=24, n_groups=2),
    "mistral": transformers.MistralConfig(**SHAPE, sliding_window=50),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=32),
    "qwen3_5_text": transformers.Qwen3_5TextConfig(**SHAPE, **DELTA),
    "qwen3_next": transformers.Qwen3NextConfig(**SHAPE, **DELTA, **EXPERTS),
}
"""A tiny config for each `model_type`."""
ATTENTION_ALONE = {"gemma3_text", "llama", "mistral", "qwen2", "qwen3"}


@cache
def model_of(family: str, dtype: torch.dtype = torch.float32) -> Model:
    return twin(tiny_model(FAMILIES[family]), dtype=dtype)
