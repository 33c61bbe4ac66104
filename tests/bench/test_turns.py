"""Turns, medians, ratios, and which runs do not count."""

from pathlib import Path
from typing import Any

import pytest
from bench.children import ChildError
from bench.measures import REUSE, THROUGHPUT, Measure
from bench.turns import Row, Values, fallen, take_turns
from bench.usual import Usual

RATE = Measure("rate", "prefill", {"tokens": 10})
TIME = Measure("time", "reuse", {"tokens": 10, "shared": 5}, "ms")


class Scripted:
    """A child that gives one answer after the other."""

    def __init__(self, name: str, order: list[str], answers: list[dict[str, Any]]) -> None:
        self.name, self.order, self.answers = name, order, answers
        self.asked: list[tuple[str, dict[str, int]]] = []

    def ask(self, op: str, **arguments: int) -> dict[str, Any]:
        self.order.append(self.name)
        self.asked.append((op, arguments))
        answer = self.answers.pop(0)
        if answer.get("error") == "ended":
            raise ChildError(f"{self.name} has ended")
        return answer


def took(*seconds: float) -> list[dict[str, Any]]:
    return [{"seconds": s, "work": 10} for s in seconds]


def test_turns_alternate() -> None:
    order: list[str] = []
    a, b = Scripted("a", order, took(1, 5, 2)), Scripted("b", order, took(4, 4, 5))
    found = take_turns(RATE, [a, b], 3)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert a.asked == [("prefill", {"tokens": 10})] * 3
    assert found == [Values("a", (10, 2, 5)), Values("b", (2.5, 2.5, 2))]
    assert found[0].median == 5
    assert found[0].spread == pytest.approx(8 / 5)


@pytest.mark.parametrize("answer", [{"error": "cannot"}, {"error": "ended"}])
def test_one_that_fails_is_left_out_and_the_others_go_on(answer: dict[str, Any]) -> None:
    order: list[str] = []
    a, b = Scripted("a", order, took(1, 1, 1)), Scripted("b", order, [*took(1), answer])
    ours, peer = take_turns(RATE, [a, b], 3)
    assert order == ["a", "b", "a", "b", "a"]
    assert len(ours.values) == 3
    assert not peer.values
    assert peer.problem in ("cannot", "b has ended")


def test_a_long_measure_is_repeated_less() -> None:
    a = Scripted("a", [], took(1, 1, 1, 1, 1))
    assert len(take_turns(Measure("m", "burst", {}, max_repeats=2), [a], 5)[0].values) == 2


def test_ratios_say_how_many_times_as_fast_we_are() -> None:
    row = Row(RATE, Values("us", (30,)), (Values("x", (10,)), Values("y", (20,)), Values("z", problem="broken")))
    assert row.ratios() == {"x": 3, "y": 1.5}
    assert row.fastest() == "y"
    times = Row(TIME, Values("us", (10,)), (Values("x", (30,)), Values("y", (20,))))
    assert times.ratios() == {"x": 3, "y": 2}
    assert times.fastest() == "y"
    assert Row(RATE, Values("us", problem="broken"), (Values("x", (1,)),)).fastest() is None


def test_a_peer_below_nine_tenths_of_its_usual_rate_voids_a_row() -> None:
    peers = (Values("slow", (89,)), Values("as ever", (91,)), Values("new", (1,)), Values("none", problem="p"))
    usual = {"slow": 100.0, "as ever": 100.0, "none": 100.0}
    assert fallen(RATE, peers, usual) == ("slow",)
    assert fallen(TIME, (Values("slow", (112,)), Values("as ever", (110,))), usual) == ("slow",)


def test_what_is_usual_is_the_best_so_far_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "new" / "usual.json"
    Usual(path).learn("shape", RATE, [Values("x", (10, 12)), Values("y", problem="p")])
    Usual(path).learn("shape", RATE, [Values("x", (9,)), Values("y", (3,))])
    Usual(path).learn("shape", TIME, [Values("x", (10,))])
    Usual(path).learn("shape", TIME, [Values("x", (9,))])
    Usual(path).learn("other", RATE, [Values("x", (99,))])
    assert Usual(path).of("shape", RATE) == {"x": 11, "y": 3}
    assert Usual(path).of("shape", TIME) == {"x": 9}
    assert Usual(path).of("none", RATE) == {}


def test_measures_shrink_to_what_still_works() -> None:
    for measure in (*THROUGHPUT, *REUSE):
        small = measure.shrunk(10**6)
        assert all(1 <= value <= 4 for value in small.arguments.values())
        assert measure.shrunk(1).arguments == measure.arguments
    parted = REUSE[1].shrunk(8).arguments
    assert parted["shared"] < parted["tokens"]
