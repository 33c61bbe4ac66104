"""Qwen3.5: three layers of the gated delta rule, then one of attention with a gate, and so on.

Served: `qwen3_5_text`, and the text part of `qwen3_5` (images are not read).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.attention import Angles, Attention, AttentionShape
from milepost.layers.gated_delta import DeltaShape, GatedDelta, SplitGatedDelta
from milepost.layers.linear import Embedding
from milepost.layers.mlp import GatedMLP
from milepost.layers.norm import OffsetRMSNorm
from milepost.layers.rope import rope_from_config
from milepost.models.base import Config, require
from milepost.models.decoder import CausalLM, Decoder, Layer
from milepost.models.gguf_metadata import attention_config, block_names, getter
from milepost.models.layer_types import FULL, LINEAR, layer_types
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("qwen35",)

DEFAULTS = {
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32_768,
    "hidden_act": "silu",
}
"""What published configs leave out (transformers' Qwen3_5TextConfig has the same)."""


class HybridLayer(Layer):
    """The gated delta rule or attention, whichever is given, then a feed-forward layer: each sees the normed rows, and
    its result is added to the rows."""

    def __init__(self, config: Config, mixer: GatedDelta | Attention, mlp: nn.Module, ops: Ops) -> None:
        super().__init__()
        size, eps = int(require(config, "hidden_size")), float(config["rms_norm_eps"])
        self.input_layernorm = OffsetRMSNorm(size, eps, ops)
        self.linear_attn = mixer if isinstance(mixer, GatedDelta) else None
        self.self_attn = mixer if isinstance(mixer, Attention) else None
        self.post_attention_layernorm = OffsetRMSNorm(size, eps, ops)
        self.mlp, self.ops = mlp, ops
        self.specs = mixer.state_spec()

    def state_spec(self) -> tuple[LayerSpec, ...]:
        return self.specs

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        normed = self.input_layernorm(x)
        if self.self_attn is not None:
            x = self.ops.add(x, self.self_attn(normed, angles, batch))
        if self.linear_attn is not None:
            x = self.ops.add(x, self.linear_attn(normed, batch))
        return self.ops.add(x, self.mlp(self.post_attention_layernorm(x)))


def build(config: Config, ops: Ops) -> CausalLM:
    text = require(config, "text_config") if config.get("model_type") == "qwen3_5" else config
    config = {**DEFAULTS, **text}

    def layer(i: int, kind: str) -> HybridLayer:
        mixer = gated_attention(config, i, ops) if kind == FULL else SplitGatedDelta(delta_shape(config), i, ops)
        mlp = GatedMLP(int(require(config, "hidden_size")), int(require(config, "intermediate_size")), ops)
        return HybridLayer(config, mixer, mlp, ops)

    return causal_lm(config, [layer(i, kind) for i, kind in enumerate(kinds(config))], ops)


def kinds(config: Config) -> list[str]:
    """The kind of each layer; configs without `layer_types` give a period, whose last layer is attention."""
    period = int(config["full_attention_interval"])
    return layer_types(config, (FULL, LINEAR), lambda i: LINEAR if (i + 1) % period else FULL)


def causal_lm(config: Config, layers: list[HybridLayer], ops: Ops) -> CausalLM:
    """What is around the layers. The one activation that the layers know is checked here."""
    if config["hidden_act"] != "silu":
        raise ModelError(f"activation {config['hidden_act']!r} is not supported", "supported here: silu")
    size = int(require(config, "hidden_size"))
    return CausalLM(
        Decoder(
            Embedding(int(require(config, "vocab_size")), size, ops),
            layers,
            OffsetRMSNorm(size, float(config["rms_norm_eps"]), ops),
        ),
        rope_from_config(config, int(config["head_dim"]), ops),
        max_model_len=int(config["max_position_embeddings"]),
        ops=ops,
    )


def gated_attention(config: Config, layer: int, ops: Ops) -> Attention:
    bias, head_dim, eps = bool(config.get("attention_bias")), int(config["head_dim"]), float(config["rms_norm_eps"])
    shape = AttentionShape(
        hidden_size=int(require(config, "hidden_size")),
        num_heads=int(config["num_attention_heads"]),
        num_kv_heads=int(config["num_key_value_heads"]),
        head_dim=head_dim,
        bias=bias,
        output_bias=bias,
        output_gate=True,
    )
    norms = (OffsetRMSNorm(head_dim, eps, ops) for _ in range(2))
    return Attention(shape, layer, ops, *norms)


def delta_shape(config: Config) -> DeltaShape:
    return DeltaShape(
        hidden_size=int(require(config, "hidden_size")),
        num_key_heads=int(config["linear_num_key_heads"]),
        num_value_heads=int(config["linear_num_value_heads"]),
        key_dim=int(config["linear_key_head_dim"]),
        value_dim=int(config["linear_value_head_dim"]),
        conv_taps=int(config["linear_conv_kernel_dim"]),
        eps=float(config["rms_norm_eps"]),
    )


def checkpoint_names(name: str, config: Config) -> list[tuple[str, ...]]:
    """Models that also read images keep their text part one level further down."""
    return [(f"model.language_model.{name.removeprefix('model.')}",)] if name.startswith("model.") else []


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {**gguf_hybrid_config(metadata), "model_type": "qwen3_5_text"}


def gguf_hybrid_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What GGUF says of both kinds of layers. Layers that only predict further tokens come last and are not read."""
    get, shared = getter(metadata), attention_config(metadata)
    num_layers = shared["num_hidden_layers"] - get("nextn_predict_layers", 0)
    recurrent, kv_heads = get("attention.recurrent_layers"), shared["num_key_value_heads"]
    value_heads = get("ssm.time_step_rank")
    return {
        **shared,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": max(kv_heads) if isinstance(kv_heads, list) else kv_heads,
        "partial_rotary_factor": get("rope.dimension_count") / shared["head_dim"],
        "full_attention_interval": get("full_attention_interval", 4),
        "layer_types": recurrent and [LINEAR if yes else FULL for yes in recurrent[:num_layers]],
        "linear_num_key_heads": get("ssm.group_count"),
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": get("ssm.state_size"),
        "linear_value_head_dim": get("ssm.inner_size") // value_heads,
        "linear_conv_kernel_dim": get("ssm.conv_kernel"),
    }


def gguf_names(name: str, config: Config) -> tuple[str, ...]:
    """GGUF takes the decays' bias for that of Mamba's time steps."""
    return block_names(name, "ssm_dt.bias") if name.endswith(".dt_bias") else ()


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    return _heads_in_order(name, gguf_hybrid_tensor(name, tensor), delta_shape({**DEFAULTS, **config}))


def gguf_hybrid_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """GGUF stores A itself rather than log(-A), the convolution without its middle dimension, and norm weights with the
    1 added that the checkpoint's are a distance from (all but the gated norm's)."""
    if name.endswith(".A_log"):
        return (-tensor.float()).log()
    if name.endswith(".conv1d.weight"):
        return tensor.unsqueeze(1)
    is_offset = name.endswith("norm.weight") and not name.endswith(".linear_attn.norm.weight")
    return tensor.float() - 1 if is_offset else tensor


def _heads_in_order(name: str, tensor: torch.Tensor, shape: DeltaShape) -> torch.Tensor:
    """GGUF stores the first value head of every key head, then the second of each, and so on; a checkpoint keeps those
    of one key head together."""
    if ".linear_attn." not in name or name.endswith(".norm.weight"):
        return tensor
    if name.endswith(".out_proj.weight"):
        return _regrouped(tensor.T, shape).T
    first = 2 * shape.key_size if name.endswith((".in_proj_qkv.weight", ".conv1d.weight")) else 0
    return torch.cat([tensor[:first], _regrouped(tensor[first:], shape)])


def _regrouped(tensor: torch.Tensor, shape: DeltaShape) -> torch.Tensor:
    """Rows of value heads, from GGUF's order to the checkpoint's."""
    per_key_head = shape.num_value_heads // shape.num_key_heads
    heads = tensor.reshape(per_key_head, shape.num_key_heads, -1, *tensor.shape[1:])
    return heads.swapaxes(0, 1).reshape(tensor.shape)
