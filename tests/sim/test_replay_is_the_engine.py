"""What a replay says is what the engine does: with a real model that serves one request after another, and with the
engine's scheduler that serves eight at once. Prompts share beginnings, and memory is short."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from families import FAMILIES, model_of
from simulated_engine import Arrival, Case, SimulatedEngine
from simulated_model import SimulatedModel

from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.inputs import read_prompt
from milepost.engine.rehearsal import rehearse
from milepost.engine.scheduler import Piece
from milepost.models.loader.load import LoadedModel
from milepost.models.loader.random_weights import random_source
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams
from milepost.sim.replay import Setting, replay
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace, TraceRequest
from milepost.specs import BLOCK_SIZE, CHUNK

FAMILY = "granitemoehybrid"
MAX_BLOCKS = 7
STEP_TOKENS = 2 * CHUNK
NUM_SEQS = 8
ONE_TOKEN = SamplingParams(max_tokens=1)
WORDS = np.random.default_rng(7).integers(0, 97, (1000, CHUNK))
"""The tokens of each block that there is."""


def prompts(num: int, seed: int) -> list[list[int]]:
    """Ids of blocks: conversations in turns, and questions about the same few texts."""
    rng, fresh = random.Random(seed), iter(range(1000))
    made: list[list[int]] = []
    while len(made) < num:
        start = rng.choice(made)[: rng.randint(1, MAX_BLOCKS)] if made and rng.random() < 0.8 else []
        new = [next(fresh) for _ in range(rng.randint(1, 3))]
        made.append([*start, *new][:MAX_BLOCKS])
    return made


def trace_of(prompts: list[list[int]]) -> Trace:
    def read() -> Iterator[TraceRequest]:
        for number, prompt in enumerate(prompts):
            chained = [hash(tuple(prompt[: end + 1])) & (2**63 - 1) for end in range(len(prompt))]
            yield TraceRequest(float(number), "", len(prompt) * CHUNK, 1, np.array(chained, np.int64))

    return Trace("synthetic", CHUNK, read)


def engine_of(cache_bytes: int, **settings: object) -> Engine:
    source = random_source(FAMILIES[FAMILY].to_dict(), "tiny")
    loaded = LoadedModel(model_of(FAMILY), source, [], torch.float32, 0)
    config = EngineConfig(kv_cache_memory_bytes=cache_bytes, max_num_batched_tokens=STEP_TOKENS, **settings)  # type: ignore[arg-type]
    return assemble(loaded, config)


@pytest.mark.parametrize("interval", [None, 0, 128])
def test_one_after_another_with_a_real_model(interval: int | None) -> None:
    asked = prompts(60, seed=1)
    engine = engine_of(1_000_000, max_num_seqs=1, prefix_cache_retention_interval=interval)
    resumed = []
    for number, prompt in enumerate(asked):
        tokens = WORDS[prompt].ravel().tolist()
        engine.add(str(number), read_prompt(tokens, engine.model), ONE_TOKEN)
        while engine.has_work:
            resumed += [output.num_cached_tokens for output in engine.step() if output.finished]
    cache = engine.scheduler.cache
    memory = cache.memory
    sizes = Sizes(memory.block_bytes // BLOCK_SIZE, memory.checkpoint_bytes)
    setting = Setting(interval=interval)
    found = replay(trace_of(asked), setting, sizes, memory.limit_bytes, step_tokens=STEP_TOKENS)
    assert found.hits.tolist() == resumed
    assert 0.1 < found.hit_rate < 0.95 * found.ceiling
    assert found.evictions["evicted"] == cache.stats.evicted_blocks * BLOCK_SIZE > 0
    assert found.evictions["thinned"] == cache.stats.checkpoints_thinned


class InOrder(SimulatedModel):
    def run(self, pieces: Iterable[Piece], bad_rows: dict[Sequence, int]) -> dict[Sequence, int]:
        pieces = list(pieces)
        rows = super().run(pieces, bad_rows)
        return {piece.seq: rows[piece.seq] for piece in pieces if piece.seq in rows}


class Oracle(SimulatedEngine):
    """On a clock that only counts; nobody pins, resets or hangs up, and who ends in a step does so in its order."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        cache = self.cache
        self.model = InOrder(cache.num_blocks, cache.num_slots, cache.num_windows, case.rng, case.cuttable)

    def _operate(self) -> None:
        pass


def oracle_of(asked: list[list[int]], seed: int, interval: int | None) -> Oracle:
    case = Case(seed)
    case.arrivals = [
        Arrival(str(number), 0, WORDS[prompt].ravel().tolist(), ONE_TOKEN, 0, "", None, False, None, (), (), None)
        for number, prompt in enumerate(asked)
    ]
    case.block_bytes, case.checkpoint_bytes, case.limit_bytes = 16, 80, 12_000
    case.interval, case.budget, case.max_num_seqs, case.policy = interval, STEP_TOKENS, NUM_SEQS, "fcfs"
    case.enabled, case.vocab_size, case.num_ends, case.failing_step = True, 97, 0, 0
    return Oracle(case)


@pytest.mark.parametrize("interval", [None, 0, 128])
@pytest.mark.parametrize("seed", range(4))
def test_eight_at_once_with_the_scheduler(seed: int, interval: int | None) -> None:
    """The oracle's model holds that whatever is resumed is what was computed; the replay has no model at all. All
    requests stand in line from the start, so who runs beside whom is the scheduler's choice in both."""
    asked = prompts(120, seed)
    oracle = oracle_of(asked, seed, interval)
    oracle.run()
    memory, stats = oracle.cache.memory, oracle.cache.stats
    serve = partial(rehearse, max_num_seqs=NUM_SEQS, max_num_batched_tokens=STEP_TOKENS, num_clients=len(asked))
    found = replay(
        trace_of(asked),
        Setting(interval=interval),
        Sizes(memory.block_bytes // BLOCK_SIZE, memory.checkpoint_bytes),
        memory.limit_bytes,
        serve=serve,
        num_seqs=NUM_SEQS,
    )
    assert found.hits.tolist() == [seq.num_cached_tokens for seq in oracle.sequences]
    assert 0.1 < found.hit_rate < 0.95 * found.ceiling
    assert found.evictions["evicted"] == stats.evicted_blocks * BLOCK_SIZE > 0
    assert found.evictions["thinned"] == stats.checkpoints_thinned
