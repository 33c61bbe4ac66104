from __future__ import annotations

from typing import Any

import pytest
from toy_tokenizers import ALL, byte_level

from milepost.engine.places import MAX_PLACES, NOWHERE, Places, in_tokens, kept, read_breakpoints
from milepost.errors import RequestError

TEXT = "the Paris é 😀 the\n\nthe <|im_start|>the é"


def test_of_many_places_the_first_two_and_the_last_count() -> None:
    assert kept([30, 10, 20, 10]) == (10, 20, 30)
    assert kept(range(1000)) == (0, 1, *range(1000 - MAX_PLACES + 2, 1000))
    assert len(kept(range(MAX_PLACES))) == MAX_PLACES


def test_places_that_are_not_known_or_have_no_tokens_before_them_are_left_out() -> None:
    known = {1: 0, 2: 1, 3: None, 4: 1}
    assert in_tokens(Places((1, 2, 3), (4,)), known.__getitem__) == Places((1,), (1,))
    assert not NOWHERE.boundaries


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_lie_wholly_before_a_place(make: Any, special: bool) -> None:
    tokenizer = make()
    ids = tokenizer.encode(TEXT, special)
    ends = [end for _, end in tokenizer._backend.encode(TEXT, add_special_tokens=special).offsets]
    for place in range(1, len(TEXT) + 1):
        found_ids, found = tokenizer.encode_with(Places((place,), (place,)), TEXT, special)
        assert found_ids == ids
        assert found.boundaries == found.breakpoints
        count = found.boundaries[0] if found.boundaries else 0
        assert all(end <= place for end in ends[:count])
        assert count == len(ids) or ends[count] > place


def test_a_place_inside_a_token_or_a_character_of_several_is_before_it() -> None:
    tokenizer = byte_level()
    ids, found = tokenizer.encode_with(Places((1, 2, 3, 5), ()), "the 😀s")
    assert [tokenizer.token_text(token) for token in ids[:3]] == ["t", "he", " "]
    assert found.boundaries == (1, 2, len(ids) - 1)


def test_breakpoints_as_clients_say_them() -> None:
    assert read_breakpoints(None, 10) == read_breakpoints([], 10) == ()
    assert read_breakpoints([1, 5, 10], 10) == (1, 5, 10)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (5, "a list"),
        ("12", "a list"),
        ([1, "2"], "a list"),
        ([True], "a list"),
        ([1.0], "a list"),
        ({1: 2}, "a list"),
        ([0], "outside"),
        ([-1], "outside"),
        ([11], "outside"),
        ([5, 3], "ascend"),
        ([5, 5], "ascend"),
        (list(range(1, 18)), "17 places"),
    ],
)
def test_breakpoints_that_are_wrong(value: Any, problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as caught:
        read_breakpoints(value, 10)
    assert (caught.value.status, caught.value.param) == (400, "cache_breakpoints")
    assert caught.value.hint
