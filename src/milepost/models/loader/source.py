"""What a model on disk is, whichever its format: a config, a tokenizer, and tensors under their checkpoint's names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import tokenizers
import torch


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer as stored with a model.

    `backend` adds the special tokens (BOS ...) that the model expects when asked to. `special_tokens` are the named
    ones that a chat template may use: {"bos_token": "<s>", "eos_token": "</s>"}. `chat_template` is jinja text, or
    several by name ("default", "tool_use").
    """

    backend: tokenizers.Tokenizer
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | Mapping[str, str] | None = None


class TensorFile(Protocol):
    """The tensors of a model, read one at a time so that memory holds one copy."""

    def names(self) -> list[str]:
        """Checkpoint names of all tensors."""

    def stored_as(self, name: str) -> str:
        """The format that tensor `name` is stored in, as its file spells it: "BF16", "Q4_1"."""

    def num_bytes(self, dtype: torch.dtype) -> int:
        """Bytes that all tensors take once loaded as `dtype`."""

    def read(self, names: Collection[str], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """Those of `names` that there are, each once and in the order in which they lie on disk, as stored; what is
        stored in quantised blocks comes dequantised to `dtype`."""


@dataclass(frozen=True)
class ModelSource:
    """An opened model. Nothing large has been read yet.

    `config` is the model's config.json (for GGUF: made from its metadata); `generation_config` the sampling defaults
    and end tokens, empty if there are none; `tokenizer` is None when the model has none, and `tokenizer_problem` then
    says why.
    """

    path: Path
    format: str
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: TensorFile
    tokenizer: TokenizerSource | None = None
    tokenizer_problem: str = ""

    @property
    def model_type(self) -> str:
        return str(self.config.get("model_type"))

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """End tokens: `generation_config`'s, else the config's."""
        found = self.generation_config.get("eos_token_id")
        found = self.config.get("eos_token_id") if found is None else found
        return () if found is None else (found,) if isinstance(found, int) else tuple(found)
