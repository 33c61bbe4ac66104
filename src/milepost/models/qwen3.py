"""Qwen3: Qwen2 without the biases, and with each head of q and k normed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from milepost.layers.attention import Attention, AttentionShape
from milepost.layers.linear import Embedding
from milepost.layers.mlp import GatedMLP
from milepost.layers.norm import RMSNorm
from milepost.layers.rope import rope_from_config
from milepost.models.base import Config, require
from milepost.models.decoder import CausalLM, Decoder, PreNormLayer
from milepost.models.gguf_metadata import attention_config
from milepost.models.qwen2 import windows
from milepost.ops import Ops

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("qwen3",)


def build(config: Config, ops: Ops) -> CausalLM:
    size, eps = int(require(config, "hidden_size")), float(config.get("rms_norm_eps", 1e-6))
    heads, inner_size = int(require(config, "num_attention_heads")), int(require(config, "intermediate_size"))
    head_dim = int(config.get("head_dim") or 128)
    bias = bool(config.get("attention_bias"))

    def layer(i: int, window: int | None) -> PreNormLayer:
        shape = AttentionShape(
            hidden_size=size,
            num_heads=heads,
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            bias=bias,
            output_bias=bias,
            window=window,
        )
        return PreNormLayer(
            input_layernorm=RMSNorm(size, eps, ops),
            self_attn=Attention(shape, i, ops, q_norm=RMSNorm(head_dim, eps, ops), k_norm=RMSNorm(head_dim, eps, ops)),
            post_attention_layernorm=RMSNorm(size, eps, ops),
            mlp=GatedMLP(size, inner_size, ops, activation=config.get("hidden_act") or "silu"),
            ops=ops,
        )

    embedding = Embedding(int(require(config, "vocab_size")), size, ops)
    layers = [layer(i, window) for i, window in enumerate(windows(config))]
    return CausalLM(
        Decoder(embedding, layers, RMSNorm(size, eps, ops)),
        rope_from_config(config, head_dim, ops),
        max_model_len=int(config.get("max_position_embeddings") or 32_768),
        ops=ops,
    )


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"model_type": "qwen3", **attention_config(metadata)}


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """GGUF stores every tensor as the checkpoint does: q and k keep their rotary halves apart."""
    return tensor
