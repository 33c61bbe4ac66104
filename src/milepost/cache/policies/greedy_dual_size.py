"""GreedyDual-Size (Cao and Irani, 1997) by tokens to compute again, with frequency (Cherkasova, 1998).

A thing is worth `L + uses * tokens / bytes` from its last use on; L is the worth of what went last. So what is cheap to
make again for its bytes goes first, and what is dear goes too, once it has not been used while much else came and went.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from math import inf

from milepost.cache.policies.always import Always
from milepost.cache.policies.least_value import LeastValue
from milepost.cache.policies.policy import Facts, Policy, Thing
from milepost.cache.tree import Checkpoint, Tree
from milepost.specs import BLOCK_SIZE


def build(facts: Facts) -> Policy:
    return Policy(Always(), GreedyDualSize(facts))


class GreedyDualSize:
    """See `Eviction`."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._order = LeastValue[Thing](facts.may_go, self._value)
        self._times, self._levels = array("d", [0.0]), array("d", [0.0])
        """L from each of these times on."""

    def offer(self, thing: Thing) -> None:
        self._order.offer(thing)

    def next(self, below: float = inf) -> Thing | None:
        thing = self._order.next(below)
        if thing is not None and (value := self._value(thing)) > self._levels[-1]:
            self._times.append(self._facts.now())
            self._levels.append(value)
        return thing

    def withdraw(self, thing: Thing) -> None:
        self._order.withdraw(thing)

    def clear(self) -> None:
        self._order.clear()

    def _value(self, thing: Thing) -> float:
        level = self._levels[bisect_right(self._times, thing.last_use) - 1]
        return level + self._uses_for_size(thing)

    def _uses_for_size(self, thing: Thing) -> float:
        memory = self._facts.memory
        if isinstance(thing, Checkpoint):
            return (1 + thing.hits) * Tree.gap(thing) / memory.checkpoint_bytes
        if not memory.checkpoint_bytes:
            return (1 + thing.hits) * BLOCK_SIZE / memory.block_bytes
        if thing.is_stranded:
            return 0.0  # nobody can resume there
        gap, hits = Tree.gap(thing.checkpoints[-1]), max(thing.hits, thing.checkpoints[-1].hits)
        return (1 + hits) * gap / memory.prefix_bytes(gap)
