"""The order of eviction by a value that each thing has, whatever that is."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from typing import Generic, Protocol, TypeVar

MIN_HEAP = 1000


class Listed(Protocol):
    entry: int


T = TypeVar("T", bound=Listed)


class LeastValue(Generic[T]):
    """The least value goes first (see `Eviction`). A heap whose entries are looked at again when they come up: values
    may rise unannounced; one that falls has to be offered again."""

    def __init__(self, may_go: Callable[[T], bool], value: Callable[[T], float]) -> None:
        """`value` is asked of things that may go."""
        self._may_go, self._value = may_go, value
        self._heap: list[tuple[float, int, T]] = []
        self._entries = 0
        self._live: dict[int, float] = {}

    def offer(self, thing: T) -> None:
        if not self._may_go(thing):
            return
        value = self._value(thing)
        if value < self._live.get(thing.entry, inf):
            self._push(value, thing)

    def next(self, below: float = inf) -> T | None:
        while self._heap and self._heap[0][0] < below:
            listed, entry, thing = heapq.heappop(self._heap)
            if thing.entry != entry:
                continue
            del self._live[entry]
            thing.entry = 0
            if not self._may_go(thing):
                continue
            value = self._value(thing)
            if value <= listed:
                return thing
            self._push(value, thing)
        return None

    @property
    def num_listed(self) -> int:
        return len(self._live)

    def look_again(self) -> None:
        """All values may have fallen."""
        for thing in [thing for _, entry, thing in self._heap if thing.entry == entry]:
            self.offer(thing)

    def withdraw(self, thing: T) -> None:
        self._live.pop(thing.entry, None)
        thing.entry = 0

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
