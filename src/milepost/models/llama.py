"""Llama and the models that share its layers: Mistral (with a sliding window), SmolLM, SmolLM2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from milepost.layers.attention import Angles, Attention, AttentionShape
from milepost.layers.linear import Embedding, Linear
from milepost.layers.mlp import GatedMLP
from milepost.layers.norm import RMSNorm
from milepost.layers.rope import rope_from_config
from milepost.models.base import Config, Model, require
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpecs

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("llama",)


class LlamaLayer(nn.Module):
    def __init__(self, config: Config, shape: AttentionShape, layer: int, ops: Ops) -> None:
        super().__init__()
        eps, size = float(config.get("rms_norm_eps", 1e-6)), shape.hidden_size
        self.input_layernorm = RMSNorm(size, eps, ops)
        self.self_attn = Attention(shape, layer, ops)
        self.post_attention_layernorm = RMSNorm(size, eps, ops)
        self.mlp = GatedMLP(size, require(config, "intermediate_size"), ops, bool(config.get("mlp_bias")))

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, batch)
        return x + self.mlp(self.post_attention_layernorm(x))


class LlamaBody(nn.Module):
    def __init__(self, config: Config, shape: AttentionShape, ops: Ops) -> None:
        super().__init__()
        self.embed_tokens = Embedding(require(config, "vocab_size"), shape.hidden_size)
        layers = [LlamaLayer(config, shape, i, ops) for i in range(require(config, "num_hidden_layers"))]
        self.layers = nn.ModuleList(layers)
        self.specs = [layer.self_attn.state_spec() for layer in layers]
        self.norm = RMSNorm(shape.hidden_size, float(config.get("rms_norm_eps", 1e-6)), ops)


class Llama(Model):
    def __init__(self, config: Config, ops: Ops) -> None:
        super().__init__()
        shape = attention_shape(config)
        self.max_model_len = int(config.get("max_position_embeddings") or 2048)
        self.vocab_size = int(require(config, "vocab_size"))
        self.rope = rope_from_config(config, shape.head_dim)
        self.model = LlamaBody(config, shape, ops)
        self.lm_head = Linear(shape.hidden_size, self.vocab_size, ops)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        x, angles = self.model.embed_tokens(token_ids), self.rope(batch.positions)
        for layer in self.model.layers:
            x = layer(x, angles, batch)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden).float()

    def layer_specs(self) -> LayerSpecs:
        return self.model.specs


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
        window=config.get("sliding_window"),
    )


def build(config: Config, ops: Ops) -> Llama:
    return Llama(config, ops)


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` from the metadata of a llama GGUF (key names: the GGUF specification)."""
    arch = metadata["general.architecture"]

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{arch}.{key}", default)

    return {
        "model_type": "llama",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length") or get("rope.dimension_count"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": get("rope.freq_base", 10_000.0),
        "rope_scaling": _gguf_rope_scaling(get),
        "max_position_embeddings": get("context_length"),
        "sliding_window": get("attention.sliding_window"),
        "vocab_size": get("vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ())),
    }


def _gguf_rope_scaling(get: Any) -> dict[str, Any] | None:
    kind = get("rope.scaling.type", "none")
    if kind == "none":
        return None
    return {
        "rope_type": kind,
        "factor": get("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
    }


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
