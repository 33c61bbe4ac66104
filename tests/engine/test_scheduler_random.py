"""Scheduler and cache together, under random requests, aborts, priorities, salts and shortage of memory."""

from __future__ import annotations

from collections import Counter

import pytest
from simulated_engine import Case, SimulatedEngine, SimulationError

from milepost.cache.block_pool import IntegrityError
from milepost.cache.index import Entry
from milepost.cache.keys import digest
from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.scheduler import Scheduler
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE

EVENTS = (
    "preempted",
    "aborted",
    "aborted during a step",
    "refused",
    "ended by the cache's size",
    "resumed from another's blocks",
    "resumed after preemption",
    "evicted",
)


def colliding_digest(data: bytes) -> bytes:
    """Three keys in the whole world: most blocks meet a stranger under their own."""
    return bytes([digest(data)[0] % 3])


def run_seeds(seeds: range) -> Counter[str]:
    events: Counter[str] = Counter()
    for seed in seeds:
        events += SimulatedEngine(Case(seed)).run()
    return events


def test_every_schedule_gives_the_tokens_of_the_plain_loop() -> None:
    events = run_seeds(range(200))
    for event in EVENTS:
        assert events[event] >= 20, f"the sample has too few of: {event}"


@pytest.mark.full
def test_every_schedule_gives_the_tokens_of_the_plain_loop_in_thousands() -> None:
    run_seeds(range(200, 5_000))


@pytest.mark.parametrize("seeds", [range(100), pytest.param(range(100, 2_000), marks=pytest.mark.full)])
def test_colliding_keys_cost_hits_and_nothing_else(seeds: range) -> None:
    hits = 0
    for seed in seeds:
        hits += SimulatedEngine(Case(seed), hash_function=colliding_digest).run()["resumed from another's blocks"]
    assert hits > 0


class PublishesBeforeComputing(PrefixCache):
    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        grown = super().grow(seq, num_tokens)
        if grown:
            computed, seq.num_computed = seq.num_computed, num_tokens
            self.publish(seq)
            seq.num_computed = computed
        return grown


class PublishesUnfinishedBlock(PrefixCache):
    def publish(self, seq: Sequence) -> None:
        computed = seq.num_computed
        seq.num_computed = min(-(-computed // BLOCK_SIZE), len(seq.tokens) // BLOCK_SIZE) * BLOCK_SIZE
        super().publish(seq)
        seq.num_computed = computed


class KeyWithoutSalt(PrefixCache):
    def _scope(self, seq: Sequence) -> str:
        return ""


class LosesBlock(PrefixCache):
    def release(self, seq: Sequence) -> None:
        seq.block_table[1:2] = []
        super().release(seq)


class ReleasesTwice(PrefixCache):
    def release(self, seq: Sequence) -> None:
        blocks = list(seq.block_table)
        super().release(seq)
        for block in blocks:
            self._pool.release(block)


class HitsWithoutReference(PrefixCache):
    def admit(self, seq: Sequence) -> int:
        resumed = super().admit(seq)
        for block in seq.block_table:
            self._pool.release(block)
        return resumed


class FindsEvictedBlocks(PrefixCache):
    def _evict(self, block: int) -> None:
        self.stats.evicted_blocks += 1


class ResumesWithNothingToCompute(PrefixCache):
    def admit(self, seq: Sequence) -> int:
        seq.tokens.append(1)
        resumed = super().admit(seq)
        seq.tokens.pop()
        return resumed


class ReadsForThoseWhoNeedEveryRow(PrefixCache):
    def reads(self, seq: Sequence) -> bool:
        return True


class SwapsBlocks(PrefixCache):
    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        grown = super().grow(seq, num_tokens)
        if seq.num_computed > BLOCK_SIZE:
            seq.block_table[:2] = reversed(seq.block_table[:2])
        return grown


class KeepsComputedRowsOfPreempted(Scheduler):
    def _preempt(self, seq: Sequence) -> Sequence:
        computed = seq.num_computed
        super()._preempt(seq)
        seq.num_computed = computed
        seq.block_table = [0] * (computed // BLOCK_SIZE)
        return seq


class NeverPreempts(Scheduler):
    def _preempt(self, seq: Sequence) -> Sequence:
        raise SimulationError("a sequence that cannot grow is stuck")


CACHE_FAULTS = [
    PublishesBeforeComputing,
    PublishesUnfinishedBlock,
    KeyWithoutSalt,
    LosesBlock,
    ReleasesTwice,
    HitsWithoutReference,
    FindsEvictedBlocks,
    ResumesWithNothingToCompute,
    ReadsForThoseWhoNeedEveryRow,
    SwapsBlocks,
]


def is_noticed(**planted: object) -> bool:
    for seed in range(100):
        try:
            SimulatedEngine(Case(seed), **planted).run()  # type: ignore[arg-type]
        except (SimulationError, IntegrityError):
            return True
    return False


@pytest.mark.parametrize("fault", CACHE_FAULTS)
def test_simulation_notices_a_fault_in_the_cache(fault: type[PrefixCache]) -> None:
    assert is_noticed(cache_type=fault)


@pytest.mark.parametrize("fault", [KeepsComputedRowsOfPreempted, NeverPreempts])
def test_simulation_notices_a_fault_in_the_scheduler(fault: type[Scheduler]) -> None:
    assert is_noticed(scheduler_type=fault)


def test_simulation_notices_when_tokens_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "fits", lambda self, parent, tokens: True)
    assert is_noticed(hash_function=colliding_digest)


def test_simulation_notices_when_only_tokens_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Entry, "fits", lambda self, parent, tokens: self.tokens == tokens)
    assert is_noticed(hash_function=colliding_digest)
