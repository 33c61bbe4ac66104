"""What a report tells of a replay."""

import json

import numpy as np
import pytest

from milepost.sim.cost import Cost
from milepost.sim.replay import Setting, look, replay
from milepost.sim.report.data import Bounds, Run, report
from milepost.sim.report.page import page
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace, TraceRequest

SIZES = Sizes(100, 5000, "a model")
PROMPTS = [[1, 2, 3], [1, 2, 4], [1, 2, 3, 5], [6, 7], [1, 2, 3]]


def requests() -> list[TraceRequest]:
    ids = [np.array(prompt, np.int64) for prompt in PROMPTS]
    return [TraceRequest(1000.0 * i, "", len(blocks) * 64 + 10, 7, blocks) for i, blocks in enumerate(ids)]


COST = Cost(0.0, 2.0, 0.0, "by hand")
TRACE = Trace("by hand", 64, lambda: iter(requests()))


def test_a_replay_in_numbers():
    seen = look(TRACE)
    runs = [Run(replay(TRACE, Setting(), SIZES, size, requests=seen), flags="") for size in (10**6, 10**5)]
    told = report(TRACE, SIZES, seen, runs, {10**6: Bounds(0.5, 0.4)})
    assert json.loads(json.dumps(told)) == told
    assert told["trace"] == {
        "name": "by hand",
        "block_size": 64,
        "requests": 5,
        "input_tokens": 15 * 64 + 50,
        "output_tokens": 35,
        "duration_ms": 4000.0,
    }
    assert told["budgets"] == [
        {"bytes": 10**5, "upper_bound": None, "feasible": None},
        {"bytes": 10**6, "upper_bound": 0.5, "feasible": 0.4},
    ]
    large, small = told["runs"]
    assert (
        (large["hit_tokens"], large["recomputed_tokens"]) == (told["ceiling"]["hit_tokens"], 0) == ((2 + 3 + 3) * 64, 0)
    )
    assert large["hit_rate"] == pytest.approx(8 * 64 / (15 * 64 + 50))
    assert small["budget_bytes"] == 10**5
    assert small["hit_tokens"] + small["recomputed_tokens"] == large["hit_tokens"]
    assert [time for time, _, _ in large["memory"]] == [0, 1000, 2000, 3000, 4000]
    assert max(kv for _, kv, _ in large["memory"]) == large["peak_bytes"]["kv"] == 7 * 6400
    assert max(state for _, _, state in large["memory"]) == large["peak_bytes"]["state"]
    assert "prefill_s" not in large
    assert "Use the default policy" in page(told)


def test_times_where_the_cost_is_known():
    seen = look(TRACE)
    (run,) = report(TRACE, SIZES, seen, [Run(replay(TRACE, Setting(), SIZES, 10**6, requests=seen))], cost=COST)["runs"]
    computed = [3 * 64 + 10, 64 + 10, 64 + 10, 2 * 64 + 10, 10]
    assert run["prefill_s"] == pytest.approx(sum(computed) * 2 / 1000)
    assert run["prefill_ms"]["mean"] == pytest.approx(sum(computed) * 2 / 5)
    assert run["prefill_ms"]["p50"] == pytest.approx(2 * (64 + 10))
    assert run["ttft_ms"]["mean"] == pytest.approx(run["prefill_ms"]["mean"]), "nobody waits for another"
    assert 0 < run["busy"] < 0.3
