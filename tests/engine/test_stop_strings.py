"""Stop strings in pieces of text, against a search that sees the whole text."""

import random

import pytest

from milepost.engine.stop_strings import StopStrings


def cut(text: str, stops: list[str], include: bool = False, first: int = 0) -> tuple[str, str | None]:
    """The definition: the first end at which a stop string is complete (not before `first`), the longest one there."""
    for end in range(first, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended and end > 0:
            stop = max(ended, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def shown(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    watcher = StopStrings(stops, include)
    return "".join(map(watcher.push, pieces)) + watcher.flush(), watcher.found


def pieces_of(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("alphabet", ["ab", "abc", "a\n#é😀"])
def test_random_texts_against_the_definition(alphabet: str) -> None:
    rng = random.Random(alphabet)
    found = 0
    for _ in range(3000):
        text = "".join(rng.choice(alphabet) for _ in range(rng.randrange(25)))
        stops = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(4))]
        include = rng.random() < 0.5
        expected = cut(text, stops, include)
        assert shown(pieces_of(text, rng), stops, include) == expected, (text, stops)
        found += expected[1] is not None
    assert 500 < found < 2900


def test_what_may_become_a_stop_string_is_held_back_and_no_more() -> None:
    watcher = StopStrings(["\n\nUser:", "END"])
    assert watcher.push("Hello\n") == "Hello"
    assert watcher.push("world EN") == "\nworld "
    assert watcher.push("E\n\nUs") == "ENE"
    assert watcher.push("ers") == "\n\nUsers"
    assert watcher.push("\n\nUser") == ""
    assert watcher.push(": no") == ""
    assert watcher.found == "\n\nUser:"
    assert watcher.push("more") == ""
    assert watcher.flush() == ""


def test_what_was_held_back_comes_at_the_end() -> None:
    watcher = StopStrings(["END"])
    assert watcher.push("the EN") == "the "
    assert watcher.flush() == "EN"
    assert watcher.flush() == ""
    assert watcher.found is None


def test_the_first_to_be_complete_wins_then_the_longest() -> None:
    assert shown(["xabcd"], ["abcd", "bc"]) == ("xa", "bc")
    assert shown(["xabc"], ["bc", "abc", "c"]) == ("x", "abc")
    assert shown(["x", "a", "b", "c"], ["bc", "abc", "c"]) == ("x", "abc")


def test_nothing_is_held_back_if_the_stop_string_is_shown_anyway() -> None:
    watcher = StopStrings(["END"], include_in_output=True)
    assert watcher.push("the E") == "the E"
    assert watcher.push("ND of it") == "ND"
    assert watcher.found == "END"


def test_stop_strings_may_be_told_not_to_count_yet() -> None:
    watcher = StopStrings(["aa"])
    assert watcher.push("xaa", may_stop=False) == "xa"  # the last one may begin another
    assert watcher.push("b", may_stop=False) == "ab"
    assert watcher.push("ca", may_stop=False) == "c"
    assert watcher.push("a") == ""
    assert watcher.found == "aa"


def test_no_stop_strings() -> None:
    assert shown(["a", "", "b"], []) == ("ab", None)


def test_the_cost_is_linear_even_in_texts_that_all_but_match() -> None:
    """Each character is compared at most twice over: a counter in place of a clock."""

    class Counting(str):
        comparisons = 0

        def __getitem__(self, i: object) -> str:
            Counting.comparisons += 1
            return str.__getitem__(self, i)  # type: ignore[index]

    watcher = StopStrings([Counting("a" * 500 + "b")])
    Counting.comparisons = 0
    for _ in range(5000):
        watcher.push("a")
    assert Counting.comparisons < 4 * 5000
