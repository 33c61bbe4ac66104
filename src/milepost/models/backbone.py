"""What the models of Mamba layers alone share: one norm and one mixer in each layer, names below `backbone.`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from milepost.layers.linear import Embedding, Linear
from milepost.layers.norm import RMSNorm
from milepost.models.base import Config, Model
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, LayerSpecs

TIED = {"lm_head.weight": "backbone.embeddings.weight"}
MAX_MODEL_LEN = 1 << 20
"""Such a model has no longest context, and its config names none; as much as GGUF files of these models say."""


def checkpoint_names(name: str, config: Config) -> list[tuple[str, ...]]:
    """The first checkpoints spell the embedding as their authors' own code did."""
    return [("backbone.embedding.weight",)] if name == "backbone.embeddings.weight" else []


class Mixer(Protocol):
    def __call__(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor: ...
    def state_spec(self) -> tuple[LayerSpec, ...]: ...


class Block(nn.Module):
    """The mixer sees the normed rows, and its result is added to the rows."""

    def __init__(self, norm: RMSNorm, mixer: Mixer) -> None:
        super().__init__()
        self.norm, self.mixer = norm, mixer

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [rows, size], in fp32 or the weights' dtype; returns the same."""
        return x + self.mixer(self.norm(x.to(self.norm.weight.dtype)), batch)


class Backbone(nn.Module):
    """The parameters that a checkpoint keeps below `backbone.`."""

    def __init__(self, embeddings: Embedding, layers: Sequence[Block], norm_f: RMSNorm) -> None:
        super().__init__()
        self.embeddings = embeddings
        self.layers = nn.ModuleList(layers)
        self.norm_f = norm_f
        self.specs = [layer.mixer.state_spec() for layer in layers]


class BackboneLM(Model):
    """A backbone and its head. `wide_residual`: the rows that all layers add to are kept in fp32."""

    def __init__(self, backbone: Backbone, wide_residual: bool, ops: Ops) -> None:
        super().__init__()
        self.vocab_size, size = backbone.embeddings.weight.shape
        self.max_model_len = MAX_MODEL_LEN
        self.wide_residual = wide_residual
        self.backbone = backbone
        self.lm_head = Linear(size, self.vocab_size, ops)

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        x = self.backbone.embeddings(token_ids)
        dtype = x.dtype
        x = x.float() if self.wide_residual else x
        for layer in self.backbone.layers:
            x = layer(x, batch)
        return self.backbone.norm_f(x.to(dtype))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head.ops.wide(self.lm_head(hidden))

    def layer_specs(self) -> LayerSpecs:
        return self.backbone.specs
