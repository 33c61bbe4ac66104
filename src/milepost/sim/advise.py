"""Which flags of `milepost serve` to use for a trace, with so much memory: those that it has are tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from milepost.cache.policies.registry import DEFAULT, POLICIES, SERVED, flag_of
from milepost.sim.cost import Cost
from milepost.sim.replay import Setting, look, replay
from milepost.sim.report.choice import BASELINE, choose
from milepost.sim.report.data import Bounds, Run, report
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace

INTERVALS = (0, 512, 2048, 8192)
DEFAULT_NAME = "default"

Progress = Callable[[int, int], None]
"""Told how many requests have been played, and of how many in all."""

FindBounds = Callable[[Trace, Sizes, list[int]], Mapping[int, Bounds]]


def candidates(trace: Trace, sizes: Sizes) -> dict[str | None, Setting]:
    """By flags: the engine's own policy with each retention that differs from the default in this trace, and the other
    policies that it has; None: the baseline, which no server has."""
    found: dict[str | None, Setting] = {"": Setting(DEFAULT_NAME)}
    for interval in INTERVALS if sizes.checkpoint_bytes else ():
        if interval == 0 or interval > trace.block_size:
            setting = Setting(f"interval {interval}", interval=interval)
            found[f"--prefix-cache-retention-interval {interval}"] = setting
    found |= {flag_of(name): Setting(name, POLICIES[name]) for name in SERVED if name != DEFAULT}
    found[None] = Setting(BASELINE, POLICIES[BASELINE])
    return found


def advise(
    trace: Trace,
    sizes: Sizes,
    memory_bytes: int,
    find_bounds: FindBounds,
    *,
    cost: Cost | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A report of all candidates and the baseline with `memory_bytes`, and of the best also with half and with twice of
    them. ConfigError if the memory holds no request at all."""
    requests = look(trace, states=sizes.checkpoint_bytes > 0)
    settings = candidates(trace, sizes)
    num_replays, replayed = len(settings) + 2, 0

    def run(flags: str | None, limit_bytes: int) -> Run:
        nonlocal replayed

        def told(done: int) -> None:
            if progress is not None:
                progress(replayed * len(requests) + done, num_replays * len(requests))

        result = replay(trace, settings[flags], sizes, limit_bytes, requests=requests, progress=told)
        replayed += 1
        return Run(result, flags)

    runs = [run(flags, memory_bytes) for flags in settings]
    best = choose(report(trace, sizes, requests, runs), memory_bytes)
    budgets = [memory_bytes // 2, memory_bytes, memory_bytes * 2]
    if best is not None:
        runs += [run(best.flags, budgets[0]), run(best.flags, budgets[2])]
    return report(trace, sizes, requests, runs, find_bounds(trace, sizes, budgets), cost)
