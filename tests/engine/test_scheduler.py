"""The scheduler's rules, one by one. `run` is a step of an engine whose model always says 5."""

from __future__ import annotations

import pytest

from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.scheduler import Piece, Scheduler, Step
from milepost.errors import ConfigError, RequestError
from milepost.request import Sequence, Status
from milepost.sampling_params import SamplingParams


def sequence(
    name: str, num_tokens: int, *, priority: int = 0, arrival: float = 0.0, index: int = 0, first: int = 0
) -> Sequence:
    """A prompt of its own (by `name`, or shared by those with the same `first`)."""
    start = first or 1000 * (hash_of(name) + 1)
    tokens = list(range(start, start + num_tokens))
    return Sequence(name, tokens, num_tokens, SamplingParams(), index=index, priority=priority, arrival_time=arrival)


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode()[-2:], "big")


def scheduler(
    *, num_blocks: int = 1000, budget: int = 100, seats: int = 10, policy: str = "fcfs", cache: PrefixCache | None = None
) -> Scheduler:
    cache = cache or PrefixCache(num_blocks)
    return Scheduler(cache, max_num_batched_tokens=budget, max_num_seqs=seats, policy=policy)


def run(work: Scheduler, now: float = 0.0) -> Step:
    step = work.schedule(now)
    work.advance(step)
    for piece in step.pieces:
        if piece.samples:
            piece.seq.tokens.append(5)
    work.cache.check(work.running)
    return step


def rows(step: Step) -> dict[str, int]:
    return {piece.seq.request_id: piece.end - piece.start for piece in step.pieces}


def decoding(work: Scheduler, num_sequences: int, num_tokens: int = 8) -> list[Sequence]:
    """`num_sequences` that have read their prompts and have one row a step to compute."""
    sequences = [sequence(f"d{i:02}", num_tokens) for i in range(num_sequences)]
    for seq in sequences:
        work.add(seq)
    while any(seq.num_tokens == num_tokens for seq in sequences):
        run(work)
    while any(seq.num_computed + 1 != seq.num_tokens for seq in sequences):
        run(work)
    return sequences


# Pieces


def test_a_prompt_is_read_in_pieces_of_the_budget_and_the_last_one_samples() -> None:
    work = scheduler(budget=30)
    seq = sequence("a", 70)
    work.add(seq)
    steps = [run(work) for _ in range(4)]
    assert [(p.start, p.end, p.samples) for step in steps for p in step.pieces] == [
        (0, 30, False),
        (30, 60, False),
        (60, 70, True),
        (70, 71, True),
    ]


def test_a_piece_remembers_that_it_samples_when_the_token_is_there() -> None:
    seq = sequence("a", 8)
    piece = Piece(seq, 0, 8)
    seq.tokens.append(5)
    assert piece.samples


