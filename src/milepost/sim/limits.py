"""The limits of a trace: what no cache of a given size can pass, and what one that knows the future reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from milepost.sim.bound import Demand, upper_bound
from milepost.sim.returns import returns_of
from milepost.sim.schedule import feasible_schedule
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Limits:
    """Shares of the prompts' tokens, 0 to 1. The best that any cache of `limit_bytes` can do lies between `feasible`
    and `upper_bound`, if a request's own memory while it runs is not counted."""

    limit_bytes: int
    upper_bound: float
    feasible: float


def limits(trace: Trace, sizes: Sizes, budgets: Iterable[int]) -> Iterator[Limits]:
    """For each of `budgets`, in bytes, from 1 on. The trace is read once; each budget then takes seconds."""
    returns = returns_of(trace, states=sizes.checkpoint_bytes > 0)
    demand, total = Demand(returns, sizes), max(returns.input_tokens, 1)
    for limit_bytes in budgets:
        bound = upper_bound(demand, limit_bytes)
        schedule = feasible_schedule(demand, limit_bytes, bound.prices)
        yield Limits(limit_bytes, bound.tokens / total, schedule.tokens / total)
