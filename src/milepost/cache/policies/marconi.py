"""Marconi (Pan et al., MLSys 2025): states only where texts part or end, and eviction that weighs age against FLOPs.

Admission is that of retention 0: a state where a second text leaves a known one, and at each end. Eviction takes from
nodes of the radix tree that at most one other continues. In our tree such a node is a checkpoint with the KV back to
the checkpoint before it; one that something continues gives up its state alone. The least `recency + alpha *
efficiency` goes first:

    recency     1 / (time since its last use)
    efficiency  FLOPs saved for each byte of its state and KV

each from 0, the least among all candidates, to 1. FLOPs are counted as tokens: what attention adds in long texts is
left out. The paper tunes alpha while it runs; here it is given, and a replay can try several.
"""

from __future__ import annotations

from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from milepost.cache.policies.always import Always
from milepost.cache.policies.policy import Build, Facts, Policy, Thing
from milepost.cache.tree import Checkpoint, Node, Tree
from milepost.specs import BLOCK_SIZE

STRANDED = -1.0
"""Efficiency of KV behind its last state: worth nothing to anybody."""

FORK = 1e9
"""Of a state that several texts continue: no candidate while there is another."""


def with_alpha(alpha: float) -> Build:
    return partial(build, alpha=alpha)


def build(facts: Facts, alpha: float = 1.0) -> Policy:
    return Policy(Always(), FlopAware(facts, alpha))


class FlopAware:
    """See `Eviction`. What is known of a thing is from when it was offered; the one that is to go is looked at again,
    since somebody may have used it."""

    def __init__(self, facts: Facts, alpha: float) -> None:
        self._facts, self._alpha = facts, alpha
        self._things: list[Thing] = []  # entry - 1 is the place
        self._last_use, self._efficiency = np.zeros(64), np.zeros(64)

    def offer(self, thing: Thing) -> None:
        if self._facts.may_go(thing):
            if not thing.entry:
                self._things.append(thing)
                thing.entry = len(self._things)
                if len(self._things) > len(self._last_use):
                    self._last_use, self._efficiency = np.tile(self._last_use, 2), np.tile(self._efficiency, 2)
            self._look_at(thing)

    def next(self, below: float = inf) -> Thing | None:
        while self._things:
            thing, utility = self._least()
            if not self._facts.may_go(thing):
                self.withdraw(thing)
            elif not self._look_at(thing):
                if utility >= below:
                    return None
                self.withdraw(thing)
                return thing
        return None

    def withdraw(self, thing: Thing) -> None:
        if not thing.entry:
            return
        last, place = self._things.pop(), thing.entry - 1
        if last is not thing:
            self._things[place], last.entry = last, place + 1
            self._last_use[place] = self._last_use[len(self._things)]
            self._efficiency[place] = self._efficiency[len(self._things)]
        thing.entry = 0

    def clear(self) -> None:
        for thing in self._things:
            thing.entry = 0
        self._things.clear()

    def _least(self) -> tuple[Thing, float]:
        num, now = len(self._things), self._facts.now()
        efficiency = self._efficiency[:num]
        normal = (efficiency != STRANDED) & (efficiency != FORK)
        utility = _from_0_to_1(1 / (now - self._last_use[:num]), normal)
        utility = np.where(normal, utility + self._alpha * _from_0_to_1(efficiency, normal), efficiency)
        place = int(utility.argmin())
        return self._things[place], float(utility[place])

    def _look_at(self, thing: Thing) -> bool:
        """Notes how it is now; whether that has changed."""
        place = thing.entry - 1
        before = self._last_use[place], self._efficiency[place]
        self._last_use[place], self._efficiency[place] = thing.last_use, _efficiency(thing, self._facts)
        return before != (self._last_use[place], self._efficiency[place])


def _from_0_to_1(values: NDArray[np.float64], counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """So that the least of those `counted` is 0 and the largest is 1; all 1 where they are equal."""
    if not counted.any():
        return values
    least, largest = values[counted].min(), values[counted].max()
    return (values - least) / (largest - least) if largest > least else np.ones(len(values))


def _efficiency(thing: Thing, facts: Facts) -> float:
    memory = facts.memory
    if isinstance(thing, Node):
        if not memory.checkpoint_bytes:
            return BLOCK_SIZE / memory.block_bytes
        if thing.is_stranded:
            return STRANDED
        thing = thing.checkpoints[-1]
    elif _is_fork(thing):
        return FORK
    gap = Tree.gap(thing)
    return gap / memory.prefix_bytes(gap)


def _is_fork(checkpoint: Checkpoint) -> bool:
    node = checkpoint.node
    return node is not None and checkpoint.depth == node.end and len(node.children) > 1
