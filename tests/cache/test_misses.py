from __future__ import annotations

import pytest
from trees import Grove, compute, packed, sequence, serve, state_cache

from milepost.cache.misses import MAX_REMEMBERED, MAX_UNSOUND, Forgotten, Lookup, Unsound, explain
from milepost.request import Miss

TEXT = list(range(1000, 1200))


def miss(
    grove: Grove,
    tokens: list[int],
    resumed: int | None = None,
    forgotten: Forgotten | None = None,
    unsound: Unsound | None = None,
) -> Miss | None:
    """Of a model of attention alone, or, with `resumed`, of one with states."""
    data = packed(tokens)
    node, matched = grove.tree.match("", data, len(tokens) - 1)
    found = Lookup("", data, node, matched, matched if resumed is None else resumed)
    states = resumed is not None
    return explain(found, states=states, forgotten=forgotten or Forgotten(), unsound=unsound or Unsound())


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


def test_rows_that_were_not_finite_are_remembered_by_all_that_leads_to_them() -> None:
    grove, unsound = Grove(), Unsound()
    grove.write(TEXT[:32])
    unsound.add("", packed(TEXT[:60]), 37)
    assert miss(grove, TEXT, unsound=unsound) == Miss("not finite", 37)
    assert miss(grove, [*TEXT[:38], *[7] * 40], unsound=unsound) == Miss("not finite", 37), "what follows is no matter"
    assert miss(grove, [*TEXT[:37], *[7] * 40], unsound=unsound) is None
    assert miss(grove, [7, *TEXT[1:]], unsound=unsound) == Miss("no prefix", 0)
    for row in range(MAX_UNSOUND):
        unsound.add("other", packed(TEXT), row)
    assert miss(grove, TEXT, unsound=unsound) is None


def test_what_is_known_beyond_an_unsound_row_is_not_blamed_on_it() -> None:
    grove, unsound = Grove(), Unsound()
    grove.write(TEXT[:64])
    unsound.add("", packed(TEXT), 37)
    assert miss(grove, [*TEXT[:70], *[7] * 40], unsound=unsound) is None


@pytest.mark.parametrize("block_bytes", [0, 1])
@pytest.mark.parametrize("num_sound", [0, 63, 64, 100, 150])
def test_a_later_sequence_is_told_of_a_row_that_was_not_finite(num_sound: int, block_bytes: int) -> None:
    cache = state_cache(100, 20, block_bytes=block_bytes)
    first = sequence(TEXT)
    cache.admit(first)
    first.num_sound = num_sound
    compute(cache, first)
    cache.release(first)
    for scope, reason in (("", Miss("not finite", num_sound)), ("another", Miss("no prefix", 0))):
        later = sequence(TEXT, salt=scope)
        assert cache.admit(later) == (num_sound // 64 * 64 if not scope else 0)
        assert later.miss == reason
        compute(cache, later)
        cache.release(later)
    assert cache.stats.misses == {"no prefix": 2, "not finite": 1}
    assert cache.reset()
    again = sequence(TEXT)
    cache.admit(again)
    assert again.miss == Miss("no prefix", 0), "after a reset nothing is remembered"


def test_without_keys_and_values_a_tail_that_nobody_could_resume_was_not_evicted() -> None:
    cache = state_cache(100, 20, block_bytes=0)
    serve(cache, TEXT[:100])
    longer = sequence(TEXT)
    assert cache.admit(longer) == 64
    assert longer.miss is None
