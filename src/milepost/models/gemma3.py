"""Gemma 3: most layers see a sliding window, every sixth the whole context, each kind with a rope of its own.

Served: `gemma3_text`, and the text part of `gemma3` (images are not read).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from milepost.errors import ModelError
from milepost.layers.attention import Angles, Attention, AttentionShape
from milepost.layers.linear import Embedding, Linear
from milepost.layers.mlp import GatedMLP
from milepost.layers.norm import OffsetRMSNorm
from milepost.layers.rope import Rope, rope_from_config
from milepost.models.base import Config, Model, require
from milepost.models.decoder import Decoder, Layer
from milepost.models.gguf_metadata import attention_config, getter
from milepost.models.layer_types import FULL, SLIDING, layer_types, layer_windows
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, LayerSpecs

TIED = {
    "lm_head.weight": "model.embed_tokens.weight",
    "language_model.lm_head.weight": "language_model.model.embed_tokens.weight",
}
GGUF_ARCHITECTURES = ("gemma3",)

DEFAULTS = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131_072,
}
"""What published configs leave out (transformers' Gemma3TextConfig has the same)."""


class Gemma3Layer(Layer):
    """Attention, then a feed-forward layer; rows are normed before each, and its result before it is added to them."""

    def __init__(self, config: Config, layer: int, window: int | None, ops: Ops) -> None:
        super().__init__()
        shape, eps = attention_shape(config, window), float(config["rms_norm_eps"])
        size, inner_size = shape.hidden_size, int(require(config, "intermediate_size"))
        self.input_layernorm = OffsetRMSNorm(size, eps, ops)
        self.ops = ops
        self.self_attn = Attention(
            shape,
            layer,
            ops,
            q_norm=OffsetRMSNorm(shape.head_dim, eps, ops),
            k_norm=OffsetRMSNorm(shape.head_dim, eps, ops),
        )
        self.post_attention_layernorm = OffsetRMSNorm(size, eps, ops)
        self.pre_feedforward_layernorm = OffsetRMSNorm(size, eps, ops)
        self.mlp = GatedMLP(size, inner_size, ops, activation=config["hidden_activation"])
        self.post_feedforward_layernorm = OffsetRMSNorm(size, eps, ops)

    def state_spec(self) -> tuple[LayerSpec, ...]:
        return self.self_attn.state_spec()

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(x), angles, batch)
        x = self.ops.add(x, self.post_attention_layernorm(attended))
        fed = self.mlp(self.pre_feedforward_layernorm(x))
        return self.ops.add(x, self.post_feedforward_layernorm(fed))


class Gemma3(Model):
    def __init__(self, config: Config, ops: Ops) -> None:
        super().__init__()
        config = {**DEFAULTS, **config}
        if config.get("use_bidirectional_attention"):
            raise ModelError("bidirectional attention is not supported", "this is an embedding model; use a chat model")
        size, self.vocab_size = int(require(config, "hidden_size")), int(config["vocab_size"])
        self.max_model_len = int(config["max_position_embeddings"])
        self.layer_types = layer_types(config, (FULL, SLIDING), usual_types(config))
        self.ropes = ropes(config, ops)
        self.embed_scale = size**0.5
        self.final_soft_cap: float | None = config.get("final_logit_softcapping")
        self.ops = ops
        windows = layer_windows(config, self.layer_types)
        layers = [Gemma3Layer(config, i, window, ops) for i, window in enumerate(windows)]
        norm = OffsetRMSNorm(size, float(config["rms_norm_eps"]), ops)
        self.model = Decoder(Embedding(self.vocab_size, size, ops), layers, norm)
        self.lm_head = Linear(size, self.vocab_size, ops)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        x = self.model.embed_tokens(token_ids)
        x = x * torch.tensor(self.embed_scale, dtype=x.dtype, device=x.device)  # rounded to the dtype, as in training
        angles = {kind: rope(batch.positions) for kind, rope in self.ropes.items()}
        for kind, layer in zip(self.layer_types, self.model.layers, strict=True):
            x = layer(x, angles[kind], batch)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.lm_head.ops.wide(self.lm_head(hidden))
        return logits if self.final_soft_cap is None else self.ops.soft_cap(logits, self.final_soft_cap)

    def layer_specs(self) -> LayerSpecs:
        return self.model.specs


