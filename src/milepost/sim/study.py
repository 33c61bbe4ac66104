"""Many replays of one trace: each policy with each budget, several at once where there are cores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from milepost.cache.policies.registry import INTERVALS, POLICIES, flag_of
from milepost.sim.formats.registry import open_trace
from milepost.sim.play import Scale
from milepost.sim.replay import Setting, look, replay
from milepost.sim.report.data import Run
from milepost.sim.result import Requests
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace

LARGEST_BYTES = 64 * 10**9
NUM_BUDGETS = 6

Progress = Callable[[int, int], None]
"""Told how many replays are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A policy by its name, and a retention interval (None: what it is meant for)."""

    policy: str
    interval: int | None = None

    @property
    def name(self) -> str:
        return self.policy if self.interval is None else f"{self.policy}, interval {self.interval}"

    @property
    def flags(self) -> str | None:
        """Of `milepost serve`; None where it does not have the policy."""
        policy = flag_of(self.policy)
        if policy is None:
            return None
        interval = "" if self.interval is None else f"--prefix-cache-retention-interval {self.interval}"
        return " ".join(filter(None, (policy, interval)))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trace lies: another process opens it again. `factor`: of its blocks, to one."""

    path: Path
    format_name: str | None = None
    factor: int = 1

    def open(self) -> Trace:
        return open_trace(self.path, self.format_name).coarse(self.factor)


def runs(
    source: Source, tried: Sequence[Tried], budgets: Sequence[int], sizes: Sizes, jobs: int, progress: Progress
) -> list[Run]:
    """Of each of `tried`, with each of `budgets`, in this order. ConfigError for a budget that holds no request."""
    block_size = source.open().block_size
    for budget in budgets:
        Scale(block_size).memory(budget, sizes)  # tells one that is too small at once
    tasks = [(source, one, budget, sizes) for one in tried for budget in budgets]
    found: dict[int, Run] = {}
    for number, run in _all(tasks, jobs):
        found[number] = run
        progress(len(found), len(tasks))
    return [found[number] for number in range(len(tasks))]


def default_budgets(trace: Trace, requests: Requests, sizes: Sizes) -> list[int]:
    """Six at most, each twice the one before, up to what all that is ever computed takes, or 64 GB."""
    num_tokens = int((requests.input_tokens - requests.ceiling).sum())
    needed = num_tokens * sizes.kv_bytes_per_token + len(requests) * sizes.checkpoint_bytes
    most = min(LARGEST_BYTES, max(needed, 1))
    least = trace.block_size * sizes.kv_bytes_per_token + 2 * sizes.checkpoint_bytes
    return [size for place in reversed(range(NUM_BUDGETS)) if (size := most >> place) >= least] or [least]


Task = tuple[Source, Tried, int, Sizes]


def _all(tasks: list[Task], jobs: int) -> Iterator[tuple[int, Run]]:
    if jobs <= 1 or len(tasks) <= 1:
        for number, task in enumerate(tasks):
            yield number, _run(task)
        return
    with ProcessPoolExecutor(min(jobs, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        numbers = {pool.submit(_run, task): number for number, task in enumerate(tasks)}
        try:
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _run(task: Task) -> Run:
    source, tried, budget, sizes = task
    trace, requests = _opened(source, sizes.checkpoint_bytes > 0)
    interval = INTERVALS.get(tried.policy) if tried.interval is None else tried.interval
    setting = Setting(tried.name, POLICIES[tried.policy], interval)
    return Run(replay(trace, setting, sizes, budget, requests=requests), tried.flags)


@cache
def _opened(source: Source, states: bool) -> tuple[Trace, Requests]:
    trace = source.open()
    return trace, look(trace, states=states)
