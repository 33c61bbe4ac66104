"""A trace: who asked for how many tokens when, and which prompts begin alike. No text."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from milepost.sim.sizes import Sizes

Blocks = NDArray[np.int64]

NONE: Blocks = np.empty(0, np.int64)

REORDER = 1024
"""Requests that a file may list after one that came later."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceRequest:
    """One request.

    time_ms        when it came, from the trace's start
    scope          ids mean something only within one: two scopes share nothing
    input_length   tokens of its prompt
    output_length  tokens of its answer
    blocks         one id for each full block of the prompt; chained: equal ids in a scope are equal prefixes
    answer         the same for the further full blocks of prompt and answer together, where the trace knows them
    boundaries     after how many blocks messages begin or end, ascending, where the trace knows that
    """

    time_ms: float
    scope: str
    input_length: int
    output_length: int
    blocks: Blocks
    answer: Blocks = field(default_factory=lambda: NONE)
    boundaries: tuple[int, ...] = ()

    @property
    def all_blocks(self) -> Blocks:
        """What others may resume afterwards."""
        return np.concatenate((self.blocks, self.answer)) if len(self.answer) else self.blocks


@dataclass(frozen=True)
class Trace:
    """Requests in the order in which they came. `open` starts at the first each time and reads as it goes: a trace need
    not fit in memory. `block_size`: tokens that one id stands for. `sizes`: of the model that it was recorded with,
    where the file says so."""

    name: str
    block_size: int
    open: Callable[[], Iterator[TraceRequest]]
    sizes: Sizes | None = None

    def __iter__(self) -> Iterator[TraceRequest]:
        return self.open()

    def coarse(self, factor: int) -> Trace:
        """The same in blocks of `factor` of its blocks: an id names all that leads up to it, so each last one stays."""
        if factor == 1:
            return self

        def read() -> Iterator[TraceRequest]:
            for request in self.open():
                blocks, prompt = request.all_blocks[factor - 1 :: factor], len(request.blocks) // factor
                places = tuple(dict.fromkeys(place // factor for place in request.boundaries if place >= factor))
                yield replace(request, blocks=blocks[:prompt], answer=blocks[prompt:], boundaries=places)

        return Trace(self.name, self.block_size * factor, read, self.sizes)

    def take(self, start: float, end: float) -> Trace:
        """Its requests from share `start` on and below share `end` of their number, times as they are."""
        count = sum(1 for _ in self.open())
        first, stop = int(count * start), int(count * end)

        def read() -> Iterator[TraceRequest]:
            for number, request in enumerate(self.open()):
                if number >= stop:
                    return
                if number >= first:
                    yield request

        return Trace(self.name, self.block_size, read, self.sizes)


def in_time_order(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """By time, equal times as they come. One that is listed more than `REORDER` places too late stays late."""
    waiting: list[tuple[float, int, TraceRequest]] = []
    for number, request in enumerate(requests):
        heapq.heappush(waiting, (request.time_ms, number, request))
        if len(waiting) > REORDER:
            yield heapq.heappop(waiting)[2]
    while waiting:
        yield heapq.heappop(waiting)[2]
