"""Llama and the models that share its layers: Mistral (with a sliding window), SmolLM, SmolLM2."""

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
from milepost.ops import Ops

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("llama",)


def build(config: Config, ops: Ops) -> CausalLM:
    shape = attention_shape(config)
    size, eps = shape.hidden_size, float(config.get("rms_norm_eps", 1e-6))
    inner_size, activation = require(config, "intermediate_size"), config.get("hidden_act") or "silu"

    def layer(i: int) -> PreNormLayer:
        return PreNormLayer(
            input_layernorm=RMSNorm(size, eps, ops),
            self_attn=Attention(shape, i, ops),
            post_attention_layernorm=RMSNorm(size, eps, ops),
            mlp=GatedMLP(size, inner_size, ops, bool(config.get("mlp_bias")), activation),
            ops=ops,
        )

    embedding = Embedding(int(require(config, "vocab_size")), size, ops)
    layers = [layer(i) for i in range(require(config, "num_hidden_layers"))]
    return CausalLM(
        Decoder(embedding, layers, RMSNorm(size, eps, ops)),
        rope_from_config(config, shape.head_dim, ops),
        max_model_len=int(config.get("max_position_embeddings") or 2048),
        ops=ops,
    )


def attention_shape(config: Config) -> AttentionShape:
    size, heads = int(require(config, "hidden_size")), int(require(config, "num_attention_heads"))
    bias = bool(config.get("attention_bias"))
    return AttentionShape(
        hidden_size=size,
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or size // heads),
        bias=bias,
        output_bias=bias,
        window=config.get("sliding_window") if config.get("model_type") == "mistral" else None,
    )


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"model_type": "llama", **attention_config(metadata)}


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """GGUF stores llama's q and k with each head's rotary pairs interleaved; checkpoints keep the halves apart."""
    if name.endswith((".q_proj.weight", ".q_proj.bias")):
        return _halves(tensor, config["num_attention_heads"])
    if name.endswith((".k_proj.weight", ".k_proj.bias")):
        return _halves(tensor, config.get("num_key_value_heads") or config["num_attention_heads"])
    return tensor


def _halves(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    pairs = tensor.reshape(num_heads, tensor.shape[0] // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)
