"""Granite 4: most layers Mamba-2, a few attention, often without positions; a feed-forward layer for all rows in each,
and in the sparse models experts beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.attention import Angles, Attention, AttentionShape
from milepost.layers.linear import Embedding, Linear
from milepost.layers.mamba2 import GatedNorm, Mamba2, Mamba2Shape
from milepost.layers.mlp import gated_activation
from milepost.layers.moe import MAX_EXPERTS, Experts
from milepost.layers.norm import RMSNorm
from milepost.layers.rope import Rope, rope_from_config
from milepost.models import llama, mamba2
from milepost.models.base import Config, Model, require
from milepost.models.decoder import Decoder, Layer
from milepost.models.gguf_metadata import attention_config, block_names, getter
from milepost.models.layer_types import FULL, LINEAR, layer_types
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, LayerSpecs

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("granitehybrid",)
GGUF_FLAGS = {"mamba_conv_bias": "ssm_conv1d.bias", "attention_bias": "attn_q.bias"}


class SharedMLP(nn.Module):
    """A gated feed-forward layer whose two inner projections are one matrix, the gate's rows first."""

    def __init__(self, size: int, inner_size: int, ops: Ops, activation: str) -> None:
        super().__init__()
        self.input_linear = Linear(size, 2 * inner_size, ops)
        self.output_linear = Linear(inner_size, size, ops)
        self.gated = gated_activation(activation, ops)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.input_linear(x).chunk(2, -1)
        return self.output_linear(self.gated(gate, up))


class MoE(nn.Module):
    """Each row to its `num_chosen` best experts, weighed by the softmax over these alone."""

    def __init__(self, size: int, inner_size: int, num_experts: int, num_chosen: int, ops: Ops) -> None:
        super().__init__()
        self.router = Linear(size, num_experts, ops)
        self.experts = Experts(size, inner_size, num_experts, ops)
        self.num_chosen, self.ops = num_chosen, ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(x, *self.ops.route(self.router(x), self.num_chosen, True))


class GraniteLayer(Layer):
    """Attention or Mamba-2, then feed-forward: each sees the normed rows, its scaled result is added to the rows."""

    def __init__(self, config: Config, kind: str, layer: int, ops: Ops) -> None:
        super().__init__()
        size, eps = int(require(config, "hidden_size")), float(config.get("rms_norm_eps", 1e-6))
        self.ops, self.scale = ops, float(config.get("residual_multiplier") or 1.0)
        self.input_layernorm = RMSNorm(size, eps, ops)
        self.mamba = mamba_mixer(config, layer, eps, ops) if kind == LINEAR else None
        self.self_attn = Attention(attention_shape(config), layer, ops) if kind == FULL else None
        self.post_attention_layernorm = RMSNorm(size, eps, ops)
        activation = config.get("hidden_act") or "silu"
        self.shared_mlp = SharedMLP(size, int(config.get("shared_intermediate_size", 1024)), ops, activation)
        self.block_sparse_moe = moe(config, ops)

    def state_spec(self) -> tuple[LayerSpec, ...]:
        mixer = self.mamba or self.self_attn
        assert mixer is not None
        return mixer.state_spec()

    def forward(self, x: torch.Tensor, angles: Angles | None, batch: ForwardBatch) -> torch.Tensor:
        x = self.ops.add(x, self._mix(self.input_layernorm(x), angles, batch), self.scale)
        normed = self.post_attention_layernorm(x)
        fed = self.shared_mlp(normed)
        fed = fed if self.block_sparse_moe is None else self.ops.add(self.block_sparse_moe(normed), fed)
        return self.ops.add(x, fed, self.scale)

    def _mix(self, x: torch.Tensor, angles: Angles | None, batch: ForwardBatch) -> torch.Tensor:
        if self.mamba is not None:
            return self.mamba(x, batch)
        assert self.self_attn is not None
        return self.self_attn(x, angles, batch)


class GraniteMoeHybrid(Model):
    def __init__(self, config: Config, ops: Ops) -> None:
        super().__init__()
        size, self.vocab_size = int(require(config, "hidden_size")), int(require(config, "vocab_size"))
        self.max_model_len = int(config.get("max_position_embeddings") or 2048)
        self.embedding_scale = float(config.get("embedding_multiplier") or 1.0)
        self.logits_divisor = float(config.get("logits_scaling") or 1.0)
        self.rope = rope(config, ops)
        kinds = layer_types({**config, "layer_types": stated_types(config)}, (LINEAR, FULL), lambda layer: LINEAR)
        layers = [GraniteLayer(config, kind, i, ops) for i, kind in enumerate(kinds)]
        norm = RMSNorm(size, float(config.get("rms_norm_eps", 1e-6)), ops)
        self.model = Decoder(Embedding(self.vocab_size, size, ops), layers, norm)
        self.lm_head = Linear(size, self.vocab_size, ops)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        x = self.model.embed_tokens(token_ids) * self.embedding_scale
        angles = None if self.rope is None else self.rope(batch.positions)
        for layer in self.model.layers:
            x = layer(x, angles, batch)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head.ops.wide(self.lm_head(hidden)) / self.logits_divisor

    def layer_specs(self) -> LayerSpecs:
        return self.model.specs


