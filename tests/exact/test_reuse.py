"""Reuse changes nothing: answers and their log probabilities, to the bit, of requests that resume each other's prefixes
under random schedules, and of the same requests alone in an engine that reuses nothing."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from unittest import mock

import pytest
import torch
from exact_models import exact_model
from families import FAMILIES

from milepost.config import EngineConfig
from milepost.engine import memory
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.inputs import read_prompt
from milepost.models.loader.load import LoadedModel
from milepost.models.loader.random_weights import random_source
from milepost.ops.cpu import library
from milepost.outputs import CompletionOutput, RequestOutput
from milepost.sampling_params import SamplingParams
from milepost.specs import BLOCK_SIZE, checkpoint_bytes, kv_block_bytes, window_bytes

NUM_SEQS, VOCAB_SIZE = 5, 199
FLOORS_OF_ATTENTION = {"resumed from kv": 4700}
FLOORS = {
    "aborted": 450,
    "preempted": 350,
    "evicted": 350,
    "resumed": 2400,
    "in an answer": 330,
    "resumed after eviction": 8,
    "resumed after an abort": 330,
}
FLOORS_WITH_STATES = {
    "resumed from grid": 250,
    "resumed from junction": 65,
    "resumed from end": 2100,
    "resumed from answer": 16,
    "to the token": 800,
}
"""What 2,000 schedules of a family must at least have seen: hits by kind of state (answer: made while decoding) and by
what happened before. About half of what the poorest family sees."""
DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]

pytestmark = pytest.mark.skipif(
    not library.available(), reason="without kernels the ops run in torch, whose rows are not exact"
)


class Schedule:
    """Requests of one seed: prompts that share random prefixes with earlier prompts and answers, some aborted; memory,
    budget and retention are random too."""

    def __init__(self, family: str, dtype: torch.dtype, seed: int, num_requests: int = 30, longest: int = 40) -> None:
        self.family, self.dtype, self.rng = family, dtype, random.Random(f"{family} {dtype} {seed}")
        self.texts: list[list[int]] = []
        self.aborted: list[list[int]] = []
        self.dense = True
        self.num_requests, self.answer_lengths = num_requests, (1, longest // 3, longest)
        self.events: Counter[str] = Counter()

    def run(self) -> None:
        rng = self.rng
        scarce = rng.random() < 0.6
        num_blocks = rng.choice((20, 30, 45)) if scarce else 400
        interval = rng.choice((None, None, 0, 128))
        self.dense = interval is None
        engine = self.engine(
            num_blocks,
            enable_prefix_caching=True,
            max_num_batched_tokens=rng.choices((1, 7, 63, 64, 65, 100, 1000), (1, 3, 6, 6, 6, 6, 6))[0],
            prefix_cache_retention_interval=interval,
        )
        withheld = self._withhold(engine, num_blocks)
        alone = engine_alone(self.family, self.dtype)
        asked: dict[str, tuple[list[int], SamplingParams]] = {}
        for i in range(self.num_requests):
            asked[str(i)] = (self._prompt(), self._params(i))
            engine.add(str(i), read_prompt(asked[str(i)][0], engine.model), asked[str(i)][1])
            self.texts.append(asked[str(i)][0])
            for _ in range(rng.choice((0, 1, 3, 30))):
                self._step(engine, asked, alone)
            if rng.random() < 0.15:
                self._abort(engine, str(rng.randrange(i + 1)))
        while engine.has_work:
            self._step(engine, asked, alone)
        engine.scheduler.cache.memory.free(*withheld)
        engine.scheduler.cache.check([])
        stats = engine.scheduler.cache.stats
        self.events += Counter({f"resumed from {kind}": count for kind, count in stats.resumed_from.items()})
        self.events["evicted"] += stats.evicted_blocks + stats.checkpoints_stranded + stats.checkpoints_thinned > 0

    def _step(self, engine: Engine, asked: dict[str, tuple[list[int], SamplingParams]], alone: Engine) -> None:
        running = engine.scheduler.running
        if running and self.rng.random() < 0.01:
            engine.scheduler._preempt(self.rng.choice(running))
        for output in engine.step():
            if not output.finished:
                continue
            prompt, params = asked[output.request_id]
            alone.add(output.request_id, read_prompt(prompt, alone.model), params)
            expected: RequestOutput | None = None
            while alone.has_work:
                expected = next(iter(alone.step()), expected)
            assert expected is not None
            assert bits(output) == bits(expected), (self.family, self.dtype, output.request_id)
            self.texts.append(prompt + list(output.outputs[0].token_ids))
            self._count_hit(output)
            self.events["preempted"] += output.metrics is not None and output.metrics.num_preemptions > 0

    def _abort(self, engine: Engine, request_id: str) -> None:
        output = engine.abort(request_id)
        if output is not None:
            self.events["aborted"] += 1
            self.aborted.append(output.prompt_token_ids + list(output.outputs[0].token_ids))

    def _count_hit(self, output: RequestOutput) -> None:
        """By what happened before. About half of what the poorest family sees."""
        reused = output.prompt_token_ids[: output.num_cached_tokens]
        if not reused or output.cache is None:
            return
        self.events["resumed"] += 1
        self.events["in an answer"] += self._in_answer(output)
        self.events["to the token"] += output.num_cached_tokens % BLOCK_SIZE > 0
        given_up = ("evicted", "state thinned") if self.dense else ("evicted",)
        self.events["resumed after eviction"] += output.cache.reason in given_up
        self.events["resumed after an abort"] += any(text[: len(reused)] == reused for text in self.aborted)

    def _in_answer(self, output: RequestOutput) -> bool:
        """Whether what it resumed reaches into what another request was answered."""
        reused = output.prompt_token_ids[: output.num_cached_tokens]
        return any(text[: len(reused)] == reused and len(text) - 12 < len(reused) for text in self.texts[:-1])

    def _prompt(self) -> list[int]:
        """Up to 200 tokens: a part of something known, mostly, and something new."""
        rng = self.rng
        known = rng.choice(self.texts) if self.texts and rng.random() < 0.8 else []
        shared = known[: rng.choice((len(known), rng.randint(0, len(known))))][:190]
        return shared + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 200 - len(shared)))]

    def _params(self, seed: int) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.rng.choice(self.answer_lengths),
            ignore_eos=True,
            seed=seed,
            logprobs=2,
            temperature=self.rng.choice((0.0, 1.0)),
        )

    def engine(self, num_blocks: int, **settings: object) -> Engine:
        model = exact_model(self.family, self.dtype, library.available()[0])
        specs, size = model.layer_specs(), self.dtype.itemsize
        fixed = checkpoint_bytes(specs, size) + 2 * NUM_SEQS * window_bytes(specs, size)
        config = EngineConfig(
            kv_cache_memory_bytes=max(self._bytes(num_blocks), fixed) + fixed,
            max_num_seqs=NUM_SEQS,
            max_model_len=256,
            **settings,  # type: ignore[arg-type]
        )
        loaded = LoadedModel(model, random_source(FAMILIES[self.family].to_dict(), "tiny"), [], self.dtype, 0)
        with mock.patch.object(memory, "ENDS_SHARE", self.rng.choice((0.0, 1.0, 1.0))):
            engine = assemble(loaded, config)
        for layer in engine.runner.pools.kv:
            for tensor in () if layer is None else (layer.k, layer.v):
                tensor.fill_(float("nan"))
        for state in engine.runner.pools.recurrent:
            for tensor in () if state is None else state.checkpoint.values():
                tensor[1:] = float("nan")
            for tensor in () if state is None else state.window.values():
                tensor.fill_(float("nan"))
        return engine

    def _bytes(self, num_blocks: int) -> int:
        """Of so much KV, or of the states of as much text where there is no KV, and of those that sequences need; in a
        short schedule, of fewer, or memory would never be short."""
        specs = exact_model(self.family, self.dtype, library.available()[0]).layer_specs()
        block, state = kv_block_bytes(specs, self.dtype.itemsize), checkpoint_bytes(specs, self.dtype.itemsize)
        spare = 2 * NUM_SEQS if self.num_requests > NUM_SEQS * 2 else 2
        return max(num_blocks * block, num_blocks // 8 * state) + spare * state

    def _withhold(self, engine: Engine, num_blocks: int) -> tuple[list[int], list[int]]:
        """What an engine has beyond that: it asks for more where windows are large."""
        cache = engine.scheduler.cache.memory
        spare = cache.limit_bytes - self._bytes(num_blocks)
        by_blocks = cache.block_bytes > 0
        num_spare = max(0, spare // (cache.block_bytes or cache.checkpoint_bytes))
        taken = cache.take(num_spare * by_blocks, num_spare * (not by_blocks))
        assert taken is not None
        return taken


@cache
def engine_alone(family: str, dtype: torch.dtype) -> Engine:
    """One that reuses nothing, for one request after another."""
    settings = {"enable_prefix_caching": False, "max_num_batched_tokens": 4096}
    return Schedule(family, dtype, 0).engine(400, **settings)


def bits(output: RequestOutput) -> list[object]:
    """Tokens and log probabilities as they are: the latter are equal only if the logits are."""
    return [(sample.index, list(sample.token_ids), _told(sample)) for sample in output.outputs]


def _told(sample: CompletionOutput) -> list[list[tuple[int, float]]]:
    """Of an aborted request fewer tokens are there than asked for, and they are compared by nobody."""
    return [[(token, entry.logprob) for token, entry in place.items()] for place in sample.logprobs or ()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_schedule(family: str, dtype: torch.dtype) -> None:
    schedule = Schedule(family, dtype, seed=0)
    schedule.run()
    assert schedule.events["resumed"] >= 1, schedule.events


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_thousands_of_random_schedules(family: str, dtype: torch.dtype) -> None:
    events: Counter[str] = Counter()
    for seed in range(1, 2001):
        schedule = Schedule(family, dtype, seed, num_requests=8, longest=12)
        schedule.run()
        events += schedule.events
    has_states = checkpoint_bytes(exact_model(family, dtype, library.available()[0]).layer_specs(), dtype.itemsize) > 0
    floors = FLOORS | (FLOORS_WITH_STATES if has_states else FLOORS_OF_ATTENTION)
    print(f"{family}, {dtype}:", *(f"{event}: {events[event]}" for event in floors), sep="\n    ")
    few = {event: (events[event], floor) for event, floor in floors.items() if events[event] < floor}
    assert not few, f"the schedules have seen too few of: {few}"
