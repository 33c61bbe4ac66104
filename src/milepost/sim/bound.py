"""No cache of a given size can save more tokens than this, whatever its policy, even one that knows the future.

What memory costs, in every gap between two requests, is a price (tokens for a byte kept over that gap). A request that
resumes d tokens saves d, and pays for the keys and values of all d, each since its own last visit, and for one state
since the last visit of its block. Each takes the d that gains most, or nothing. No interval of memory serves two
requests: it ends at the next visit. So for any prices at all,

    bytes of the budget x sum of the prices  +  sum over the requests of max(0, largest gain)

is an upper bound: a schedule that fits the budget gains at most the second term and pays at most the first. We look
for prices that make it small: the best uniform one, then steps that raise a price where more than the budget is asked
for and lower it where less is. Within a row of `Returns` the gain is linear in d, so only ends of rows matter.

The bound forgives two things that a real cache must do: a state is taken to be at hand at each visit, though that visit
may have resumed behind it; and a request uses no memory while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milepost.sim.returns import Numbers, Returns
from milepost.sim.sizes import Sizes

Prices = NDArray[np.float64]
"""Tokens for a byte kept over each gap; gap t lies between requests t and t + 1."""

STEPS = 300
STEP_SIZE = 0.3
STEP_HALF_LIFE = 10
"""Steps until they begin to shrink, as the root of their number."""
LOWEST_START = 1e-3
"""Of the highest uniform price that can be best. Steps multiply, so from next to nothing they would take too many."""


@dataclass(frozen=True, eq=False)
class Bound:
    """`tokens`: at most so many of the prompts' tokens can be resumed. `prices`: those that show it."""

    tokens: float
    prices: Prices


class Demand:
    """What requests ask for at given prices. Arrays are by row of `returns`.

    firsts  the first row of each request that has any
    owner   of each row, the place of its request in `firsts`
    """

    def __init__(self, returns: Returns, sizes: Sizes) -> None:
        self.returns, self.sizes = returns, sizes
        is_first = np.append(True, returns.request[1:] != returns.request[:-1])[: len(returns.request)]
        self.firsts = np.flatnonzero(is_first)
        self.owner = np.cumsum(is_first) - 1
        above = np.where(is_first, 0, np.roll(returns.depth, 1))
        self.kv_bytes: Numbers = (returns.depth - above) * sizes.kv_bytes_per_token
        self.num_gaps = max(returns.num_requests - 1, 0)

    @property
    def ceiling(self) -> int:
        """Tokens that would be resumed with memory for everything."""
        return int(np.maximum.reduceat(self.returns.depth, self.firsts).sum()) if len(self.firsts) else 0

    def costs(self, prices: Prices) -> NDArray[np.float64]:
        """Of resuming at each row's end."""
        until = np.concatenate(([0.0], np.cumsum(prices)))
        held = until[self.returns.request] - until[self.returns.source]
        row_costs = self.kv_bytes * held
        sums = np.cumsum(row_costs)
        before = (sums - row_costs)[self.firsts]
        return sums - before[self.owner] + self.sizes.checkpoint_bytes * held

    def choose(self, prices: Prices) -> tuple[float, Numbers]:
        """What all requests gain together, and the row that each takes which gains anything."""
        gains = self.returns.depth - self.costs(prices)
        best = np.maximum.reduceat(gains, self.firsts)
        rows = np.flatnonzero((gains >= best[self.owner]) & (gains > 0))
        rows = rows[np.append(True, self.owner[rows][1:] != self.owner[rows][:-1])[: len(rows)]]
        return float(np.maximum(best, 0).sum()), rows

    def used(self, rows: Numbers) -> Numbers:
        """Bytes in each gap if requests resume at the ends of `rows`, one row each."""
        last = np.full(len(self.firsts), -1)
        last[self.owner[rows]] = rows
        kept = np.where(np.arange(len(self.owner)) <= last[self.owner], self.kv_bytes, 0)
        kept[rows] += self.sizes.checkpoint_bytes
        change = np.zeros(self.num_gaps + 1, np.int64)
        np.add.at(change, self.returns.source, kept)
        np.subtract.at(change, self.returns.request, kept)
        return np.cumsum(change)[:-1]


def upper_bound(demand: Demand, limit_bytes: int, *, steps: int = STEPS) -> Bound:
    """For a budget of `limit_bytes`, from 1 on. Fewer `steps` give a bound that is as true and less close."""
    free = np.zeros(demand.num_gaps)
    if not len(demand.firsts) or demand.used(demand.choose(free)[1]).max() <= limit_bytes:
        return Bound(float(demand.ceiling), free)

    def bound(prices: Prices) -> float:
        return limit_bytes * float(prices.sum()) + demand.choose(prices)[0]

    best = prices = _uniform(demand, limit_bytes)
    lowest = min(bound(prices), float(demand.ceiling))
    for step in range(steps):
        gain, rows = demand.choose(prices)
        value = limit_bytes * float(prices.sum()) + gain
        if value < lowest:
            lowest, best = value, prices
        over = demand.used(rows) / limit_bytes - 1
        prices = prices * np.exp(np.clip(STEP_SIZE / np.sqrt(1 + step / STEP_HALF_LIFE) * over, -1, 1))
    return Bound(lowest, best)


def _uniform(demand: Demand, limit_bytes: int) -> Prices:
    """The best of the prices that are the same in all gaps, about: the bound is convex in it."""
    width = limit_bytes * demand.num_gaps
    prices = np.geomspace(LOWEST_START, 1, 25) * demand.ceiling / width
    for _ in range(2):
        bounds = [width * price + demand.choose(np.full(demand.num_gaps, price))[0] for price in prices]
        place = int(np.argmin(bounds))
        found = prices[place]
        prices = np.geomspace(prices[max(place - 1, 0)], prices[min(place + 1, len(prices) - 1)], 9)
    return np.full(demand.num_gaps, found)
