"""Every family in the engine: batched, cut, preempted and resumed, in memory that starts as NaN."""

from __future__ import annotations

import random

import pytest
import torch
from families import FAMILIES, model_of
from tiny_engine import add, drain, tokens

from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.plain import generate
from milepost.models.loader.load import LoadedModel
from milepost.models.loader.random_weights import random_source
from milepost.sampling_params import SamplingParams
from milepost.specs import CHUNK, checkpoint_bytes, kv_block_bytes, window_bytes

NUM_SEQS = 5


def poisoned_engine(family: str, num_blocks: int, **settings: object) -> Engine:
    """All of its memory holds NaN but the state of the empty prefix."""
    model, config = model_of(family), FAMILIES[family].to_dict()
    specs = model.layer_specs()
    states = 2 * NUM_SEQS * checkpoint_bytes(specs, 4)
    fixed = NUM_SEQS * window_bytes(specs, 4) + checkpoint_bytes(specs, 4)
    memory = max(num_blocks * kv_block_bytes(specs, 4) + states, fixed) + fixed
    loaded = LoadedModel(model, random_source(config, "tiny"), [], torch.float32, 0)
    engine = assemble(
        loaded,
        EngineConfig(kv_cache_memory_bytes=memory, max_num_seqs=NUM_SEQS, **settings),  # type: ignore[arg-type]
    )
    for layer in engine.runner.pools.kv:
        for tensor in () if layer is None else (layer.k, layer.v):
            tensor.fill_(float("nan"))
    for state in engine.runner.pools.recurrent:
        for tensor in () if state is None else (*state.checkpoint.values(), *state.window.values()):
            tensor[1:] = float("nan")
        for tensor in () if state is None else state.window.values():
            tensor[:1] = float("nan")
    return engine


def test_memory_for_states_is_what_the_layers_declare() -> None:
    for family in FAMILIES:
        engine = poisoned_engine(family, 40)
        specs = model_of(family).layer_specs()
        recurrent = checkpoint_bytes(specs, 4) > 0
        assert engine.scheduler.cache.has_states == recurrent
        assert any(state is not None for state in engine.runner.pools.recurrent) == recurrent
        assert any(layer is not None for layer in engine.runner.pools.kv) == (kv_block_bytes(specs, 4) > 0)


@pytest.mark.parametrize("budget", [17, 64, 400])
@pytest.mark.parametrize("family", FAMILIES)
def test_batched_cut_and_aborted(family: str, budget: int) -> None:
    engine = poisoned_engine(family, 200, max_num_batched_tokens=budget, max_model_len=256)
    rng = random.Random(budget)
    prompts = [[rng.randrange(199) for _ in range(n)] for n in (1, 63, 64, 65, 150, 199, 7, 128)]
    for i, prompt in enumerate(prompts):
        add(engine, str(i), prompt, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.abort("4")
    outputs = drain(engine)
    for i, prompt in enumerate(prompts):
        if i != 4:
            assert tokens(outputs[str(i)]) == list(generate(model_of(family), prompt, 12)), i
    engine.scheduler.cache.check([])


@pytest.mark.parametrize("family", [family for family in FAMILIES if kv_block_bytes(model_of(family).layer_specs(), 4)])
def test_preempted_and_resumed(family: str) -> None:
    engine = poisoned_engine(family, 26, max_num_batched_tokens=100, max_model_len=256)
    cache = engine.scheduler.cache
    specs = model_of(family).layer_specs()
    wanted = 26 * kv_block_bytes(specs, 4) + 3 * checkpoint_bytes(specs, 4)
    spare = (cache.memory.limit_bytes - wanted) // cache.memory.block_bytes  # kept away, so that sequences collide
    held = cache.memory.take(spare, 0) if spare > 0 else ([], [])
    assert held is not None
    rng = random.Random(5)
    prompts = [[rng.randrange(199) for _ in range(rng.randint(20, 90))] for _ in range(6)]
    for i, prompt in enumerate(prompts):
        add(engine, str(i), prompt, SamplingParams(temperature=0.0, max_tokens=90, ignore_eos=True))
    outputs = drain(engine)
    assert sum(output.metrics.num_preemptions for output in outputs.values()) > 0
    for i, prompt in enumerate(prompts):
        assert tokens(outputs[str(i)]) == list(generate(model_of(family), prompt, 90)), i
    cache.memory.free(*held)
    cache.check([])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefix_is_resumed_from_its_second_sighting_on(family: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    engine = poisoned_engine(family, 100, max_num_batched_tokens=50)
    unit = engine.scheduler.cache.unit
    assert ("recurrent states" in caplog.text) == (unit == CHUNK)
    rng = random.Random(3)
    shared = [rng.randrange(199) for _ in range(150)]
    for i in range(3):
        prompt = shared + [rng.randrange(199) for _ in range(20)]
        add(engine, str(i), prompt, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True))
        output = drain(engine)[str(i)]
        known = (150 // unit * unit, 150) if i else (0,)  # to the token where there is room for ends
        assert output.num_cached_tokens in known
        assert tokens(output) == list(generate(model_of(family), prompt, 8))
    engine.scheduler.cache.check([])
