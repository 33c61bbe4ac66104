"""The line every ten seconds."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from tiny_engine import MakeEngine, add, drain

from milepost.engine import stat_log
from milepost.engine.async_llm import AsyncLLM
from milepost.engine.stat_log import StatLog
from milepost.sampling_params import SamplingParams


def test_rates_of_the_time_since_the_last_line(make_engine: MakeEngine) -> None:
    engine = make_engine()
    times = iter([0.0, 10.0, 20.0, 30.0, 40.0, 45.0])
    log = StatLog(engine.metrics, lambda: next(times))
    assert log.line() is None, "nothing was done"
    add(engine, "a", list(range(50)), SamplingParams(temperature=0, max_tokens=20))
    for _ in range(6):
        engine.step()
    assert log.line() == (
        "Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 0.6 tokens/s, Running: 1 reqs, "
        "Waiting: 0 reqs, KV cache usage: 2.0%, Prefix cache hit rate: 0.0%"
    )
    drain(engine)
    add(engine, "b", list(range(50)), SamplingParams(temperature=0, max_tokens=6))
    drain(engine)
    line = log.line()
    assert line is not None
    assert line.startswith("Avg prompt throughput: 0.2 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 0")
    assert line.endswith("Prefix cache hit rate: 96.0%")
    idle = log.line()
    assert idle is not None
    assert idle.startswith("Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0"), "once it is told"
    assert log.line() is None


@pytest.mark.parametrize("log_stats", [True, False])
def test_it_is_written_while_something_is_done(
    log_stats: bool, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stat_log, "SECONDS", 0.02)
    caplog.set_level(logging.INFO)
    llm = AsyncLLM(make_engine(), log_stats=log_stats)

    async def run() -> None:
        async for _ in llm.generate([1, 2, 3], SamplingParams(max_tokens=2), "a"):
            pass

    asyncio.run(run())
    told = "Avg prompt throughput"
    for _ in range(500):
        if not log_stats or told in caplog.text:
            break
        threading.Event().wait(0.02)
    llm.shutdown()
    assert (told in caplog.text) is log_stats
