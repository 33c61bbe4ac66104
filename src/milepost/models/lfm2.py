"""LFM2: most layers a gated short convolution, some attention with normed queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from milepost.layers.attention import Angles, Attention, AttentionShape
from milepost.layers.linear import Embedding
from milepost.layers.mlp import GatedMLP
from milepost.layers.norm import RMSNorm
from milepost.layers.rope import rope_from_config
from milepost.layers.short_conv import ShortConv
from milepost.models.base import Config, require
from milepost.models.decoder import CausalLM, Decoder, Layer, PreNormLayer
from milepost.models.gguf_metadata import attention_config, getter
from milepost.models.layer_types import FULL, layer_types
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("lfm2",)
CONV = "conv"

DEFAULTS = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "conv_bias": False,
    "norm_eps": 1e-5,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "rope_theta": 1e6,
    "max_position_embeddings": 128_000,
}
"""What published configs leave out (transformers' Lfm2Config has the same)."""

PUBLISHED_NAMES = {
    "model.norm": "model.embedding_norm",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "self_attn.o_proj": "self_attn.out_proj",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}
"""Our layers' names, and those that the checkpoints have for them."""


class ShortConvLayer(Layer):
    """The convolution, then a feed-forward layer: each sees the normed rows, and its result is added to the rows."""

    def __init__(
        self, input_layernorm: RMSNorm, conv: ShortConv, post_attention_layernorm: RMSNorm, mlp: GatedMLP, ops: Ops
    ) -> None:
        super().__init__()
        self.ops = ops
        self.input_layernorm = input_layernorm
        self.conv = conv
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp

    def state_spec(self) -> tuple[LayerSpec, ...]:
        return self.conv.state_spec()

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        x = self.ops.add(x, self.conv(self.input_layernorm(x), batch))
        return self.ops.add(x, self.mlp(self.post_attention_layernorm(x)))


def build(config: Config, ops: Ops) -> CausalLM:
    config = {**DEFAULTS, **config}
    size, eps, inner_size = int(require(config, "hidden_size")), float(config["norm_eps"]), feed_forward_size(config)
    shape = attention_shape(config)
    taps, bias = int(config["conv_L_cache"]), bool(config["conv_bias"])

    def layer(i: int, kind: str) -> Layer:
        norms, mlp = [RMSNorm(size, eps, ops) for _ in range(2)], GatedMLP(size, inner_size, ops)
        if kind == CONV:
            return ShortConvLayer(norms[0], ShortConv(size, taps, i, ops, bias), norms[1], mlp, ops)
        head_norms = (RMSNorm(shape.head_dim, eps, ops) for _ in range(2))
        return PreNormLayer(norms[0], Attention(shape, i, ops, *head_norms), norms[1], mlp, ops)

    embedding = Embedding(int(require(config, "vocab_size")), size, ops)
    layers = [layer(i, kind) for i, kind in enumerate(kinds(config))]
    return CausalLM(
        Decoder(embedding, layers, RMSNorm(size, eps, ops)),
        rope_from_config(config, shape.head_dim, ops),
        max_model_len=int(config["max_position_embeddings"]),
        ops=ops,
    )


def attention_shape(config: Config) -> AttentionShape:
    size, heads = int(require(config, "hidden_size")), int(config["num_attention_heads"])
    return AttentionShape(
        hidden_size=size,
        num_heads=heads,
        num_kv_heads=int(config["num_key_value_heads"]),
        head_dim=int(config.get("head_dim") or size // heads),
    )


def kinds(config: Config) -> list[str]:
    """The kind of each layer; older configs list the attention layers in `full_attn_idxs`, or all are attention."""
    attention = config.get("full_attn_idxs")
    return layer_types(config, (FULL, CONV), lambda i: FULL if attention is None or i in attention else CONV)


def feed_forward_size(config: Config) -> int:
    """The inner size of the feed-forward layers: two thirds of the stated one, rounded up to a multiple, unless the
    config says that it is stated as it is."""
    stated = int(config.get("block_ff_dim") or require(config, "intermediate_size"))
    if not config["block_auto_adjust_ff_dim"]:
        return stated
    size = 2 * stated // 3
    if config["block_ffn_dim_multiplier"] is None:
        return size
    multiple = int(config["block_multiple_of"])
    return -(-int(config["block_ffn_dim_multiplier"] * size) // multiple) * multiple


def checkpoint_names(name: str, config: Config) -> list[tuple[str, ...]]:
    for ours, published in PUBLISHED_NAMES.items():
        if f".{ours}." in f".{name}":
            return [(name.replace(ours, published),)]
    return []


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A layer without KV heads is a convolution; the feed-forward layers' size is the adjusted one."""
    get, shared = getter(metadata), attention_config(metadata)
    kv_heads = shared["num_key_value_heads"]
    by_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * shared["num_hidden_layers"]
    return {
        **shared,
        "model_type": "lfm2",
        "num_key_value_heads": max(by_layer),
        "layer_types": [FULL if count else CONV for count in by_layer],
        "conv_L_cache": get("shortconv.l_cache"),
        "norm_eps": shared["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
    }


def gguf_names(name: str, config: Config) -> tuple[str, ...]:
    """GGUF takes the last norm for one of the embedding."""
    return ("token_embd_norm.weight",) if name == "model.norm.weight" else ()


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """GGUF stores the convolution without its middle dimension; q and k keep their rotary halves apart."""
    return tensor.unsqueeze(1) if name.endswith(".conv.conv.weight") else tensor
