"""Who gets blocks, who waits for them and who has to give them back."""

from __future__ import annotations

import pytest
from scheduler_steps import decoding, rows, run, scheduler, sequence

from milepost.engine.scheduler import Step
from milepost.errors import RequestError
from milepost.request import Sequence, Status


def test_a_sequence_that_cannot_grow_preempts_the_latest() -> None:
    work = scheduler(num_blocks=6)
    a, b = sequence("a", 30), sequence("b", 16)
    for seq in (a, b):
        work.add(seq)
    while not (step := work.schedule(0.0)).preempted:
        work.advance(step)
        for piece in step.pieces:
            piece.seq.tokens.append(5)
    assert step.preempted == (b,)
    assert [(piece.seq, piece.start) for piece in step.pieces] == [(a, 48)]
    assert len(a.block_table) == 4
    assert (b.status, b.num_computed, b.block_table, b.num_preemptions) == (Status.WAITING, 0, [], 1)
    assert (work.num_running, work.num_waiting) == (1, 1)


def test_the_latest_preempts_itself() -> None:
    work = scheduler(num_blocks=6)
    a, b = sequence("a", 16), sequence("b", 30)
    for seq in (a, b):
        work.add(seq)
    preempted: list[Sequence] = []
    while not preempted:
        step = run(work)
        preempted += step.preempted
    assert preempted == [b]
    assert rows(step) == {"a": 1}


def test_a_preempted_sequence_comes_back_first_and_resumes_from_its_own_blocks() -> None:
    work = scheduler(num_blocks=8)
    a, b, c = sequence("a", 40), sequence("b", 40), sequence("c", 8)
    for seq in (a, b):
        work.add(seq)
    while not run(work).preempted:
        pass
    work.add(c)
    tokens = list(b.tokens)
    assert work.schedule(1.0).pieces[0].seq is a
    work.finish(a, "stop")
    step = run(work, now=2.0)
    assert [piece.seq for piece in step.pieces] == [b, c]
    assert step.pieces[0].start > 0
    assert b.tokens[: len(tokens)] == tokens
    assert (b.first_scheduled_time, c.first_scheduled_time) == (0.0, 2.0)
    assert b.num_cached_tokens == 0  # that counts prompt tokens found at first
    assert work.cache.stats.preempted_hits > 0


def test_who_is_let_in_is_not_preempted_in_the_next_steps() -> None:
    work = scheduler(num_blocks=12)
    running = decoding(work, 3, num_tokens=30)
    work.add(sequence("new", 40))
    while work.num_waiting:
        for seq in running:
            if seq.num_tokens > 50:
                work.finish(seq, "stop")
        run(work)
    for _ in range(16):
        assert not run(work).preempted


def test_the_first_in_line_without_memory_is_not_overtaken() -> None:
    work = scheduler(num_blocks=12)
    work.add(sequence("a", 100))
    run(work)
    work.add(sequence("large", 100))
    work.add(sequence("small", 8))
    for _ in range(10):
        assert rows(run(work)) == {"a": 1}
    work.abort("large")
    assert rows(run(work)) == {"a": 1, "small": 8}


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused() -> None:
    work = scheduler(num_blocks=4)
    with pytest.raises(RequestError, match=r"maximum context length is 64 tokens.*has 64 tokens") as caught:
        work.add(sequence("a", 64))
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    assert not work.has_work
    work.add(sequence("b", 63))


def test_a_sequence_that_fills_the_whole_cache_ends_with_length() -> None:
    work = scheduler(num_blocks=4)
    seq = sequence("a", 63)
    work.add(seq)
    while not (step := run(work)).finished:
        pass
    assert step == Step((), (), (seq,))
    assert (seq.finish_reason, seq.num_tokens, seq.status) == ("length", 65, Status.FINISHED)
    assert not work.has_work
    assert work.cache.available_bytes == 4


def test_ten_requests_that_each_nearly_fill_the_cache_all_finish() -> None:
    work = scheduler(num_blocks=8, budget=50)
    sequences = [sequence(f"r{i}", 100) for i in range(10)]
    for seq in sequences:
        work.add(seq)
    for _ in range(1000):
        for piece in run(work).pieces:
            if piece.seq.num_output_tokens == 20:
                work.finish(piece.seq, "length")
        if not work.has_work:
            break
    assert [seq.num_output_tokens for seq in sequences] == [20] * 10


# Priority


def test_the_lowest_value_is_let_in_first_then_the_earliest() -> None:
    work = scheduler(policy="priority", seats=1)
    order = [("late", 1, 2.0), ("early", 1, 1.0), ("urgent", -3, 3.0), ("idle", 9, 0.0)]
    for name, priority, arrival in order:
        work.add(sequence(name, 8, priority=priority, arrival=arrival))
    seen = []
    while work.has_work:
        (piece,) = run(work).pieces
        seen.append(piece.seq.request_id)
        work.finish(piece.seq, "stop")
    assert seen == ["urgent", "early", "late", "idle"]


def test_the_highest_value_is_preempted_though_it_came_first() -> None:
    work = scheduler(policy="priority", num_blocks=6)
    idle, urgent = sequence("idle", 30, priority=1), sequence("urgent", 30, priority=0)
    for seq in (idle, urgent):
        work.add(seq)
    preempted: list[Sequence] = []
    while not preempted:
        preempted += run(work).preempted
    assert preempted == [idle]


def test_fcfs_ignores_priority() -> None:
    work = scheduler(seats=1)
    work.add(sequence("a", 8, priority=5))
    work.add(sequence("b", 8, priority=-5))
    assert rows(run(work)) == {"a": 8}


def test_with_too_small_a_budget_the_lowest_value_decodes_first() -> None:
    work = scheduler(policy="priority", budget=2)
    idle = [sequence(f"idle{i}", 8, priority=1) for i in range(2)]
    urgent = [sequence(f"urgent{i}", 8, priority=0) for i in range(2)]
    for group in (idle, urgent):
        for seq in group:
            work.add(seq)
        while any(seq.num_output_tokens == 0 for seq in group):
            run(work)
    assert [rows(run(work)) for _ in range(3)] == [{"urgent0": 1, "urgent1": 1}] * 3
