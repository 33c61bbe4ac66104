"""The scheduler's rules, one by one. Those about memory and priority: test_scheduler_memory.py."""

from __future__ import annotations

import pytest
from scheduler_steps import decoding, kv_cache, rows, run, scheduler, sequence

from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.scheduler import Piece, Step
from milepost.errors import ConfigError, RequestError
from milepost.request import Sequence, Status

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

    work = scheduler(budget=1000, cache=kv_cache(100, cache_type=Grid))
    seq = sequence("a", 150)
    work.add(seq)
    ends = [run(work).pieces[0].end for _ in range(3)]
    assert ends == [64, 128, 150]


def test_blocks_are_findable_only_after_their_rows_have_run() -> None:
    work = scheduler()
    first, second = sequence("a", 64), sequence("b", 64)
    second.tokens[:] = first.tokens
    work.add(first)
    step = work.schedule(0.0)
    assert work.cache.num_cached_tokens == 0
    work.advance(step)
    assert work.cache.num_cached_tokens == 64
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


def test_samples_wait_no_longer_than_for_what_they_can_share() -> None:
    work = scheduler(budget=48)
    for index in range(2):
        work.add(sequence("a", 64, index=index))
    assert [piece.end for piece in run(work).pieces] == [48]
    assert [(piece.seq.index, piece.start, piece.end) for piece in run(work).pieces] == [(0, 48, 64), (1, 48, 64)]


def test_samples_do_not_wait_for_what_they_may_not_read() -> None:
    work = scheduler(cache=kv_cache(100, enabled=False))
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
    assert (work.cache.num_cached_tokens, work.cache.available_bytes) == (0, 1000)
    assert not work.has_work


def test_finish_gives_back_the_blocks_and_keeps_the_first_reason() -> None:
    work = scheduler()
    seq = sequence("a", 40)
    work.add(seq)
    run(work)
    work.finish(seq, "stop")
    work.finish(seq, "abort")
    assert (seq.finish_reason, seq.status, work.num_running) == ("stop", Status.FINISHED, 0)
    assert work.cache.available_bytes == 1000


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
