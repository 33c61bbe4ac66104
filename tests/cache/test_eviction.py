"""The order in which things go, on things that have nothing but a stake."""

from __future__ import annotations

import random
from math import inf

import pytest

from milepost.cache.eviction import TAU, LeastValue, Stake


class Thing:
    def __init__(self, name: str, stake: Stake | None) -> None:
        self.name, self.stake, self.entry = name, stake, 0


def policy_of(*things: Thing) -> LeastValue[Thing]:
    policy = LeastValue[Thing](lambda thing: thing.stake)
    for thing in things:
        policy.offer(thing)
    return policy


def order(policy: LeastValue[Thing]) -> list[str]:
    names = []
    while (thing := policy.next()) is not None:
        names.append(thing.name)
    return names


def test_least_lost_for_each_byte_goes_first() -> None:
    things = [
        Thing("few tokens", Stake(64, 100, 0)),
        Thing("many", Stake(640, 100, 0)),
        Thing("big", Stake(64, 999, 0)),
    ]
    assert order(policy_of(*things)) == ["big", "few tokens", "many"]


def test_age_hits_and_bonus_count() -> None:
    things = [
        Thing("young", Stake(64, 64, TAU * 1.5)),
        Thing("old", Stake(64, 64, 0)),
        Thing("old and hit once", Stake(64, 64, 0, hits=1)),
        Thing("old and twice as far", Stake(128, 64, 0.1)),
        Thing("special", Stake(64, 64, 0, bonus=2)),
    ]
    assert order(policy_of(*things)) == ["old", "old and hit once", "old and twice as far", "young", "special"]


def test_nothing_goes_that_is_worth_as_much_as_the_bound() -> None:
    thing = Thing("a", Stake(64, 64, 0))
    policy = policy_of(thing)
    assert policy.next(below=0.0) is None
    assert policy.next(below=0.1) is thing
    assert policy.next() is None


def test_what_has_risen_is_looked_at_again() -> None:
    a, b = Thing("a", Stake(1, 1, 0)), Thing("b", Stake(2, 1, 0))
    policy = policy_of(a, b)
    a.stake = Stake(4, 1, 0)
    assert order(policy) == ["b", "a"]


def test_what_has_fallen_is_offered_again_and_goes_once() -> None:
    a, b = Thing("a", Stake(1, 1, 0)), Thing("b", Stake(2, 1, 0))
    policy = policy_of(a, b)
    b.stake = Stake(1, 2, 0)
    policy.offer(b)
    assert order(policy) == ["b", "a"]


def test_what_is_in_use_or_gone_does_not_go() -> None:
    a, b, c = (Thing(name, Stake(1, 1, 0)) for name in "abc")
    policy = policy_of(a, b, c)
    a.stake = None
    policy.withdraw(b)
    assert order(policy) == ["c"]
    a.stake = Stake(1, 1, 0)
    policy.offer(a)
    assert order(policy) == ["a"]


def test_clear_forgets_all() -> None:
    a = Thing("a", Stake(1, 1, 0))
    policy = policy_of(a)
    policy.clear()
    assert policy.next() is None
    policy.offer(a)
    assert policy.next() is a


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_a_full_scan(seed: int) -> None:
    """Stakes change at random; falls are announced, rises are not."""
    rng = random.Random(seed)
    policy = policy_of()
    alive: list[Thing] = []
    for _ in range(5000):
        choice = rng.random()
        if choice < 0.4 or not alive:
            alive.append(Thing("", Stake(rng.randint(1, 1000), rng.randint(1, 1000), 0)))
            policy.offer(alive[-1])
        elif choice < 0.7:
            thing = rng.choice(alive)
            assert thing.stake is not None
            thing.stake = Stake(rng.randint(1, 1000), thing.stake.num_bytes, 0)
            policy.offer(thing)  # a rise offered again changes nothing
        elif choice < 0.8:
            policy.withdraw(alive.pop(rng.randrange(len(alive))))
        else:
            least = min(policy.value(thing.stake) for thing in alive if thing.stake is not None)
            thing = policy.next(rng.choice([inf, least + 1e-9])) or Thing("", None)
            assert thing.stake is not None
            assert policy.value(thing.stake) == least
            alive.remove(thing)
    assert len(policy._heap) <= 1000 + 2 * len(alive) + 1
