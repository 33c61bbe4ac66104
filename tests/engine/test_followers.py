"""Who waits for whom. Most is seen in test_scheduler_reuse.py; here the cases that cost or end a wait."""

from __future__ import annotations

import pytest
from desk import ATTENTION, LARGE, Desk

from milepost.cache import keys
from milepost.engine import followers
from milepost.request import Sequence, Status


def pair(desk: Desk, num_common: int, num_own: int = 100) -> tuple[Sequence, Sequence]:
    prefix = desk.text(num_common)
    return desk.send(prefix + desk.text(num_own)), desk.send(prefix + desk.text(num_own))


def runs(seq: Sequence) -> bool:
    return seq.status is Status.RUNNING


@pytest.mark.parametrize(("num_common", "waits"), [(63, False), (64, True), (127, True), (300, True)])
def test_it_waits_for_one_unit_or_more(num_common: int, waits: bool) -> None:
    desk = Desk(LARGE, budget=2000)
    _, second = pair(desk, num_common)
    desk.step()
    assert runs(second) != waits
    desk.step()
    assert second.num_cached_tokens == (num_common // 64 * 64 if waits else 0)


def test_with_attention_alone_a_block_is_enough() -> None:
    desk = Desk(ATTENTION, budget=2000)
    _, second = pair(desk, 16)
    desk.step()
    assert not runs(second)
    desk.step()
    assert second.num_cached_tokens == 16


def test_it_waits_no_longer_than_until_its_place_is_reached() -> None:
    desk = Desk(LARGE, budget=200)
    _, second = pair(desk, 300, 1000)
    steps = 0
    while not runs(second):
        desk.step()
        steps += 1
    assert steps == 3  # rows 0 to 150 and so on: a quarter of the budget is for whoever waits
    assert second.num_cached_tokens == 256


def test_others_go_ahead_meanwhile() -> None:
    desk = Desk(LARGE, budget=200)
    _, second = pair(desk, 1000)
    third = desk.send(desk.text(20))
    desk.step()
    assert (runs(second), runs(third)) == (False, True)


def test_what_the_leader_does_not_keep_is_not_waited_for() -> None:
    desk = Desk(LARGE, interval=0, budget=2000)
    _, second = pair(desk, 300)
    desk.step()
    assert runs(second)


def test_what_is_known_already_is_not_waited_for() -> None:
    desk = Desk(LARGE, budget=2000)
    prefix = desk.text(640)
    desk.ask(prefix)
    first, second = (desk.send(prefix + desk.text(100)) for _ in range(2))
    desk.step()
    assert runs(first)
    assert runs(second)


@pytest.mark.parametrize("how", ["abort", "unsound"])
def test_the_wait_ends_with_the_leader(how: str) -> None:
    desk = Desk(LARGE, budget=200)
    first, second = pair(desk, 2000)
    desk.step()
    assert not runs(second)
    if how == "abort":
        desk.work.abort(first.request_id)
    else:
        first.num_sound = 100
    desk.step()
    assert runs(second)


def test_whoever_reads_nothing_does_not_wait() -> None:
    desk = Desk(LARGE, budget=2000)
    prefix = desk.text(300)
    desk.send(prefix)
    second = desk.send(prefix, every_row=True)
    desk.step()
    assert runs(second)


def test_the_other_scope_is_not_waited_for() -> None:
    desk = Desk(LARGE, budget=2000)
    prompt = desk.text(300)
    desk.send(prompt)
    second = desk.send(prompt, salt="other")
    desk.step()
    assert runs(second)


def test_each_pair_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()

    def counted(a: bytes, b: bytes) -> int:
        calls.append(1)
        return keys.common_tokens(a, b)

    monkeypatch.setattr(followers, "common_tokens", counted)
    desk = Desk(LARGE, budget=100)
    prefix = desk.text(3000)
    waiting = [desk.send(prefix + desk.text(50)) for _ in range(5)]
    for _ in range(20):
        desk.step()
    assert [runs(seq) for seq in waiting] == [True, False, False, False, False]
    assert len(calls) == 4
