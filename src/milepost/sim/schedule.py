"""What a cache that knows the future could keep: a schedule that a budget really holds, so a floor under the best.

The schedule says of each request how many tokens it resumes. What must be kept follows:

    keys and values    of those tokens, each from its last visit to this one
    one state          at their end, from the last visit that had it: one that computed past it, or resumed there

Between two requests, what is kept is at most the budget. A visit that resumed behind a state does not have it again: it
must have been kept through that visit too. What a request uses while it runs is not counted, as in `bound.py`.

First, requests in order of tokens per cost, at the bound's prices, get the depth that these prices favour where it
fits; then each gets all that still fits; then neighbours are taken out and put back in another order, again and again,
and stay so if that saves as many tokens or more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from milepost.sim.bound import Demand, Prices
from milepost.sim.returns import Numbers

TRIES = 10_000
NEIGHBOURS = 20
SHUFFLE = 0.5
"""How far the order of neighbours is from that of the prices: sigma of the logarithm."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """`depths`: tokens that each request resumes. `tokens`: all of them. `peak_bytes`: the most that is kept."""

    depths: Numbers
    tokens: int
    peak_bytes: int


def feasible_schedule(demand: Demand, limit_bytes: int, prices: Prices, *, tries: int = TRIES) -> Schedule:
    """For a budget of `limit_bytes`, from 1 on. `prices`: of the upper bound for it. The same every time."""
    timeline = Timeline(demand, limit_bytes)
    if len(demand.firsts):
        _Filling(demand, timeline, prices).improve(tries)
    return Schedule(np.array(timeline.depths, np.int64), timeline.tokens, int(timeline.used.max(initial=0)))


class Timeline:
    """Who resumes what, and the bytes in each gap that this takes; never more than the budget.

    origins    of each request that resumes, the visit from which its state is kept
    through    visits between that one and the request that do not have the state: they resumed behind it
    kept_from  of each visit, requests whose origin it is; kept_past: requests that it is `through` for
    """

    def __init__(self, demand: Demand, limit_bytes: int) -> None:
        returns, sizes = demand.returns, demand.sizes
        self.limit_bytes, self.unit = limit_bytes, returns.unit
        self.token_bytes, self.state_bytes = sizes.kv_bytes_per_token, sizes.checkpoint_bytes
        num = returns.num_requests
        self.rows: list[list[tuple[int, int]]] = [[] for _ in range(num)]
        for request, source, depth in zip(
            *map(np.ndarray.tolist, (returns.request, returns.source, returns.depth)), strict=True
        ):
            self.rows[request].append((source, depth))
        self.used: Numbers = np.zeros(num, np.int64)
        self.depths, self.tokens = [0] * num, 0
        self._origins = [-1] * num
        self._through: list[list[int]] = [[] for _ in range(num)]
        self._kept_from: list[list[int]] = [[] for _ in range(num)]
        self._kept_past: list[list[int]] = [[] for _ in range(num)]

    def full_depth(self, request: int) -> int:
        return self.rows[request][-1][1]

    def put(self, request: int, most: int | None = None) -> int:
        """Lets `request`, which resumes nothing yet, resume as much as fits, at most `most`; returns how much."""
        for depth in reversed(self._fitting(request)):
            depth = depth if most is None else min(depth, most)
            if self.set(request, depth):
                return depth
            # Those whose state comes from here would lose it if this request resumed behind them.
            lower = min((self.depths[other] for other in self._kept_from[request]), default=depth)
            if lower < depth and self.set(request, lower):
                return lower
        return 0

    def set(self, request: int, depth: int) -> bool:
        """Lets `request`, which resumes nothing yet, resume `depth`, for which there must be room but for states that
        have to be kept longer. If those do not fit, nothing is changed, and the answer is False."""
        self.depths[request] = depth
        self.tokens += depth
        self._add_kv(request, depth, 1)
        visit = self._last_visit(request, depth)
        self._start_state(request, request, visit)
        fits = self._fits(self._origins[request], visit)
        for other in [other for other in self._kept_from[request] if self.depths[other] < depth]:
            self._kept_from[request].remove(other)
            self._through[other].append(request)
            self._kept_past[request].append(other)
            self._start_state(other, request, self._last_visit(request, self.depths[other]))
            fits = fits and self._fits(self._origins[other], request)
        if not fits:
            self.clear(request)
        return fits

    def clear(self, request: int) -> None:
        """`request` resumes nothing any more: it computes all, and has every state of its prompt."""
        depth = self.depths[request]
        if not depth:
            return
        self._add_kv(request, depth, -1)
        self._end_state(request, request, 0)
        self.depths[request] = 0
        self.tokens -= depth
        for other in list(self._kept_past[request]):
            self._end_state(other, request, self._through[other].index(request))
            self._origins[other] = request
            self._kept_from[request].append(other)

    def _fitting(self, request: int) -> list[int]:
        """In each row where one has room for its keys, values and a state since the row's visit: the deepest depth."""
        depths: list[int] = []
        above, end, deepest = 0, request, math.inf
        for source, depth in self.rows[request]:
            room = self.limit_bytes - int(self.used[source:end].max()) - self.state_bytes
            if room < 0:
                break
            if self.token_bytes:  # in these gaps only tokens below `above` are kept
                deepest = min(deepest, (above + room // self.token_bytes) // self.unit * self.unit)
            if deepest <= above:
                break
            depths.append(int(min(depth, deepest)))
            above, end = depth, source
        return depths

    def _last_visit(self, request: int, depth: int) -> int:
        """The last request before `request` that visited the block which ends at `depth`."""
        return next(source for source, end in self.rows[request] if depth <= end)

    def _add_kv(self, request: int, depth: int, sign: int) -> None:
        above, end = 0, request
        for source, row_depth in self.rows[request]:
            self.used[source:end] += sign * (depth - above) * self.token_bytes
            if depth <= row_depth:
                return
            above, end = row_depth, source

    def _start_state(self, request: int, end: int, visit: int) -> None:
        """Keeps the state of `request` until `end` from the last visit that has it, `visit` or one before."""
        depth = self.depths[request]
        while self.depths[visit] > depth:
            self._through[request].append(visit)
            self._kept_past[visit].append(request)
            visit = self._last_visit(visit, depth)
        self._origins[request] = visit
        self._kept_from[visit].append(request)
        self.used[visit:end] += self.state_bytes

    def _end_state(self, request: int, end: int, count: int) -> None:
        """Keeps the state of `request` no more until `end`, nor through any but the first `count` visits."""
        origin = self._origins[request]
        self.used[origin:end] -= self.state_bytes
        self._kept_from[origin].remove(request)
        for visit in self._through[request][count:]:
            self._kept_past[visit].remove(request)
        del self._through[request][count:]

    def _fits(self, start: int, end: int) -> bool:
        return start >= end or int(self.used[start:end].max()) <= self.limit_bytes


class _Filling:
    """Fills a timeline in an order that prices suggest."""

    def __init__(self, demand: Demand, timeline: Timeline, prices: Prices) -> None:
        self.timeline, self.rng = timeline, random.Random(0)
        returns, costs = demand.returns, demand.costs(prices)
        gains = returns.depth - costs
        best = np.maximum.reduceat(gains, demand.firsts)
        places = np.flatnonzero(gains >= best[demand.owner])
        places = places[np.unique(demand.owner[places], return_index=True)[1]]
        self.requests: list[int] = returns.request[places].tolist()
        tokens = returns.depth[places]
        worth = tokens / np.maximum(costs[places], 1e-12)
        self.worth: dict[int, float] = dict(zip(self.requests, worth.tolist(), strict=True))
        self.favoured: dict[int, int] = dict(zip(self.requests, np.where(best > 0, tokens, 0).tolist(), strict=True))

    def improve(self, tries: int) -> None:
        """Fills the empty timeline, then tries other orders of neighbours."""
        self._fill(sorted(self.requests, key=lambda request: -self.worth[request]))
        timeline, rng = self.timeline, self.rng
        for _ in range(tries):
            count = rng.randint(2, NEIGHBOURS)
            start = rng.randrange(max(1, len(self.requests) - count + 1))
            some = self.requests[start : start + count]
            before, tokens = [timeline.depths[request] for request in some], timeline.tokens
            if all(depth == timeline.full_depth(request) for request, depth in zip(some, before, strict=True)):
                continue
            self._set(some, [0] * len(some))
            noise = {request: self.worth[request] * math.exp(rng.gauss(0, SHUFFLE)) for request in some}
            self._fill(sorted(some, key=lambda request: -noise[request]))
            if timeline.tokens < tokens:
                self._set(some, before)

    def _fill(self, ordered: list[int]) -> None:
        for request in ordered:
            if self.favoured[request]:
                self.timeline.put(request, self.favoured[request])
        for request in ordered:
            depth = self.timeline.depths[request]
            if depth < self.timeline.full_depth(request):
                self.timeline.clear(request)
                if self.timeline.put(request) < depth:
                    self._set([request], [depth])

    def _set(self, requests: list[int], depths: Iterable[int]) -> None:
        """Back to depths that have had room together with all else as it is."""
        for request in requests:
            self.timeline.clear(request)
        for request, depth in zip(requests, depths, strict=True):
            if depth:
                self.timeline.set(request, depth)
