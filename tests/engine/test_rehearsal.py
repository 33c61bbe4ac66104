"""The scheduler's steps without a model."""

from __future__ import annotations

import pytest

from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.rehearsal import rehearse
from milepost.errors import RequestError
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams

TEXT = list(range(1000, 1500))


def sequence(name: str, tokens: list[int]) -> Sequence:
    return Sequence(name, list(tokens), len(tokens), SamplingParams())


def cache_of(limit: int = 10_000) -> PrefixCache:
    return PrefixCache(Memory(limit, 16, 100), num_seqs=4)


def test_each_is_served_to_its_end_and_leaves_its_text_behind() -> None:
    cache = cache_of()
    asked = [sequence(str(length), TEXT[:length]) for length in (300, 10, 200)]
    ended = list(rehearse(cache, asked, max_num_seqs=4, max_num_batched_tokens=128))
    assert {seq.request_id for seq in ended} == {"300", "10", "200"}
    assert cache.resident(TEXT) == 256
    cache.check([])


def test_clients_send_their_next_when_one_is_through() -> None:
    cache = cache_of()
    running: list[int] = []
    asked = (sequence(str(number), [number] * 100) for number in range(9))
    for seq in rehearse(cache, asked, max_num_seqs=4, max_num_batched_tokens=128, num_clients=2):
        running.append(len(cache._holdings))
        assert seq.num_computed == 0
    assert len(running) == 9
    assert max(running) <= 1


def test_an_answer_is_computed_and_known_afterwards() -> None:
    cache = cache_of()

    def answer(seq: Sequence) -> None:
        seq.tokens += TEXT[200:400]

    first, second = sequence("turn 1", TEXT[:200]), sequence("turn 2", TEXT[:450])
    assert list(rehearse(cache, [first], answer, max_num_seqs=4, max_num_batched_tokens=64)) == [first]
    assert list(rehearse(cache, [second], max_num_seqs=4, max_num_batched_tokens=64)) == [second]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 384)


def test_one_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RequestError):
        list(rehearse(cache_of(500), [sequence("long", TEXT)], max_num_seqs=1, max_num_batched_tokens=64))
