"""Policies are played with the retention that they are meant for, or with the one that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milepost.cache.policies.registry import INTERVALS, POLICIES
from milepost.sim.sizes import Sizes
from milepost.sim.study import Source, Tried, runs

SIZES = Sizes(100, 6400)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Three prompts of ten blocks, 512 tokens each, nothing shared."""
    lines = [
        {"timestamp": 0, "input_length": 5120, "output_length": 1, "hash_ids": list(range(10 * k, 10 * k + 10))}
        for k in range(3)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return Source(path)


def test_intervals_are_of_policies_that_there_are() -> None:
    assert set(INTERVALS) <= set(POLICIES)


@pytest.mark.parametrize(
    ("tried", "num_states"),
    [(Tried("lru"), 30), (Tried("lru-ends"), 6), (Tried("lru-ends", 1024), 18), (Tried("lru-2048"), 12)],
)
def test_states_by_policy_and_interval(source: Source, tried: Tried, num_states: int) -> None:
    (run,) = runs(source, [tried], [10**9], SIZES, jobs=1, progress=lambda done, total: None)
    assert run.result.states_made == num_states
