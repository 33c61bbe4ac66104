"""What is kept when not everything can be, for states that are large beside the KV and for small ones."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from desk import ATTENTION, LARGE, SHAPES, SMALL, STATES, Desk, Shape

from milepost.cache.memory import Memory
from milepost.errors import RequestError
from milepost.request import Status

both_sizes = pytest.mark.parametrize("shape", [LARGE, SMALL], ids=lambda shape: shape.name)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)


@both_sizes
@pytest.mark.parametrize("length", [4096, 32768])
def test_two_chats_in_turn(shape: Shape, length: int) -> None:
    desk = Desk(shape, shape.bytes(8 * length, 8))
    chats = [desk.text(length) for _ in range(2)]
    for visit in range(5):
        for i, chat in enumerate(chats):
            seq = desk.ask(chat, 30)
            assert visit == 0 or seq.num_cached_tokens >= 0.93 * len(chat)
            chats[i] = seq.tokens + desk.text(100)


@both_sizes
def test_more_memory_never_loses_hits(shape: Shape) -> None:
    shares = []
    for step in range(20):
        desk = Desk(shape, shape.bytes(3400 + 600 * step, 4), seats=2)
        chats = [desk.text(500) for _ in range(3)]
        hits = total = 0
        for _ in range(15):
            for i, chat in enumerate(chats):
                seq = desk.ask(chat, 32)
                hits, total = hits + seq.num_cached_tokens, total + len(chat)
                chats[i] = seq.tokens + desk.text(168)
        shares.append(hits / total)
    assert all(more >= less - 0.005 for less, more in pairwise(shares)), shares


@both_sizes
def test_a_conversation_after_twenty_others(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(21 * 2048, 30))
    chats = [desk.ask(desk.text(1984), 63).tokens for _ in range(21)]
    for chat in chats:
        assert desk.ask(chat).num_cached_tokens >= 0.75 * len(chat)


@both_sizes
def test_a_jump_back_in_an_agents_run(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(16384, 12), seats=2)
    text = desk.text(400)
    for _ in range(40):
        text = desk.ask(text, 100).tokens + desk.text(300)
    jump = len(text) // 4
    assert desk.ask(text[:jump] + desk.text(100)).num_cached_tokens >= jump - jump / 8


@both_sizes
def test_chats_beside_many_small_calls(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(20480, 16), seats=2)
    chats = [desk.ask(desk.text(3000), 50).tokens for _ in range(4)]
    for _ in range(20):
        for i, chat in enumerate(chats):
            seq = desk.ask(chat + desk.text(20), 30)
            assert seq.num_prompt_tokens - seq.num_cached_tokens < 64 + 20 + 30
            chats[i] = seq.tokens
            for _ in range(10):
                desk.ask(desk.text(270), 30)


@every_shape
def test_a_request_as_large_as_the_memory_and_one_larger(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(1024, 2), seats=3)
    if shape.block_bytes:
        assert desk.work.max_num_tokens == 1024
        with pytest.raises(RequestError, match="maximum context length is 1024"):
            desk.send(desk.text(1024))
    desk.ask(desk.text(1000))
    seq = desk.ask(desk.text(1023), 1)
    assert seq.num_output_tokens == 1
    desk.cache.check([])


@every_shape
def test_ten_requests_that_do_not_fit_together_all_finish(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(1024, 3), seats=10, budget=300)
    sequences = [desk.send(desk.text(700)) for _ in range(10)]
    for _ in range(2000):
        for piece in desk.step().pieces:
            if piece.seq.num_output_tokens == 100:
                desk.work.finish(piece.seq, "length")
    assert {seq.num_output_tokens for seq in sequences} == {100}


@both_sizes
def test_states_that_are_merely_worth_keeping_send_nobody_away(shape: Shape) -> None:
    """Two sequences that fill the memory between them, with the two states that each needs."""
    desk = Desk(shape, shape.bytes(2 * 528, 4), seats=2, budget=150)
    sequences = [desk.send(desk.text(500)) for _ in range(2)]
    while any(seq.num_output_tokens < 12 for seq in sequences):
        assert not desk.step().preempted
        desk.cache.check(desk.work.running)


def test_the_longest_context_leaves_room_for_its_states() -> None:
    longest = [Desk(Shape("", 16, 100), limit).work.max_num_tokens for limit in (216, 250, 299, 300, 328, 500)]
    assert longest == [112, 127, 127, 127, 128, 288]


def test_a_short_prompt_takes_one_block_and_no_state() -> None:
    desk = Desk(LARGE)
    desk.send(desk.text(12))
    desk.step()
    memory = desk.cache.memory
    assert (memory.blocks.num_used, memory.slots.num_used) == (1, 0)


def test_with_all_states_in_use_another_waits_or_runs_uncached() -> None:
    shape = Shape("", 16, 4000)
    desk = Desk(shape, shape.bytes(4000, 4), seats=4)
    first, second = (desk.send(desk.text(200)) for _ in range(2))
    desk.step()
    text = first.tokens[:200]
    while first.num_output_tokens < 80:
        desk.step()
        desk.cache.check(desk.work.running)
    third = desk.send(text + desk.text(10))
    for _ in range(5):
        desk.step()
        desk.cache.check(desk.work.running)
    for seq in (first, second):
        desk.work.finish(seq, "stop")
    desk.answer(third)
    assert third.status is Status.FINISHED


class CountedMemory(Memory):
    """Counts for itself what was touched and not given back."""

    def __init__(self, limit_bytes: int, shape: Shape) -> None:
        super().__init__(limit_bytes, shape.block_bytes, shape.state_bytes, self._lose)
        self.touched: tuple[set[int], set[int]] = set(), set()
        self.most_bytes = 0

    def take(self, num_blocks: int, num_slots: int) -> tuple[list[int], list[int]] | None:
        taken = super().take(num_blocks, num_slots)
        for touched, numbers in zip(self.touched, taken or (), strict=False):
            touched.update(numbers)
        self.most_bytes = max(self.most_bytes, self.counted_bytes)
        return taken

    @property
    def counted_bytes(self) -> int:
        blocks, slots = self.touched
        return len(blocks) * self.block_bytes + len(slots) * self.checkpoint_bytes

    def _lose(self, blocks: object, slots: object) -> None:
        for touched, numbers in zip(self.touched, (blocks, slots), strict=True):
            assert touched.issuperset(numbers)  # type: ignore[arg-type]
            touched.difference_update(numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [ATTENTION, LARGE, SMALL, STATES], ids=lambda shape: shape.name)
@pytest.mark.parametrize("num_requests", [500, pytest.param(10_000, marks=pytest.mark.full)])
def test_bytes_never_pass_the_limit_and_are_those_reported(shape: Shape, num_requests: int) -> None:
    memory = CountedMemory(shape.bytes(4000, 8), shape)
    desk = Desk(shape, memory=memory, budget=700, seats=6)
    rng = random.Random(num_requests)
    stems = [desk.text(rng.randrange(1500)) for _ in range(20)]
    for request in range(num_requests):
        stem = rng.choice(stems)
        desk.send(stem[: rng.randrange(1, 1500)] + desk.text(rng.choice([1, 10, 100, 500])))
        for _ in range(rng.randrange(4)):
            for piece in desk.step().pieces:
                if piece.seq.num_output_tokens >= int(piece.seq.request_id) % 70 + 1:
                    desk.work.finish(piece.seq, "stop")
            assert memory.counted_bytes == memory.resident_bytes
        if request % 100 == 0:
            desk.cache.check(desk.work.running)
    assert memory.most_bytes <= memory.limit_bytes
    assert memory.most_bytes > 0.9 * memory.limit_bytes
