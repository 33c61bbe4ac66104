"""What each policy gives up first, and that the books balance whatever it does."""

from __future__ import annotations

import random
from math import inf

import pytest
from trees import compute, sequence, serve

from milepost.cache.memory import Memory
from milepost.cache.policies import marconi
from milepost.cache.policies.policy import Build, Facts, Policy, StatesAhead
from milepost.cache.policies.registry import DEFAULT, POLICIES
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.cache.tree import Node
from milepost.config import EngineConfig
from milepost.request import Sequence

BUILDS = {**POLICIES, "marconi, old only": marconi.with_alpha(0.0)}


def cache_of(
    build: Build, limit: int, *, block_bytes: int = 1, state_bytes: int = 10, dense: bool = False
) -> PrefixCache:
    retention = Retention(None if dense else 0)
    return PrefixCache(Memory(limit, block_bytes, state_bytes), num_seqs=10, retention=retention, policy=build)


def text(number: int, length: int) -> list[int]:
    return list(range(1000 * number, 1000 * number + length))


def known(cache: PrefixCache, number: int, length: int) -> int:
    return cache.resident(text(number, length))


@pytest.mark.parametrize("sizes", [(1, 10), (16, 7), (0, 10), (1, 0)])
@pytest.mark.parametrize("name", BUILDS)
def test_books_balance_under_pressure(name: str, sizes: tuple[int, int]) -> None:
    rng = random.Random(f"{name} {sizes}")
    limit = 120 * sizes[0] + 8 * sizes[1]
    cache = cache_of(BUILDS[name], limit, block_bytes=sizes[0], state_bytes=sizes[1], dense=rng.random() < 0.5)
    running: list[Sequence] = []
    for _ in range(150):
        if len(running) < 6 and rng.random() < 0.5:
            seq = sequence([*text(rng.randrange(2), rng.randrange(150)), *(rng.randrange(9) for _ in range(90))])
            cache.admit(seq)
            running.append(seq)
        for seq in list(running):
            end = min(len(seq.tokens), seq.num_computed + rng.randint(1, 100))
            if end > seq.num_computed and rng.random() < 0.5 and cache.grow(seq, end):
                compute(cache, seq, end)
            elif rng.random() < 0.3:
                cache.release(seq)
                running.remove(seq)
        cache.check(running)
    assert cache.stats.hits > 0
    assert cache.stats.evicted_blocks + cache.stats.checkpoints_thinned > 0


def test_lru_gives_up_what_was_used_least_recently_whatever_its_size() -> None:
    cache = cache_of(POLICIES["lru"], 115)
    for number, length in ((1, 641), (2, 129), (3, 321)):
        serve(cache, text(number, length))
    serve(cache, text(1, 641))
    serve(cache, text(4, 321))
    assert [known(cache, number, 640) for number in (1, 2, 3, 4)] == [640, 0, 320, 320]


def test_greedy_dual_size_gives_up_what_is_cheap_for_its_bytes_until_the_dear_is_old() -> None:
    cache = cache_of(POLICIES["greedy-dual-size"], 100, state_bytes=20)
    serve(cache, text(1, 641))  # 640 tokens for 60 bytes
    serve(cache, text(2, 65))  # 64 for 24
    serve(cache, text(3, 129))
    assert [known(cache, number, 640) for number in (1, 2, 3)] == [640, 0, 128]
    for number in range(4, 40):
        serve(cache, text(number, 129))
    assert known(cache, 1, 640) < 640


def test_greedy_dual_size_counts_uses() -> None:
    cache = cache_of(POLICIES["greedy-dual-size"], 70, state_bytes=20)
    for _ in range(4):
        serve(cache, text(1, 65))
    serve(cache, text(2, 129))
    serve(cache, text(3, 129))
    assert [known(cache, number, 128) for number in (1, 2, 3)] == [64, 0, 128]


@pytest.mark.parametrize(("alpha", "kept"), [(0.0, [0, 64, 64]), (2.0, [640, 0, 64])])
def test_marconi_weighs_age_against_what_is_saved_for_each_byte(alpha: float, kept: list[int]) -> None:
    cache = cache_of(marconi.with_alpha(alpha), 100, state_bytes=20)
    for number, length in ((1, 641), (2, 65), (3, 65)):
        serve(cache, text(number, length))
    assert [known(cache, number, 640) for number in (1, 2, 3)] == kept


def test_marconi_keeps_the_state_that_two_texts_continue() -> None:
    cache = cache_of(marconi.with_alpha(1.0), 110, state_bytes=20)
    for tail in (7, 8, 9):
        serve(cache, [*text(1, 64), *[tail] * 129])
    assert cache._store.take(0, 2) is not None
    assert sorted(point.depth for node in cache.tree for point in node.checkpoints) == [64, 192]


class Learner:
    """Keeps no state but those that must be, gives up anything, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.ahead: list[StatesAhead] = []

    def build(self, facts: Facts) -> Policy:
        return Policy(self, POLICIES["lru"](facts).eviction, self)

    def plan(self, ahead: StatesAhead, take: object) -> None:
        self.ahead.append(ahead)

    def came(self, seq: Sequence, node: Node | None, matched: int, resumed: int) -> None:
        self.told.append(("came", node and node.end, matched, resumed))

    def left(self, seq: Sequence, node: Node, depth: int) -> None:
        self.told.append(("left", node.end, depth))


def test_a_policy_is_told_who_comes_and_leaves_and_which_states_could_be_kept() -> None:
    learner = Learner()
    cache = cache_of(learner.build, 1000, dense=True)
    serve(cache, text(1, 200))
    serve(cache, [*text(1, 150), *text(2, 50)])
    assert learner.told == [("came", None, 0, 0), ("left", 192, 192), ("came", 192, 144, 0), ("left", 192, 192)]
    first, second = learner.ahead
    assert (dict(first.kinds), first.planned, first.base) == ({64: "grid", 128: "grid"}, (192,), 0)
    assert dict(second.kinds) == {64: "grid", 128: "junction"}
    turned_back = sequence(text(3, 100))
    cache.admit(turned_back)
    cache.release(turned_back)
    assert len(learner.told) == 4


def test_the_last_thing_goes_even_if_it_is_below_no_bound() -> None:
    for build in BUILDS.values():
        cache = cache_of(build, 100)
        serve(cache, text(1, 320))
        eviction = cache._store.policy.eviction
        assert eviction.next(-inf) is None
        assert eviction.next() is not None


def test_an_engine_that_is_told_nothing_has_the_default() -> None:
    assert EngineConfig.prefix_cache_policy == DEFAULT
