"""The order in which things go, on things that have nothing but a value."""

from __future__ import annotations

import random
from math import inf

import pytest

from milepost.cache.policies.least_value import LeastValue


class Thing:
    def __init__(self, name: str, value: float) -> None:
        self.name, self.value, self.may_go, self.entry = name, value, True, 0


def order_of(*things: Thing) -> LeastValue[Thing]:
    order = LeastValue[Thing](lambda thing: thing.may_go, lambda thing: thing.value)
    for thing in things:
        order.offer(thing)
    return order


def names(order: LeastValue[Thing]) -> list[str]:
    found = []
    while (thing := order.next()) is not None:
        found.append(thing.name)
    return found


def test_the_least_value_goes_first() -> None:
    assert names(order_of(Thing("b", 2), Thing("a", 1), Thing("c", 3))) == ["a", "b", "c"]


def test_nothing_goes_that_is_worth_as_much_as_the_bound() -> None:
    thing = Thing("a", 0)
    order = order_of(thing)
    assert order.next(below=0.0) is None
    assert order.next(below=0.1) is thing
    assert order.next() is None


def test_what_has_risen_is_looked_at_again() -> None:
    a, b = Thing("a", 1), Thing("b", 2)
    order = order_of(a, b)
    a.value = 4
    assert names(order) == ["b", "a"]


def test_what_has_fallen_is_offered_again_and_goes_once() -> None:
    a, b = Thing("a", 1), Thing("b", 2)
    order = order_of(a, b)
    b.value = 0.5
    order.offer(b)
    assert names(order) == ["b", "a"]


def test_what_is_in_use_or_gone_does_not_go() -> None:
    a, b, c = (Thing(name, 1) for name in "abc")
    order = order_of(a, b, c)
    a.may_go = False
    order.withdraw(b)
    assert names(order) == ["c"]
    a.may_go = True
    order.offer(a)
    assert names(order) == ["a"]


def test_clear_forgets_all() -> None:
    a = Thing("a", 1)
    order = order_of(a)
    order.clear()
    assert order.next() is None
    order.offer(a)
    assert order.next() is a


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_a_full_scan(seed: int) -> None:
    """Values change at random; falls are announced, rises are not."""
    rng = random.Random(seed)
    order = order_of()
    alive: list[Thing] = []
    for _ in range(5000):
        choice = rng.random()
        if choice < 0.4 or not alive:
            alive.append(Thing("", rng.randint(1, 1000)))
            order.offer(alive[-1])
        elif choice < 0.7:
            thing = rng.choice(alive)
            thing.value = rng.randint(1, 1000)
            order.offer(thing)  # a rise offered again changes nothing
        elif choice < 0.8:
            order.withdraw(alive.pop(rng.randrange(len(alive))))
        else:
            least = min(thing.value for thing in alive)
            gone = order.next(rng.choice([inf, least + 1e-9]))
            assert gone is not None
            assert gone.value == least
            alive.remove(gone)
    assert len(order._heap) <= 1000 + 2 * len(alive) + 1
