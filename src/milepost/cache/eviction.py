"""What goes first when memory is short.

KV and checkpoints stand in one order, by what is lost for each byte won and how likely somebody wants it back:

    value = log2((1 + hits) * tokens / bytes) + time of last use / TAU + bonus

(after Cherkasova's GreedyDual-Size-Frequency, 1998). Time is counted in newly stored bytes of KV (of checkpoints, where
there is no KV), in units of the whole budget. So a thing's value never changes by standing still; what comes later is
worth more. What the tokens, bytes and bonus of a thing are: `stakes.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log2
from typing import Generic, Protocol, TypeVar

TAU = 2.0
MIN_HEAP = 1000


@dataclass(frozen=True, slots=True)
class Stake:
    """What is lost and won if a thing goes: `tokens` to compute again if somebody wants it back, `num_bytes` free.
    `hits`: how often somebody came back."""

    tokens: int
    num_bytes: int
    last_use: float
    hits: int = 0
    bonus: float = 0.0


class Thing(Protocol):
    """What can go. `entry` belongs to the policy: 0 while it does not list the thing."""

    entry: int


T = TypeVar("T", bound=Thing)


class EvictionPolicy(Protocol[T]):
    """Says which thing that nobody uses goes next."""

    def offer(self, thing: T) -> None:
        """`thing` may go from now on, or is worth less than before. Whoever uses it again need not say so."""

    def next(self, below: float = inf) -> T | None:
        """The thing of least value, if that is less than `below`; it is no longer offered."""

    def withdraw(self, thing: T) -> None:
        """`thing` is gone."""

    def value(self, stake: Stake) -> float:
        """What a thing of that stake is worth; only the order matters."""

    def clear(self) -> None: ...


class LeastValue(Generic[T]):
    """The order above, in a heap whose entries are looked at again when they come up: values only rise unannounced."""

    def __init__(self, stake: Callable[[T], Stake | None]) -> None:
        """`stake` says what a thing is worth now; None: it is in use, or gone."""
        self._stake = stake
        self._heap: list[tuple[float, int, T]] = []
        self._entries = 0
        self._live: dict[int, float] = {}

    def offer(self, thing: T) -> None:
        stake = self._stake(thing)
        if stake is None:
            return
        value = self.value(stake)
        if value < self._live.get(thing.entry, inf):
            self._push(value, thing)

    def next(self, below: float = inf) -> T | None:
        while self._heap and self._heap[0][0] < below:
            listed, entry, thing = heapq.heappop(self._heap)
            if thing.entry != entry:
                continue
            del self._live[entry]
            thing.entry = 0
            stake = self._stake(thing)
            if stake is None:
                continue
            value = self.value(stake)
            if value <= listed:
                return thing
            self._push(value, thing)
        return None

    def withdraw(self, thing: T) -> None:
        self._live.pop(thing.entry, None)
        thing.entry = 0

    def value(self, stake: Stake) -> float:
        return log2((1 + stake.hits) * stake.tokens / stake.num_bytes) + stake.last_use / TAU + stake.bonus

    def clear(self) -> None:
        for _, _, thing in self._heap:
            thing.entry = 0
        self._heap.clear()
        self._live.clear()

    def _push(self, value: float, thing: T) -> None:
        self._live.pop(thing.entry, None)
        self._entries += 1
        thing.entry = self._entries
        self._live[thing.entry] = value
        heapq.heappush(self._heap, (value, thing.entry, thing))
        if len(self._heap) > MIN_HEAP + 2 * len(self._live):
            self._heap = [listed for listed in self._heap if listed[2].entry == listed[1]]
            heapq.heapify(self._heap)