def build(config: Config, ops: Ops) -> Model:
    return GraniteMoeHybrid(config, ops)


def stated_types(config: Config) -> Any:
    return config.get("layer_types") or config.get("layers_block_type")


def rope(config: Config, ops: Ops) -> Rope | None:
    """None where attention knows no positions ("nope", or nothing said)."""
    if config.get("position_embedding_type") != "rope":
        return None
    return rope_from_config(config, attention_shape(config).head_dim, ops)


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
        scale=float(config.get("attention_multiplier") or 1.0),
    )


def mamba_mixer(config: Config, layer: int, eps: float, ops: Ops) -> Mamba2:
    shape = mixer_shape(config)
    return Mamba2(shape, layer, ops, GatedNorm(shape.inner_size, shape.num_groups, eps, ops))


def mixer_shape(config: Config) -> Mamba2Shape:
    mamba2.check_activation(config)
    size, heads = int(require(config, "hidden_size")), int(config.get("mamba_n_heads", 128))
    head_dim = config.get("mamba_d_head", "auto")
    bias = bool(config.get("mamba_proj_bias", False))
    return Mamba2Shape(
        hidden_size=size,
        num_heads=heads,
        head_dim=int(config.get("mamba_expand", 2)) * size // heads if head_dim == "auto" else int(head_dim),
        state_size=int(config.get("mamba_d_state", 256)),
        num_groups=int(config.get("mamba_n_groups", 1)),
        conv_taps=int(config.get("mamba_d_conv", 4)),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        in_bias=bias,
        out_bias=bias,
        dt_limit=mamba2.time_step_limit(config),
    )


def moe(config: Config, ops: Ops) -> MoE | None:
    """None in the dense models, which say that they have 0."""
    num_experts, num_chosen = int(config.get("num_local_experts", 8)), int(config.get("num_experts_per_tok") or 2)
    if num_experts == 0:
        return None
    mamba2.check_activation(config, "experts")
    if not 0 < num_chosen <= num_experts <= MAX_EXPERTS:
        raise ModelError(
            f"each row cannot go to {num_chosen} of {num_experts} experts", "the model's config.json is damaged"
        )
    size, inner_size = int(require(config, "hidden_size")), int(require(config, "intermediate_size"))
    return MoE(size, inner_size, num_experts, num_chosen, ops)


def checkpoint_names(name: str, config: Config) -> list[tuple[str, ...]]:
    """Files keep the experts under the names that transformers had for them before version 5."""
    older = {
        "block_sparse_moe.router.weight": "block_sparse_moe.router.layer.weight",
        "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.input_linear.weight",
        "block_sparse_moe.experts.down_proj": "block_sparse_moe.output_linear.weight",
    }
    return [(name.removesuffix(end) + former,) for end, former in older.items() if name.endswith(end)]


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A layer without KV heads is a Mamba layer. Whether heads are rotated is said by the key for rope scaling that was
    finetuned (llama.cpp's use of it); if it is not there, they are."""
    get, shared = getter(metadata), attention_config(metadata)
    kv_heads = shared["num_key_value_heads"]
    by_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * shared["num_hidden_layers"]
    heads = get("ssm.time_step_rank")
    return {
        **shared,
        "model_type": "granitemoehybrid",
        "num_key_value_heads": max(by_layer),
        "layer_types": [FULL if count else LINEAR for count in by_layer],
        "position_embedding_type": "rope" if get("rope.scaling.finetuned", True) else "nope",
        "mamba_n_heads": heads,
        "mamba_d_head": get("ssm.inner_size") // heads,
        "mamba_d_state": get("ssm.state_size"),
        "mamba_n_groups": get("ssm.group_count", 1),
        "mamba_d_conv": get("ssm.conv_kernel"),
        "shared_intermediate_size": get("expert_shared_feed_forward_length") or shared["intermediate_size"],
        "num_local_experts": get("expert_count", 0),
        "num_experts_per_tok": get("expert_used_count", 0),
        "attention_multiplier": get("attention.scale") or shared["head_dim"] ** -0.5,
        "embedding_multiplier": get("embedding_scale"),
        "residual_multiplier": get("residual_scale"),
        "logits_scaling": get("logit_scale"),
    }


def gguf_names(name: str, config: Config) -> tuple[str, ...]:
    """GGUF stores gates and up projections apart, and calls the shared layer an expert's only where it is not alone."""
    shared = "_shexp" if config.get("num_local_experts") else ""
    stored = {
        "shared_mlp.input_linear.weight": (f"ffn_gate{shared}.weight", f"ffn_up{shared}.weight"),
        "shared_mlp.output_linear.weight": (f"ffn_down{shared}.weight",),
        "block_sparse_moe.router.weight": ("ffn_gate_inp.weight",),
        "block_sparse_moe.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
        "block_sparse_moe.experts.down_proj": ("ffn_down_exps.weight",),
    }
    for end, names in stored.items():
        if name.endswith(end):
            return block_names(name, *names)
    return mamba2.gguf_names(name, config)


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """Mamba layers as in `mamba2`; q and k as llama's, even where they are not rotated."""
    return mamba2.gguf_tensor(name, llama.gguf_tensor(name, tensor, config), config)
