"""How long each kernel of an engine runs, call by call."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from milepost.engine.engine import Engine


class KernelTimes:
    """Seconds and calls by kernel; matrix products by their sizes too: "linear_bf16 1024x3072" has 1,024 inputs."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def of(self, engine: Engine) -> Iterator[None]:
        """While it lasts. The timers' own time counts as outside of kernels; decode steps are recorded anew, with the
        timers in them."""
        replays = engine.runner.replays
        if replays is None or replays.kernels is None:
            raise RuntimeError("the engine has no compiled kernels")
        replays.forget()
        try:
            with replays.kernels.wrapped(self._timed):
                yield
        finally:
            replays.forget()

    def _timed(self, name: str, run: Callable[..., object]) -> Callable[..., object]:
        def call(*args: Any) -> object:
            start = time.perf_counter()
            try:
                return run(*args)
            finally:
                kernel = f"{name} {args[6]}x{args[7]}" if name.startswith("linear_") else name
                self.seconds[kernel] += time.perf_counter() - start
                self.calls[kernel] += 1

        return call
