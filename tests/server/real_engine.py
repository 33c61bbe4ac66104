"""A tiny hybrid model with random weights, behind the real engine; it has no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from families import FAMILIES, model_of

from milepost.config import EngineConfig
from milepost.engine.async_llm import AsyncLLM
from milepost.engine.build import assemble
from milepost.models.loader.load import LoadedModel
from milepost.models.loader.random_weights import random_source

FAMILY = "granitemoehybrid"


@contextmanager
def running_engine(cache_bytes: int = 64 * 2**20, **settings: object) -> Iterator[AsyncLLM]:
    source = random_source(FAMILIES[FAMILY].to_dict(), "tiny")
    loaded = LoadedModel(model_of(FAMILY), source, [], torch.float32, 0)
    config = EngineConfig(kv_cache_memory_bytes=cache_bytes, max_num_seqs=4, **settings)  # type: ignore[arg-type]
    engine = AsyncLLM(assemble(loaded, config))
    try:
        yield engine
    finally:
        engine.shutdown()
