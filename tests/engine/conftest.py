"""A tiny llama in fp32 with random weights, and engines around it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.inputs import read_prompt
from milepost.models.loader.load import LoadedModel, load_model
from milepost.models.loader.random_weights import random_source
from milepost.outputs import RequestOutput
from milepost.sampling_params import SamplingParams
from milepost.specs import kv_block_bytes

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}

MakeEngine = Callable[..., Engine]


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


def random_prompts(num: int, longest: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(TINY["vocab_size"]) for _ in range(rng.randint(1, longest))] for _ in range(num)]


def add(engine: Engine, request_id: str, prompt: list[int], params: SamplingParams, **options: object) -> None:
    engine.add(request_id, read_prompt(prompt, engine.model), params, **options)  # type: ignore[arg-type]


def drain(engine: Engine) -> dict[str, RequestOutput]:
    """Steps until all is done; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    while engine.has_work:
        last.update((output.request_id, output) for output in engine.step())
    return last


def tokens(output: RequestOutput, index: int = 0) -> list[int]:
    return list(output.outputs[index].token_ids)