def test_pieces_end_where_the_cache_says() -> None:
    class Grid(PrefixCache):
        def piece_end(self, seq: Sequence, start: int, limit: int) -> int:
            return min(limit, start // 64 * 64 + 64)

    work = scheduler(budget=1000, cache=Grid(100))
    seq = sequence("a", 150)
    work.add(seq)
    ends = [run(work).pieces[0].end for _ in range(3)]
    assert ends == [64, 128, 150]


def test_blocks_are_findable_only_after_their_rows_have_run() -> None:
    work = scheduler()
    first, second = sequence("a", 64), sequence("b", 64, first=1)
    first.tokens[:] = second.tokens
    work.add(first)
    step = work.schedule(0.0)
    assert work.cache.num_cached_blocks == 0
    work.advance(step)
    assert work.cache.num_cached_blocks == 4
    work.add(second)
    run(work)
    assert second.num_cached_tokens == 48


# Budget


def test_decodes_and_a_prompt_share_a_step() -> None:
    work = scheduler(budget=40)
    decoding(work, 3)
    work.add(sequence("long", 200))
    assert rows(run(work)) == {"d00": 1, "d01": 1, "d02": 1, "long": 37}


@pytest.mark.parametrize("budget", [2, 3, 4, 7, 16])
def test_a_long_prompt_progresses_in_every_step_though_decodes_alone_would_fill_it(budget: int) -> None:
    work = scheduler(budget=budget, seats=21)
    decoding(work, 20)
    long = sequence("long", 60)
    work.add(long)
    while long.num_tokens == 60:
        step = run(work)
        assert rows(step)["long"] >= max(1, budget // 4) or long.num_computed == 60
        assert sum(rows(step).values()) <= budget


@pytest.mark.parametrize("budget", [1, 2, 4, 7, 16])
def test_decodes_above_the_budget_take_turns(budget: int) -> None:
    work = scheduler(budget=budget, seats=21)
    sequences = decoding(work, 20)
    work.add(sequence("long", 500))
    before = [seq.num_computed for seq in sequences]
    for _ in range(40):
        run(work)
    gained = [seq.num_computed - start for seq, start in zip(sequences, before, strict=True)]
    assert max(gained) - min(gained) <= 1
    assert min(gained) >= 1


def test_with_a_budget_of_one_row_both_progress() -> None:
    work = scheduler(budget=1)
    (short,) = decoding(work, 1)
    long = sequence("long", 50)
    work.add(long)
    for _ in range(20):
        assert len(run(work).pieces) == 1
    assert long.num_computed == 10
    assert short.num_output_tokens >= 10


def test_a_giant_prompt_does_not_hold_up_a_short_one() -> None:
    work = scheduler(budget=100)
    work.add(sequence("giant", 5000))
    run(work)
    short = sequence("short", 20)
    work.add(short)
    step = run(work)
    assert short.num_output_tokens == 1
    assert rows(step) == {"giant": 80, "short": 20}  # what the short one leaves is not wasted


def test_each_prompt_behind_a_giant_gets_a_share() -> None:
    work = scheduler(budget=256)
    for name in ("a", "b", "c"):
        work.add(sequence(name, 5000))
    assert rows(run(work)) == {"a": 192, "b": 48, "c": 16}
    assert rows(run(work)) == {"a": 192, "b": 48, "c": 16}


def test_no_more_sequences_run_than_there_are_seats() -> None:
    work = scheduler(seats=2)
    sequences = [sequence(name, 8) for name in "abc"]
    for seq in sequences:
        work.add(seq)
    run(work)
    assert (work.num_running, work.num_waiting) == (2, 1)
    work.finish(sequences[0], "stop")
    assert rows(run(work)) == {"b": 1, "c": 8}


def test_the_first_time_a_sequence_is_scheduled_is_kept() -> None:
    work = scheduler(seats=1)
    a, b = sequence("a", 8), sequence("b", 8)
    work.add(a)
    work.add(b)
    run(work, now=3.5)
    run(work, now=4.5)
    assert (a.first_scheduled_time, b.first_scheduled_time) == (3.5, None)


# Memory


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
    assert work.schedule(0.0).pieces[0].seq is a
    work.finish(a, "stop")
    step = run(work)
    assert [piece.seq for piece in step.pieces] == [b, c]
    assert step.pieces[0].start > 0
    assert b.tokens[: len(tokens)] == tokens
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
    assert work.cache.num_free_blocks == 4


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


# Samples of one request


def test_samples_wait_for_the_first_one_to_read_their_prompt() -> None:
    work = scheduler(budget=40)
    samples = [sequence("a", 60, index=index) for index in range(3)]
    for seq in samples:
        work.add(seq)
    work.add(sequence("other", 8))
    assert rows(run(work)) == {"a": 32, "other": 8}
    assert [piece.seq.index for piece in run(work).pieces if piece.seq.request_id == "a"] == [0]
    step = run(work)
    assert [(p.seq.index, p.start, p.end) for p in step.pieces if p.seq.index] == [(1, 48, 60), (2, 48, 60)]
    assert [seq.num_cached_tokens for seq in samples] == [0, 48, 48]


def test_samples_do_not_wait_for_what_they_may_not_read() -> None:
    work = scheduler(cache=PrefixCache(100, enabled=False))
    for index in range(3):
        work.add(sequence("a", 20, index=index))
    assert len(run(work).pieces) == 3


# Ends


def test_abort_ends_running_and_waiting_sequences_of_a_request() -> None:
    work = scheduler(seats=1)
    samples = [sequence("a", 30, index=index) for index in range(2)]
    other = sequence("b", 8)
    for seq in (*samples, other):
        work.add(seq)
    run(work)
    assert work.abort("a") == samples
    assert {(seq.status, seq.finish_reason) for seq in samples} == {(Status.FINISHED, "abort")}
    assert rows(run(work)) == {"b": 8}
    assert work.abort("a") == []
    assert work.abort("never seen") == []


def test_rows_of_a_sequence_aborted_during_its_step_are_not_published() -> None:
    work = scheduler()
    seq = sequence("a", 40)
    work.add(seq)
    step = work.schedule(0.0)
    work.abort("a")
    work.advance(step)
    assert (work.cache.num_cached_blocks, work.cache.num_free_blocks) == (0, 1000)
    assert not work.has_work


def test_finish_gives_back_the_blocks_and_keeps_the_first_reason() -> None:
    work = scheduler()
    seq = sequence("a", 40)
    work.add(seq)
    run(work)
    work.finish(seq, "stop")
    work.finish(seq, "abort")
    assert (seq.finish_reason, seq.status, work.num_running) == ("stop", Status.FINISHED, 0)
    assert work.cache.num_free_blocks == 1000


def test_a_preempted_sequence_can_be_finished() -> None:
    work = scheduler(num_blocks=6)
    for name in "ab":
        work.add(sequence(name, 30))
    while not (step := run(work)).preempted:
        pass
    work.finish(step.preempted[0], "error")
    assert work.num_waiting == 0
    assert step.preempted[0].finish_reason == "error"


def test_the_same_sequence_is_not_added_twice() -> None:
    work = scheduler()
    seq = sequence("a", 8)
    work.add(seq)
    with pytest.raises(ValueError, match="second time"):
        work.add(seq)
    work.finish(seq, "stop")
    with pytest.raises(ValueError, match="second time"):
        work.add(seq)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="empty"):
        scheduler().add(sequence("a", 0))


def test_nothing_to_do_is_an_empty_step() -> None:
    assert scheduler().schedule(0.0) == Step(())


@pytest.mark.parametrize("wrong", [{"budget": 0}, {"seats": 0}, {"policy": "random"}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        scheduler(**wrong)  # type: ignore[arg-type]
