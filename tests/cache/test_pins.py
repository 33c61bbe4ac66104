"""Prefixes that eviction cannot have."""

from __future__ import annotations

import logging

import pytest
from trees import compute, kv_cache, sequence, serve, state_cache

from milepost.cache.memory import IntegrityError, Memory
from milepost.cache.prefix_cache import PrefixCache

TEXT = list(range(1000, 2000))


def states_alone(num_states: int) -> PrefixCache:
    return PrefixCache(Memory(num_states * 10, 0, 10), num_seqs=10)


def resumes(cache: PrefixCache, tokens: list[int]) -> int:
    """Tokens that a longer text resumes, by both ways to ask."""
    assert cache.resident(tokens) == cache.resumable(sequence([*tokens, 7]))
    return cache.resident(tokens)


@pytest.mark.parametrize(("cache", "left"), [(state_cache(40, 6), 128), (kv_cache(40), 144), (states_alone(6), 128)])
def test_what_is_pinned_outlives_all_others(cache: PrefixCache, left: int) -> None:
    serve(cache, TEXT[:200])
    assert cache.pins.add("one", TEXT[:150]) == 144
    for start in range(20):
        serve(cache, [start] * 300)
        assert resumes(cache, TEXT[:150]) == left
    assert resumes(cache, TEXT[:200]) == left, "what lies behind is no part of it"
    assert cache.pins.remove("one")
    for start in range(20):
        serve(cache, [start + 50] * 300)
    assert resumes(cache, TEXT[:150]) == 0
    cache.check([])


def test_it_counts_as_held() -> None:
    cache = state_cache(40, 6)  # a block takes a byte, a state ten
    serve(cache, TEXT[:200])
    assert cache.available_bytes == cache.memory.limit_bytes == 100
    cache.pins.add("one", TEXT[:150])
    assert (cache.pins.num_bytes, cache.available_bytes) == (9 + 10, 81)
    assert cache.usage == pytest.approx(0.19)
    cache.pins.remove("one")
    assert (cache.pins.num_bytes, cache.available_bytes) == (0, 100)


def test_what_two_share_counts_once() -> None:
    cache = state_cache(100, 20)
    serve(cache, TEXT[:200])
    serve(cache, [*TEXT[:96], *range(100)])
    assert [cache.pins.add(name, tokens) for name, tokens in (("a", TEXT[:200]), ("b", [*TEXT[:96], *range(100)]))]
    assert cache.pins.add("c", TEXT[:80]) == 80
    assert cache.pins.num_bytes == 12 + 6 + 3 * 10
    cache.check([])
    cache.pins.remove("a")
    assert cache.pins.num_bytes == 12 + 2 * 10
    cache.pins.remove("b")
    assert cache.pins.num_bytes == 5 + 10
    cache.check([])


def test_a_pin_of_the_same_name_takes_its_place() -> None:
    cache = kv_cache(40)
    serve(cache, TEXT[:200])
    assert (cache.pins.add("one", TEXT[:50]), cache.pins.add("one", TEXT[:100])) == (48, 96)
    assert cache.pins.num_bytes == 6
    assert cache.pins.add("one", [7] * 100) == 0, "nothing is known of these"
    assert (cache.pins.num_bytes, "one" in cache.pins, cache.pins.remove("one")) == (0, False, False)
    cache.check([])


def test_it_is_shared_and_gone_on_from_like_any_other() -> None:
    cache = state_cache(200, 20)
    serve(cache, TEXT[:130])
    cache.pins.add("one", TEXT[:130])
    seq = sequence(TEXT[:300])
    assert cache.admit(seq) == 128
    compute(cache, seq)
    cache.check([seq])
    cache.release(seq)
    assert resumes(cache, TEXT[:300]) == 256
    cache.check([])


def test_the_latest_gives_way_first_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    cache = kv_cache(40)
    for name, start in (("a", 0), ("b", 300)):
        serve(cache, TEXT[start : start + 100])
        cache.pins.add(name, TEXT[start : start + 100])
    with caplog.at_level(logging.WARNING):
        assert cache.pins.give_up()
    assert caplog.messages == ["b, of 96 tokens, is pinned no more: one request needs its memory"]
    assert ("a" in cache.pins, "b" in cache.pins, cache.stats.pins_given_up) == (True, False, 1)
    assert cache.pins.give_up()
    assert not cache.pins.give_up()
    assert cache.stats.pins_given_up == 2
    cache.check([])


def test_reset_forgets_them() -> None:
    cache = state_cache(40, 6)
    serve(cache, TEXT[:200])
    cache.pins.add("one", TEXT[:150])
    assert cache.reset()
    assert ("one" in cache.pins, cache.pins.num_bytes, cache.available_bytes) == (False, 0, 100)
    cache.check([])


def test_the_walk_looks_at_them() -> None:
    cache = state_cache(40, 6)
    serve(cache, TEXT[:200])
    cache.pins.add("one", TEXT[:150])
    (pin,) = cache.pins
    assert pin.checkpoint is not None
    cache._tree.unpin(pin.checkpoint)
    with pytest.raises(IntegrityError, match="counts 0 pins, not 1"):
        cache.check([])


@pytest.mark.parametrize(("num_tokens", "num_bytes"), [(15, 0), (63, 3), (64, 14), (200, 22)])
def test_bytes_of_a_prefix(num_tokens: int, num_bytes: int) -> None:
    assert state_cache(40, 6).memory.prefix_bytes(num_tokens) == num_bytes