class Gemma3WithImages(Model):
    """The text part of a model that also reads images; their tensors stay on disk."""

    def __init__(self, config: Config, ops: Ops) -> None:
        super().__init__()
        self.language_model = Gemma3(require(config, "text_config"), ops)
        self.max_model_len, self.vocab_size = self.language_model.max_model_len, self.language_model.vocab_size

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        return self.language_model(token_ids, batch)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.language_model.logits(hidden)

    def layer_specs(self) -> LayerSpecs:
        return self.language_model.layer_specs()


def build(config: Config, ops: Ops) -> Model:
    return Gemma3WithImages(config, ops) if config.get("model_type") == "gemma3" else Gemma3(config, ops)


def attention_shape(config: Config, window: int | None) -> AttentionShape:
    bias = bool(config.get("attention_bias"))
    return AttentionShape(
        hidden_size=int(require(config, "hidden_size")),
        num_heads=int(config["num_attention_heads"]),
        num_kv_heads=int(config["num_key_value_heads"]),
        head_dim=int(config["head_dim"]),
        bias=bias,
        output_bias=bias,
        window=window,
        scale=float(config["query_pre_attn_scalar"]) ** -0.5,
        soft_cap=config.get("attn_logit_softcapping"),
    )


def usual_types(config: Config) -> Callable[[int], str]:
    """Older configs give a period instead of `layer_types`: its last layer sees everything, the others a window."""
    period = int(config["sliding_window_pattern"])
    return lambda layer: SLIDING if (layer + 1) % period else FULL


def ropes(config: Config, ops: Ops) -> dict[str, Rope]:
    """The rope of each kind of layer.

    transformers 5 writes `rope_parameters` by kind of layer. Before, `rope_theta` and `rope_scaling` were the full
    layers', and the sliding ones turned by `rope_local_base_freq`, never scaled.
    """
    stated = config.get("rope_parameters") or {}
    older = {
        FULL: {"rope_theta": config.get("rope_theta") or 1e6, **(config.get("rope_scaling") or {})},
        SLIDING: {"rope_theta": config.get("rope_local_base_freq") or 1e4},
    }
    context, head_dim = config["max_position_embeddings"], int(config["head_dim"])
    return {
        kind: rope_from_config(
            {"rope_parameters": {**settings, **(stated.get(kind) or {})}, "max_position_embeddings": context},
            head_dim,
            ops,
        )
        for kind, settings in older.items()
    }


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF does not store all of the config; what it leaves out is as in llama.cpp, the format's reference.

    The score's scale follows from the size: the model of 62 layers (27B) divides by the root of hidden_size / heads,
    all others by that of head_dim.
    """
    get, shared = getter(metadata), attention_config(metadata)
    largest = shared["num_hidden_layers"] == 62
    scalar = shared["hidden_size"] // shared["num_attention_heads"] if largest else shared["head_dim"]
    return {
        **shared,
        "model_type": "gemma3_text",
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": get("rope.freq_base_swa", 10_000.0),
        "layer_types": _gguf_layer_types(get("attention.sliding_window_pattern", 6), shared),
        "attn_logit_softcapping": get("attn_logit_softcapping"),
        "final_logit_softcapping": get("final_logit_softcapping"),
    }


def _gguf_layer_types(pattern: int | list[bool], shared: Config) -> list[str]:
    """`pattern`: a period, or for each layer whether it slides. Without a window no layer does."""
    num_layers = shared["num_hidden_layers"]
    if not shared["sliding_window"]:
        return [FULL] * num_layers
    if isinstance(pattern, int):
        return [SLIDING if (i + 1) % pattern else FULL for i in range(num_layers)]
    return [SLIDING if slides else FULL for slides in pattern]


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """GGUF stores norm weights with the 1 added that the checkpoint's are a distance from."""
    return tensor.float() - 1 if name.endswith("norm.weight") else tensor
