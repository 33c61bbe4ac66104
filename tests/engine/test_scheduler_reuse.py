"""What is not computed again, with memory in plenty: scenarios in which other engines find little or nothing."""

from __future__ import annotations

import pytest
from desk import ATTENTION, LARGE, SHAPES, STATES, Desk, Shape

from milepost.request import Miss, Sequence, Status

WITH_STATES = [shape for shape in SHAPES if shape.state_bytes]

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
every_state = pytest.mark.parametrize("shape", WITH_STATES, ids=lambda shape: shape.name)


def recomputed(seq: Sequence) -> int:
    return seq.num_prompt_tokens - seq.num_cached_tokens


@every_shape
@pytest.mark.parametrize("interval", [None, 0, 256])
def test_the_same_prompt_resumes_at_its_last_place(shape: Shape, interval: int | None) -> None:
    desk = Desk(shape, interval=interval)
    for num_tokens in range(1, 301):
        prompt = desk.text(num_tokens)
        resumed = [desk.ask(prompt).num_cached_tokens for _ in range(3)]
        assert resumed == [0, *[shape.floor(num_tokens - 1)] * 2]


@every_shape
def test_a_prefix_with_fresh_questions(shape: Shape) -> None:
    desk = Desk(shape)
    prefix = desk.text(480)
    resumed = [desk.ask(prefix + desk.text(40)).num_cached_tokens for _ in range(8)]
    assert resumed == [0, *[shape.floor(480)] * 7]


@every_state
def test_without_a_regular_state_the_third_resumes_where_the_second_left(shape: Shape) -> None:
    desk = Desk(shape, interval=0)
    prefix = desk.text(480)
    asked = [desk.ask(prefix + desk.text(40)) for _ in range(8)]
    assert [seq.num_cached_tokens for seq in asked] == [0, 0, *[448] * 6]
    assert asked[1].miss == Miss("state thinned", 0)
    assert [seq.num_matched_tokens for seq in asked] == [0, *[480] * 7]


@every_state
def test_breakpoints_are_kept_whatever_the_interval(shape: Shape) -> None:
    desk = Desk(shape, interval=0)
    prefix = desk.text(480)
    desk.answer(desk.send(prefix + desk.text(400), breakpoints=(480,)))
    assert desk.ask(prefix + desk.text(40)).num_cached_tokens == 448


@every_shape
@pytest.mark.parametrize("num_shared", [1500, 1600])
def test_groups_in_turn(shape: Shape, num_shared: int) -> None:
    desk = Desk(shape)
    prefixes = [desk.text(num_shared) for _ in range(8)]
    for request in range(64):
        seq = desk.ask(prefixes[request % 8] + desk.text(2200 - num_shared))
        assert seq.num_cached_tokens == (0 if request < 8 else shape.floor(num_shared))


@every_shape
def test_suffixes_of_different_lengths(shape: Shape) -> None:
    desk = Desk(shape)
    prefix = desk.text(6476)
    resumed = [desk.ask(prefix + desk.text(length)).num_cached_tokens for length in (40, 376, 1296)]
    assert resumed == [0, *[shape.floor(6476)] * 2]


@every_shape
def test_later_requests_share_less_and_less(shape: Shape) -> None:
    desk = Desk(shape)
    text = desk.text(6000)
    resumed = [desk.ask(text[:shared] + desk.text(6000 - shared)).num_cached_tokens for shared in (6000, 5120, 4992)]
    assert resumed == [0, 5120, 4992]


@every_shape
def test_each_turn_of_a_chat_computes_what_is_new(shape: Shape) -> None:
    desk = Desk(shape)
    text = desk.text(200)
    for turn in range(30):
        seq = desk.ask(text, 50)
        assert turn == 0 or recomputed(seq) < 64 + 80 + 1  # the last token of an answer was never computed
        text = seq.tokens + desk.text(80)


@every_shape
def test_a_chat_without_its_reasoning_resumes_at_the_end_of_the_last_prompt(shape: Shape) -> None:
    desk = Desk(shape, interval=0)
    prompt, num_before = desk.text(500), 0
    for turn in range(10):
        seq = desk.ask(prompt, 120)
        assert turn == 0 or seq.num_cached_tokens >= shape.floor(num_before)
        num_before, prompt = len(prompt), prompt + seq.output_token_ids[100:] + desk.text(60)


