"""A tiny llama in fp32 with random weights, and engines around it."""

from __future__ import annotations

import pytest
import torch
from tiny_engine import TINY, MakeEngine

from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.models.loader.load import LoadedModel, load_model
from milepost.models.loader.random_weights import random_source
from milepost.specs import kv_block_bytes


@pytest.fixture(scope="session")
def tiny() -> LoadedModel:
    return load_model(random_source(TINY), torch.float32)


@pytest.fixture(scope="session")
def make_engine(tiny: LoadedModel) -> MakeEngine:
    """An engine with `num_blocks` KV blocks on a clock that only counts."""

    def make(num_blocks: int = 200, **settings: object) -> Engine:
        kv_bytes = num_blocks * kv_block_bytes(tiny.model.layer_specs(), 4)
        ticks = iter(range(10**9))
        config = EngineConfig(kv_cache_memory_bytes=kv_bytes, **settings)  # type: ignore[arg-type]
        return assemble(tiny, config, clock=lambda: float(next(ticks)))

    return make
