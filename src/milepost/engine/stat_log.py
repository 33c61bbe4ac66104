"""A line in the log every ten seconds while something is done, in vLLM's words."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from milepost.engine.metrics import Metrics, Totals

logger = logging.getLogger(__name__)

SECONDS = 10.0


class StatLog:
    """`clock` gives seconds. Nothing in a line is of a single request."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics, self._clock = metrics, clock
        self._time, self._before = clock(), Totals()
        self._was_busy = False
        self._hit_rate = 0.0
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="milepost-stats", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def line(self) -> str | None:
        """Of the time since the last call; None where nothing was done in it, nor in the time before."""
        now, totals = self._clock(), self._metrics.totals
        seconds, before = max(now - self._time, 1e-9), self._before
        self._time, self._before = now, totals
        num_read, num_written = totals.prompt - before.prompt, totals.generated - before.generated
        queries = totals.queries - before.queries
        if queries:
            self._hit_rate = (totals.hits - before.hits) / queries
        is_busy = bool(num_read or num_written or queries)
        is_news, self._was_busy = is_busy or self._was_busy, is_busy
        if not is_news:
            return None
        return (
            f"Avg prompt throughput: {num_read / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {num_written / seconds:.1f} tokens/s, "
            f"Running: {totals.running} reqs, Waiting: {totals.waiting} reqs, "
            f"KV cache usage: {totals.usage:.1%}, Prefix cache hit rate: {self._hit_rate:.1%}"
        )

    def _run(self) -> None:
        while not self._stopped.wait(SECONDS):
            line = self.line()
            if line is not None:
                logger.info("%s", line)
