"""What the engine and the loader ask of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpecs

Config = Mapping[str, Any]
"""A model's `config.json`, as read; each model file reads the keys that it knows, old spellings and new."""


class Model(nn.Module):
    """A causal language model whose parameters carry their checkpoint's names (or its model file's `checkpoint_names`
    says how to find them).

    `max_model_len` is the trained context, `vocab_size` the width of the logits, `dtype` what rows are kept in between
    layers (the loader sets it).
    """

    max_model_len: int
    vocab_size: int
    dtype: torch.dtype = torch.float32

    def forward(self, token_ids: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """token_ids int64 [rows] as `batch` packs them; updates `batch`'s states; returns hidden rows [rows, size]."""
        raise NotImplementedError

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden rows [n, size] (those whose logits someone reads) to fp32 logits [n, vocab_size]."""
        raise NotImplementedError

    def layer_specs(self) -> LayerSpecs:
        """What each layer declares to remember, in layer order."""
        raise NotImplementedError


class ModelFile(Protocol):
    """A module in `models/`: the class, and how a GGUF file of the same architecture maps onto it.

    `build` makes the model with uninitialised weights. `TIED` names parameters that share another's tensor when
    `tie_word_embeddings` holds: {"lm_head.weight": "model.embed_tokens.weight"}. `GGUF_ARCHITECTURES` are the values of
    `general.architecture` that this file serves; `gguf_config` turns their metadata into a `config.json`, and
    `gguf_tensor` turns one stored tensor (under its checkpoint name) into the checkpoint's form.

    More only where a family needs it. `checkpoint_names(name, config)`: what checkpoints call a parameter other than by
    its own name; each spelling is the stored names of equal parts, one after the other in the parameter's memory.
    `gguf_names(name, config)`: the stored names of one parameter, where the table of the `gguf` package does not lead
    to it (empty: it does); several are the parts of one tensor, one below the other in its rows (the second last
    dimension). `GGUF_FLAGS`: keys of the config that are true if the file holds a tensor, and how that tensor's name
    ends: {"use_conv_bias": "ssm_conv1d.bias"}.
    """

    GGUF_ARCHITECTURES: tuple[str, ...]
    TIED: Mapping[str, str]

    def build(self, config: Config, ops: Ops) -> Model: ...
    def gguf_config(self, metadata: Mapping[str, Any]) -> dict[str, Any]: ...
    def gguf_tensor(self, name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor: ...


def require(config: Config, key: str) -> Any:
    """The value of `key`, or an error that names what the config lacks."""
    if config.get(key) is None:
        raise ModelError(f"the model's config has no {key!r}", "the model's config.json is incomplete; fetch it again")
    return config[key]
