"""A model of random weights from a config alone: for benchmarks and tests, where only the shape matters."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from milepost.models.loader.meta import build_on_meta
from milepost.models.loader.source import ModelSource
from milepost.models.registry import model_file


class RandomTensors:
    """Weights drawn from a seeded normal distribution of the config's `initializer_range`; norms around 1."""

    def __init__(self, config: Mapping[str, Any], seed: int = 0) -> None:
        self._scale, self._seed = float(config.get("initializer_range", 0.02)), seed
        model = build_on_meta(config, sys.maxsize)
        tied = model_file(str(config["model_type"])).TIED if config.get("tie_word_embeddings") else {}
        self._shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name not in tied}

    def names(self) -> list[str]:
        return list(self._shapes)

    def stored_as(self, name: str) -> str:
        return "F32"

    def num_bytes(self, dtype: torch.dtype) -> int:
        return sum(torch.Size(shape).numel() for shape in self._shapes.values()) * dtype.itemsize

    def read(self, names: Collection[str], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(self._seed)
        for name, shape in self._shapes.items():
            if name in names:
                mean = 1.0 if name.endswith("norm.weight") else 0.0
                yield name, torch.randn(shape, generator=generator) * self._scale + mean


def random_source(config: Mapping[str, Any], name: str = "random", seed: int = 0) -> ModelSource:
    """An opened model with the shape of `config` (a config.json's content), no tokenizer and no end token."""
    return ModelSource(
        path=Path(name),
        format="random",
        config=dict(config),
        generation_config={},
        tensors=RandomTensors(config, seed),
        tokenizer_problem="random weights have none",
    )
