"""Pinned prefixes beside requests: they stay while there is any other way, and nobody starves for them."""

from __future__ import annotations

import pytest
from desk import ATTENTION, LARGE, SHAPES, Desk, Shape

from milepost.request import Sequence, Status

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
with_kv = pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.block_bytes], ids=lambda s: s.name)


def pinned(desk: Desk, num_tokens: int) -> list[int]:
    """A text that is computed and pinned."""
    text = desk.text(num_tokens)
    desk.ask(text)
    assert desk.cache.pins.add("one", text) == num_tokens
    return text


def finish(desk: Desk, seqs: list[Sequence], num_tokens: int = 5) -> int:
    """Steps until all have so many tokens and have ended; how often one was preempted. Each step does something."""
    num_preempted = 0
    while desk.work.has_work:
        step = desk.step()
        assert step.pieces, "a step without rows: livelock"
        num_preempted += len(step.preempted)
        desk.cache.check(desk.work.running)
        for seq in seqs:
            if seq.status is Status.RUNNING and seq.num_output_tokens >= num_tokens:
                desk.work.finish(seq, "length")
    return num_preempted


@every_shape
def test_many_requests_at_once_leave_what_is_pinned(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(2048, 8), budget=256)
    text = pinned(desk, 1024)
    finish(desk, [desk.send(desk.text(300)) for _ in range(20)])
    assert desk.cache.resident(text) == 1024
    assert desk.cache.stats.pins_given_up == 0
    assert desk.ask([*text, 7]).num_cached_tokens == 1024


@with_kv
def test_a_request_as_large_as_the_memory_takes_it_and_finishes(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(2048, 8), budget=256)
    pinned(desk, 1024)
    large = desk.send(desk.text(desk.work.max_num_tokens - 10))
    others = [desk.send(desk.text(100)) for _ in range(5)]
    finish(desk, [large, *others])
    assert large.num_output_tokens == 5
    assert (desk.cache.stats.pins_given_up, "one" in desk.cache.pins) == (1, False)


def test_a_request_that_grows_pushes_others_out_first() -> None:
    desk = Desk(ATTENTION, ATTENTION.bytes(2048, 0), budget=4096)
    text = pinned(desk, 1024)
    seqs = [desk.send(desk.text(700)), desk.send(desk.text(270))]
    assert finish(desk, seqs, 300) > 0
    assert desk.cache.resident(text) == 1024


@every_shape
def test_with_all_memory_pinned_one_still_runs(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(1024, 4), budget=128)
    for number in range(40):
        text = desk.text(200)
        desk.ask(text)
        desk.cache.pins.add(str(number), text)
    assert desk.cache.stats.pins_given_up > 0
    assert desk.cache.pins.num_bytes <= desk.cache.memory.limit_bytes
    desk.cache.check([])


def test_who_waits_for_memory_is_let_in_when_it_is_unpinned() -> None:
    desk = Desk(LARGE, LARGE.bytes(2048, 4), budget=4096)
    pinned(desk, 1024)
    desk.send(desk.text(500))
    second = desk.send(desk.text(1000))
    desk.step()
    desk.step()
    assert desk.work.num_waiting == 1
    assert desk.work.unpin("one")
    desk.step()
    assert second in desk.work.running