@every_shape
def test_edits_resume_below_the_edit(shape: Shape) -> None:
    desk = Desk(shape)
    text, turns = desk.text(100), []
    for _ in range(8):
        turns.append(len(text))
        text = desk.ask(text, 70).tokens + desk.text(90)
    regenerated = desk.ask(text, 10)
    assert desk.ask(text, 10).num_cached_tokens == shape.floor(len(text) - 1)
    assert regenerated.num_cached_tokens >= shape.floor(len(text) - 90 - 1)
    for place in turns[1:]:
        edited = text[: place - 30] + desk.text(30) + text[place:]
        assert desk.ask(edited).num_cached_tokens == shape.floor(place - 30)
        deleted = text[: place - 160] + text[place:]
        assert desk.ask(deleted).num_cached_tokens >= shape.floor(place - 160)


def rows_of(desk: Desk, *wanted: Sequence) -> int:
    """Steps until all of them sample; the rows that this took."""
    rows = 0
    while any(seq.num_output_tokens == 0 for seq in wanted):
        rows += sum(piece.end - piece.start for piece in desk.step().pieces)
    return rows


@every_shape
@pytest.mark.parametrize("steps_between", [0, 1, 2, 3])
def test_a_prefix_that_another_is_computing_is_computed_once(shape: Shape, steps_between: int) -> None:
    desk = Desk(shape, budget=500)
    prefix = desk.text(2000)
    first = desk.send(prefix + desk.text(100))
    rows = sum(sum(piece.end - piece.start for piece in desk.step().pieces) for _ in range(steps_between))
    second = desk.send(prefix + desk.text(100))
    rows += rows_of(desk, first, second)
    assert second.num_cached_tokens == shape.floor(2000)
    assert rows - first.num_output_tokens + 1 == 2100 + 2100 - shape.floor(2000)


@every_shape
def test_the_prefix_of_a_conversation_that_still_generates_is_found(shape: Shape) -> None:
    desk = Desk(shape)
    first = desk.send(desk.text(300))
    while first.num_output_tokens < 200:
        desk.step()
    second = desk.ask(first.tokens[:450] + desk.text(50))
    assert first.status is Status.RUNNING
    assert second.num_cached_tokens == shape.floor(450)


@every_shape
def test_an_answer_is_found_to_its_last_place(shape: Shape) -> None:
    desk = Desk(shape, interval=0)
    first = desk.ask(desk.text(300), 201)
    assert desk.ask([*first.tokens, 7]).num_cached_tokens == shape.floor(500)


@every_shape
def test_whoever_needs_every_row_reads_nothing_and_fills(shape: Shape) -> None:
    desk = Desk(shape)
    prompt = desk.text(300)
    desk.ask(prompt)
    seq = desk.answer(desk.send(prompt, every_row=True))
    assert (seq.num_cached_tokens, seq.miss) == (0, Miss("reading disabled", 0))
    other = desk.text(300)
    desk.answer(desk.send(other, every_row=True))
    assert desk.ask(other).num_cached_tokens == shape.floor(299)


def test_what_was_aborted_is_found() -> None:
    for shape in SHAPES:
        desk = Desk(shape, budget=200, interval=0)
        prompt = desk.text(1000)
        seq = desk.send(prompt)
        for _ in range(3):
            desk.step()
        desk.work.abort(seq.request_id)
        assert desk.ask(prompt).num_cached_tokens == shape.floor(600)


# Reports


def test_every_miss_has_its_reason() -> None:
    desk = Desk(LARGE)
    text = desk.text(1000)
    reasons = [
        (desk.ask(text).miss, Miss("no prefix", 0)),
        (desk.ask(text).miss, None),
        (desk.ask(text + desk.text(100)).miss, None),
        (desk.ask(text[:500] + desk.text(100)).miss, Miss("diverged", 500)),
        (desk.ask(text[:5] + desk.text(100)).miss, Miss("diverged", 5)),
        (desk.ask(desk.text(64)).miss, Miss("too short", 0)),
        (desk.ask(desk.text(65)).miss, Miss("no prefix", 0)),
    ]
    assert [found for found, _ in reasons] == [expected for _, expected in reasons]
    assert desk.cache.stats.misses == {"no prefix": 2, "diverged": 2, "too short": 1}


def test_what_had_to_make_room_is_called_evicted() -> None:
    for shape in (ATTENTION, LARGE, STATES):
        desk = Desk(shape, shape.bytes(2048, 4), seats=1)
        text = desk.text(1000)
        desk.ask(text)
        for _ in range(10):
            desk.ask(desk.text(1000))
        miss = desk.ask(text).miss
        assert miss is not None
        assert miss.reason == "evicted", shape
