"""What most families share around their layers: the embedding, the layers in a row, the last norm, the head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from milepost.layers.attention import Angles, Attention
from milepost.layers.linear import Embedding, Linear
from milepost.layers.mlp import GatedMLP
from milepost.layers.rope import Rope
from milepost.models.base import Model
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, LayerSpecs


class Layer(nn.Module):
    """One layer of a decoder: rows [rows, size] in, rows out, its states in `batch` updated."""

    def state_spec(self) -> tuple[LayerSpec, ...]:
        """What the layer remembers between steps."""
        raise NotImplementedError

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        raise NotImplementedError


class PreNormLayer(Layer):
    """Attention, then a feed-forward layer: each sees the normed rows, and its result is added to the rows."""

    def __init__(
        self,
        input_layernorm: nn.Module,
        self_attn: Attention,
        post_attention_layernorm: nn.Module,
        mlp: GatedMLP,
        ops: Ops,
    ) -> None:
        super().__init__()
        self.ops = ops
        self.input_layernorm = input_layernorm
        self.self_attn = self_attn
        self.post_attention_layernorm = post_attention_layernorm
        self.mlp = mlp

    def state_spec(self) -> tuple[LayerSpec, ...]:
        return self.self_attn.state_spec()

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        x = self.ops.add(x, self.self_attn(self.input_layernorm(x), angles, batch))
        return self.ops.add(x, self.mlp(self.post_attention_layernorm(x)))


class Decoder(nn.Module):
    """The parameters that a checkpoint keeps below `model.`."""

    def __init__(self, embed_tokens: Embedding, layers: Sequence[Layer], norm: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.specs = [layer.state_spec() for layer in layers]


class CausalLM(Model):
    """A decoder whose layers all turn by the same angles, and its head."""

    def __init__(self, model: Decoder, rope: Rope, max_model_len: int, ops: Ops) -> None:
        super().__init__()
        self.vocab_size, size = model.embed_tokens.weight.shape
        self.max_model_len = max_model_len
        self.rope = rope
        self.model = model
        self.lm_head = Linear(size, self.vocab_size, ops)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        x, angles = self.model.embed_tokens(token_ids), self.rope(batch.positions)
        for layer in self.model.layers:
            x = layer(x, angles, batch)
        return self.model.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head.ops.wide(self.lm_head(hidden))

    def layer_specs(self) -> LayerSpecs:
        return self.model.specs
