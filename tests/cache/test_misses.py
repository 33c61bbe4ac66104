from __future__ import annotations

import pytest
from trees import Grove, packed

from milepost.cache.misses import MAX_REMEMBERED, Forgotten, explain
from milepost.request import Miss

TEXT = list(range(1000, 1200))


def miss(
    grove: Grove, tokens: list[int], resumed: int | None = None, forgotten: Forgotten | None = None
) -> Miss | None:
    """Of a model of attention alone, or, with `resumed`, of one with states."""
    data = packed(tokens)
    node, matched = grove.tree.match("", data, len(tokens) - 1)
    states = resumed is not None
    return explain("", data, node, matched, matched if resumed is None else resumed, states, forgotten or Forgotten())


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (TEXT[:16], Miss("too short", 0)),
        ([7] * 17, Miss("no prefix", 0)),
        ([*TEXT[:3], *[7] * 20], Miss("diverged", 3)),
        ([*TEXT[:40], *[7] * 20], Miss("diverged", 40)),
        ([*TEXT[:64], *[7] * 20], Miss("diverged", 64)),
        (TEXT[:100], None),
        (TEXT[:96], None),
        (TEXT, None),
    ],
)
def test_the_reason_and_the_place(tokens: list[int], expected: Miss | None) -> None:
    grove = Grove()
    grove.write(TEXT[:96])
    assert miss(grove, tokens) == expected


def test_with_nothing_known_there_is_no_prefix() -> None:
    assert miss(Grove(), TEXT) == Miss("no prefix", 0)


def test_among_several_texts_the_one_that_agrees_longest_counts() -> None:
    grove = Grove()
    for agreed in (2, 9, 4):
        grove.write([*TEXT[: 64 + agreed], *[agreed] * 16])
    assert miss(grove, [*TEXT[:75], *[77] * 20]) == Miss("diverged", 64 + 9)


def test_with_states_what_lacks_is_the_state() -> None:
    grove = Grove()
    grove.write(TEXT[:160])
    assert miss(grove, TEXT[:161], resumed=64) == Miss("state thinned", 64)
    assert miss(grove, TEXT[:161], resumed=128) is None
    assert miss(grove, TEXT[:64], resumed=0) == Miss("too short", 0)
    assert miss(grove, [*TEXT[:150], *[7] * 20], resumed=128) == Miss("diverged", 150)


def test_what_was_cut_off_is_remembered_for_a_while() -> None:
    grove, forgotten = Grove(), Forgotten()
    hold, _, _ = grove.write(TEXT[:96])
    grove.tree.let_go(hold, 0.0)
    grove.tree.trim(hold.node, 32)
    forgotten.add("", 32, bytes(packed(TEXT[32:48])))
    assert miss(grove, TEXT, forgotten=forgotten) == Miss("evicted", 32)
    assert miss(grove, [*TEXT[:40], *[7] * 40], forgotten=forgotten) is None
    for place in range(MAX_REMEMBERED):
        forgotten.add("other", place, b"")
    assert miss(grove, TEXT, forgotten=forgotten) is None
