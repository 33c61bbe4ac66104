"""What is kept where messages of a chat begin and end, and where clients set breakpoints."""

from __future__ import annotations

from typing import Any

import pytest
from desk import LARGE, SHAPES, SMALL, STATES, Desk, Shape

from milepost.engine.places import kept
from milepost.request import Sequence

WITH_STATES = [shape for shape in SHAPES if shape.state_bytes]

every_state = pytest.mark.parametrize("shape", WITH_STATES, ids=lambda shape: shape.name)
both_sizes = pytest.mark.parametrize("shape", [LARGE, SMALL], ids=lambda shape: shape.name)
either_place = pytest.mark.parametrize("place", ["boundaries", "breakpoints"])


HEAD = [1, 2, 3, 4, 5]
"""What a template puts before each message."""


class Chat:
    def __init__(self, desk: Desk, num_system: int) -> None:
        self.desk, self.text = desk, desk.text(num_system)
        self.places = [num_system]

    def say(self, num_tokens: int) -> None:
        self._add(self.desk.text(num_tokens))

    def answer(self, num_tokens: int) -> Sequence:
        seq = self.desk.send(self.text + HEAD, boundaries=kept(self.places))
        self.desk.answer(seq, num_tokens)
        self._add(seq.output_token_ids)
        return seq

    def cut(self, num_places: int) -> None:
        """Back to one of its places."""
        del self.places[num_places:]
        self.text = self.text[: self.places[-1]]

    def _add(self, tokens: list[int]) -> None:
        for part in (HEAD, tokens):
            self.text += part
            self.places.append(len(self.text))


def at(name: str, *places: int) -> dict[str, Any]:
    return {name: places}


@every_state
@pytest.mark.parametrize("interval", [0, 1024])
def test_an_edit_of_the_last_message_resumes_where_it_began(shape: Shape, interval: int) -> None:
    desk = Desk(shape, interval=interval)
    for num_system in range(500, 564, 7):
        chat = Chat(desk, num_system)
        chat.say(300)
        chat.answer(100)
        chat.say(200)
        chat.answer(100)
        chat.cut(-3)
        chat.say(150)
        assert chat.answer(1).num_cached_tokens == shape.floor(num_system + 5 + 300 + 5 + 100 + 5)


@every_state
def test_every_message_of_a_chat_that_grew_can_be_edited(shape: Shape) -> None:
    chat = Chat(Desk(shape, interval=0), 300)
    for _ in range(12):
        chat.say(150)
        chat.answer(130)
    for place in range(len(chat.places) - 3, 1, -4):
        chat.cut(place)
        begin = chat.places[-1]
        chat.say(50)
        assert chat.answer(1).num_cached_tokens == shape.floor(begin)


@every_state
@either_place
def test_new_conversations_resume_behind_system_and_tools(shape: Shape, place: str) -> None:
    desk = Desk(shape, interval=0)
    system = desk.text(1000)
    resumed = []
    for _ in range(3):
        seq = desk.send(system + desk.text(400), **at(place, 1000))
        resumed.append(desk.answer(seq).num_cached_tokens)
    assert resumed == [0, 960, 960]


@pytest.mark.parametrize("shape", [LARGE, SMALL, STATES], ids=lambda shape: shape.name)
@either_place
@pytest.mark.parametrize("length", [8192, 40960])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_compaction_resumes_at_a_place(shape: Shape, place: str, length: int, share: float) -> None:
    """Memory holds the keys and values of both, and 16 states of 128 or 640."""
    num_shared, num_fresh = int(length * share), 500
    desk = Desk(shape, shape.bytes(length + 30 + num_fresh + 30, 16), seats=2)
    text = desk.text(length)
    others = (length // 2, *(length - back for back in (900, 600, 300, 20)))
    desk.answer(desk.send(text, **at(place, num_shared, *others)), 30)
    seq = desk.ask(text[:num_shared] + desk.text(num_fresh), 30)
    assert seq.num_cached_tokens >= 0.9 * num_shared


@pytest.mark.parametrize("shape", [LARGE, SMALL, STATES], ids=lambda shape: shape.name)
@pytest.mark.parametrize("length", [2048, 8192, 40960])
def test_compaction_of_a_chat_that_grew(shape: Shape, length: int) -> None:
    """In eight turns, whose first ends a little behind the place; nobody says it again."""
    desk = Desk(shape, shape.bytes(length, 16), seats=1)
    place, text = length // 10, desk.text(length // 8)
    desk.answer(desk.send(text, boundaries=(place,)), 10)
    for _ in range(6):
        text = desk.ask(text + desk.text(length // 8 - 10), 10).tokens
    assert desk.ask(text[:place] + desk.text(200)).num_cached_tokens >= 0.9 * place


# Pressure: that many states are of a kind does not let them push out what is likelier to be asked for


@both_sizes
def test_two_chats_in_turn(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(8 * 4096, 8))
    chats = [Chat(desk, 500), Chat(desk, 500)]
    for chat in chats:
        for _ in range(18):
            chat.say(195)
    for visit in range(5):
        for chat in chats:
            num_before = len(chat.text)
            chat.say(100)
            assert chat.answer(30).num_cached_tokens >= 0.93 * num_before or visit == 0


@both_sizes
def test_a_conversation_after_twenty_others(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(21 * 2048, 30))
    chats = [Chat(desk, 300) for _ in range(21)]
    for chat in chats:
        for _ in range(6):
            chat.say(260)
        chat.answer(63)
    for chat in chats:
        num_known = len(chat.text)
        chat.say(1)
        assert chat.answer(1).num_cached_tokens >= 0.75 * num_known


@both_sizes
def test_chats_beside_many_small_calls(shape: Shape) -> None:
    desk = Desk(shape, shape.bytes(20480, 16), seats=2)
    chats = [Chat(desk, 500) for _ in range(4)]
    for chat in chats:
        for _ in range(8):
            chat.say(300)
        chat.answer(50)
    for _ in range(20):
        for chat in chats:
            chat.say(20)
            seq = chat.answer(30)
            assert seq.num_prompt_tokens - seq.num_cached_tokens < 64 + 20 + 30 + 10
            for _ in range(10):
                side = Chat(desk, 100)
                side.say(160)
                side.answer(30)
