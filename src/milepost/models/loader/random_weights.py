"""A model of random weights from a config alone: for benchmarks and tests, where only the shape matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from milepost.models.loader.source import ModelSource
from milepost.models.registry import model_file
from milepost.ops import Target, bind


class RandomTensors:
    """Weights drawn from a seeded normal distribution; norms around 1. Generated one at a time, as bf16 or fp32."""

    def __init__(self, config: Mapping[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        self._scale = float(config.get("initializer_range", 0.02))
        self._seed, self._dtype = seed, dtype
        module = model_file(str(config["model_type"]))
        ops, _ = bind(Target(torch.device("cpu"), dtype))
        with torch.device("meta"):
            shapes = {name: tuple(p.shape) for name, p in module.build(config, ops).named_parameters()}
        tied = module.TIED if config.get("tie_word_embeddings") else {}
        self._shapes = {name: shape for name, shape in shapes.items() if name not in tied}

    def names(self) -> list[str]:
        return list(self._shapes)

    def num_bytes(self, dtype: torch.dtype) -> int:
        return sum(torch.Size(shape).numel() for shape in self._shapes.values()) * dtype.itemsize

    def read(self) -> Iterator[tuple[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(self._seed)
        for name, shape in self._shapes.items():
            mean = 1.0 if name.endswith("norm.weight") else 0.0
            yield name, (torch.randn(shape, generator=generator) * self._scale + mean).to(self._dtype)


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
