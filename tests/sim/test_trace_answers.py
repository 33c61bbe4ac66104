"""Answers that a trace knows: the next turn of a chat begins with them."""

import json
from pathlib import Path

import numpy as np
import pytest

from milepost.sim.formats.registry import open_trace
from milepost.sim.limits import limits
from milepost.sim.replay import Setting, look, replay
from milepost.sim.result import Result
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace, TraceRequest

SIZES = Sizes(100, 5000)
ENDLESS = 10**9
TURNS = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 2, 3, 4, 5, 6, 7, 8], [9])]


def request(number: int, blocks: list[int], answer: list[int], boundaries: tuple[int, ...] = ()) -> TraceRequest:
    """Twenty tokens of prompt and ten of answer beyond whole blocks."""
    ids, further = np.array(blocks, np.int64), np.array(answer, np.int64)
    return TraceRequest(1000.0 * number, "", len(ids) * 64 + 20, len(further) * 64 + 10, ids, further, boundaries)


def trace(*turns: tuple[list[int], list[int]], boundaries: tuple[int, ...] = ()) -> Trace:
    requests = [request(i, *turn, boundaries) for i, turn in enumerate(turns)]
    return Trace("by hand", 64, lambda: iter(requests))


def played(some: Trace, limit_bytes: int = ENDLESS, interval: int | None = None) -> Result:
    return replay(some, Setting(interval=interval), SIZES, limit_bytes)


def without(*turns: tuple[list[int], list[int]]) -> Trace:
    return trace(*((blocks, []) for blocks, _ in turns))


@pytest.mark.parametrize("interval", [None, 0])
def test_the_next_turn_resumes_where_the_answer_ended(interval: int | None):
    assert played(trace(*TURNS), interval=interval).hits.tolist() == [0, 4 * 64, 6 * 64]
    assert played(without(*TURNS), interval=interval).hits.tolist() == [0, 2 * 64, 5 * 64]


def test_the_ceiling_and_the_limits_know_answers():
    found = look(trace(*TURNS)), look(without(*TURNS))
    assert [seen.ceiling.tolist() for seen in found] == [[0, 4 * 64, 6 * 64], [0, 2 * 64, 5 * 64]]
    (limit,) = limits(trace(*TURNS), SIZES, [ENDLESS])
    assert limit.feasible == pytest.approx(played(trace(*TURNS)).hit_rate)
    assert limit.upper_bound == pytest.approx(limit.feasible)


def test_answers_take_memory():
    with_answer, bare = trace(([1], [2, 3, 4])), trace(([1], []))
    assert [played(one).bytes_by_kind["kv"].peak for one in (with_answer, bare)] == [4 * 6400 + 1600, 6400 + 1600]


def test_an_answer_that_does_not_fit_is_left_out():
    found = played(trace(([1, 2], [*range(3, 60)]), ([1, 2], [])), limit_bytes=60_000)
    assert found.cut_short == 0
    assert found.hits.tolist() == [0, 128]


def test_the_last_token_of_an_answer_is_not_computed():
    """So a block that it would fill is not there."""
    first = TraceRequest(0.0, "", 64, 64, np.array([1], np.int64), np.array([2], np.int64))
    second = request(1, [1, 2, 3], [])
    assert played(Trace("by hand", 64, lambda: iter([first, second]))).hits.tolist() == [0, 64]


def test_states_are_kept_where_messages_end_whatever_the_interval():
    turns = ([1, 2, 3, 4, 5, 6], []), ([1, 2, 3, 7], [])
    assert played(trace(*turns), interval=0).hits.tolist() == [0, 0]
    assert played(trace(*turns, boundaries=(3,)), interval=0).hits.tolist() == [0, 3 * 64]


def test_coarser_blocks():
    (first, second, _) = trace(*TURNS, boundaries=(1, 2, 3, 5)).coarse(2)
    assert (first.blocks.tolist(), first.answer.tolist()) == ([2], [4])
    assert (second.blocks.tolist(), second.answer.tolist(), second.boundaries) == ([2, 4], [6], (1, 2))


def test_a_recording_has_them(tmp_path: Path):
    header = {
        "format": "milepost-trace",
        "version": 1,
        "block_size": 64,
        "kv_bytes_per_token": 1,
        "checkpoint_bytes": 1,
    }
    line = {"t_ms": 1, "scope": 0, "in": 70, "out": 70, "blocks": [5], "answer": [6], "boundaries": [1]}
    path = tmp_path / "trace"
    path.write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    (found,) = open_trace(path)
    assert (found.blocks.tolist(), found.answer.tolist(), found.boundaries) == ([5], [6], (1,))
