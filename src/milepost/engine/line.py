"""Sequences standing in line, the most important first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from milepost.request import Sequence

Rank = tuple[int, float, int]
"""Importance of a sequence, the most important first: (priority, arrival time, order of arrival)."""


class Line:
    """Sequences in order of importance. Adding and removing moves memory, at a few nanoseconds a place."""

    def __init__(self, rank: Callable[[Sequence], Rank]) -> None:
        self._rank = rank
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    @property
    def last(self) -> Sequence:
        return self._items[-1]

    def add(self, seq: Sequence) -> None:
        insort(self._items, seq, key=self._rank)

    def remove(self, seq: Sequence) -> None:
        del self._items[bisect_left(self._items, self._rank(seq), key=self._rank)]
