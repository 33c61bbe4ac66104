"""Falcon-H1: attention and Mamba-2 side by side in every layer, and a factor almost wherever something is projected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.attention import Angles, Attention, AttentionShape
from milepost.layers.linear import Embedding, Linear
from milepost.layers.mamba2 import GatedNorm, Mamba2, Mamba2Shape
from milepost.layers.mlp import gated_activation
from milepost.layers.norm import RMSNorm
from milepost.layers.rope import rope_from_config
from milepost.models import mamba2
from milepost.models.base import Config, Model, require
from milepost.models.decoder import Layer
from milepost.models.gguf_metadata import attention_config, getter
from milepost.models.layer_types import HINT
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, LayerSpecs

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("falcon-h1",)
GGUF_FLAGS = {
    "mamba_rms_norm": "ssm_norm.weight",
    "mamba_conv_bias": "ssm_conv1d.bias",
    "attention_bias": "attn_q.bias",
    "mlp_bias": "ffn_gate.bias",
}


class ScaledMLP(nn.Module):
    """down(activation(gate(x) * `gate_scale`) * up(x)) * `down_scale`."""

    def __init__(self, config: Config, ops: Ops) -> None:
        super().__init__()
        size, inner_size = int(require(config, "hidden_size")), int(require(config, "intermediate_size"))
        bias = bool(config.get("mlp_bias"))
        self.gate_scale, self.down_scale = factors(config, "mlp_multipliers", 2)
        self.gate_proj = Linear(size, inner_size, ops, bias)
        self.up_proj = Linear(size, inner_size, ops, bias)
        self.down_proj = Linear(inner_size, size, ops, bias)
        self.gated = gated_activation(config.get("hidden_act") or "silu", ops)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.gated(self.gate_proj(x) * self.gate_scale, self.up_proj(x))) * self.down_scale


class FalconH1Layer(Layer):
    """Attention and Mamba-2 both see the normed rows, then feed-forward sees them: results are added to the rows."""

    def __init__(self, config: Config, layer: int, ops: Ops) -> None:
        super().__init__()
        size, eps = int(require(config, "hidden_size")), float(config.get("rms_norm_eps", 1e-5))
        self.attention_in, self.attention_out, self.ssm_in, self.ssm_out = (
            factor(config, f"{part}_multiplier") for part in ("attention_in", "attention_out", "ssm_in", "ssm_out")
        )
        self.ops = ops
        self.input_layernorm = RMSNorm(size, eps, ops)
        self.mamba = mamba_mixer(config, layer, eps, ops)
        self.self_attn = Attention(attention_shape(config), layer, ops)
        self.pre_ff_layernorm = RMSNorm(size, eps, ops)
        self.feed_forward = ScaledMLP(config, ops)

    def state_spec(self) -> tuple[LayerSpec, ...]:
        return (*self.self_attn.state_spec(), *self.mamba.state_spec())

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        normed = self.input_layernorm(x)
        scanned = self.mamba(normed * self.ssm_in, batch) * self.ssm_out
        attended = self.self_attn(normed * self.attention_in, angles, batch) * self.attention_out
        x = self.ops.add(x, self.ops.add(scanned, attended))
        return self.ops.add(x, self.feed_forward(self.pre_ff_layernorm(x)))


class FalconH1Decoder(nn.Module):
    """The parameters that a checkpoint keeps below `model.`."""

    def __init__(self, embed_tokens: Embedding, layers: Sequence[FalconH1Layer], final_layernorm: RMSNorm) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = nn.ModuleList(layers)
        self.final_layernorm = final_layernorm
        self.specs = [layer.state_spec() for layer in layers]


class FalconH1(Model):
    def __init__(self, config: Config, ops: Ops) -> None:
        super().__init__()
        size, self.vocab_size = int(require(config, "hidden_size")), int(require(config, "vocab_size"))
        self.max_model_len = int(config.get("max_position_embeddings") or 8192)
        self.embedding_scale, self.logits_scale = (
            factor(config, f"{part}_multiplier") for part in ("embedding", "lm_head")
        )
        self.rope = rope_from_config(config, attention_shape(config).head_dim, ops)
        layers = [FalconH1Layer(config, i, ops) for i in range(int(require(config, "num_hidden_layers")))]
        norm = RMSNorm(size, float(config.get("rms_norm_eps", 1e-5)), ops)
        self.model = FalconH1Decoder(Embedding(self.vocab_size, size, ops), layers, norm)
        self.lm_head = Linear(size, self.vocab_size, ops)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        x, angles = self.model.embed_tokens(token_ids) * self.embedding_scale, self.rope(batch.positions)
        for layer in self.model.layers:
            x = layer(x, angles, batch)
        return self.model.final_layernorm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head.ops.wide(self.lm_head(hidden)) * self.logits_scale

    def layer_specs(self) -> LayerSpecs:
        return self.model.specs


def build(config: Config, ops: Ops) -> Model:
    return FalconH1(config, ops)


def factor(config: Config, key: str) -> float:
    stated = config.get(key)
    return 1.0 if stated is None else float(stated)


def factors(config: Config, key: str, count: int) -> tuple[float, ...]:
    """`count` factors; without the key all are 1."""
    stated = config.get(key) or [1.0] * count
    if len(stated) != count:
        raise ModelError(f"the config has {len(stated)} {key}, not {count}", HINT)
    return tuple(float(value) for value in stated)


def attention_shape(config: Config) -> AttentionShape:
    """The keys' factor becomes part of the scale of the scores."""
    size, heads = int(require(config, "hidden_size")), int(require(config, "num_attention_heads"))
    head_dim, bias = int(config.get("head_dim") or size // heads), bool(config.get("attention_bias"))
    return AttentionShape(
        hidden_size=size,
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        bias=bias,
        output_bias=bias,
        scale=head_dim**-0.5 * factor(config, "key_multiplier"),
    )


def mamba_mixer(config: Config, layer: int, eps: float, ops: Ops) -> Mamba2:
    """The norm is left out unless `mamba_rms_norm` asks for it. The projection's factors: gate, x, B, C, time steps."""
    shape, norm = mixer_shape(config), None
    if config.get("mamba_rms_norm"):
        gate_first = not config.get("mamba_norm_before_gate", True)
        norm = GatedNorm(shape.inner_size, shape.num_groups, eps, ops, gate_first)
    gate, x, b, c, dt = factors(config, "ssm_multipliers", 5)
    return Mamba2(shape, layer, ops, norm, (gate, x, b, c, dt))


def mixer_shape(config: Config) -> Mamba2Shape:
    mamba2.check_activation(config)
    size, heads = int(require(config, "hidden_size")), int(config.get("mamba_n_heads", 128))
    inner_size, head_dim = config.get("mamba_d_ssm", 1024), config.get("mamba_d_head", "auto")
    inner_size = int(config.get("mamba_expand", 2)) * size if inner_size is None else int(inner_size)
    return Mamba2Shape(
        hidden_size=size,
        num_heads=heads,
        head_dim=inner_size // heads if head_dim == "auto" else int(head_dim),
        state_size=int(config.get("mamba_d_state", 256)),
        num_groups=int(config.get("mamba_n_groups", 1)),
        conv_taps=int(config.get("mamba_d_conv", 4)),
        conv_bias=bool(config.get("mamba_conv_bias", True)),
        in_bias=bool(config.get("mamba_proj_bias", False)),
        out_bias=bool(config.get("projectors_bias", False)),
        dt_limit=mamba2.time_step_limit(config),
    )


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """All factors are part of the stored weights (but a tied head's: it has the embedding's instead, and the file does
    not say which). Where there is a norm, the gate comes before it: llama.cpp, the format's reference, knows no other
    order."""
    get, inner_size = getter(metadata), getter(metadata)("ssm.inner_size")
    heads = get("ssm.time_step_rank")
    return {
        **attention_config(metadata),
        "model_type": "falcon_h1",
        "mamba_d_ssm": inner_size,
        "mamba_n_heads": heads,
        "mamba_d_head": inner_size // heads,
        "mamba_d_state": get("ssm.state_size"),
        "mamba_n_groups": get("ssm.group_count", 1),
        "mamba_d_conv": get("ssm.conv_kernel"),
        "mamba_norm_before_gate": False,
    }


gguf_names = mamba2.gguf_names
gguf_tensor = mamba2.gguf_tensor
