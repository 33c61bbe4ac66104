"""What stays when people come back as they do. A token of KV takes a byte, a state 20."""

from __future__ import annotations

import random

from trees import serve

from milepost.cache.memory import Memory
from milepost.cache.policies import returns
from milepost.cache.prefix_cache import PrefixCache

BLOCK_BYTES, STATE_BYTES = 16, 20


def cache_of(num_tokens: int, num_states: int) -> PrefixCache:
    memory = Memory(num_tokens + num_states * STATE_BYTES, BLOCK_BYTES, STATE_BYTES)
    return PrefixCache(memory, num_seqs=4, policy=returns.build)


def new_text(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(1 << 30) for _ in range(length)]


def test_what_is_never_asked_for_again_does_not_push_out_what_is() -> None:
    """Chats that go on after 30 single requests each, in memory for a third of those."""
    rng, cache = random.Random(0), cache_of(6000, 40)
    chats = [new_text(rng, 500) for _ in range(3)]
    resumed = []
    for _ in range(25):
        for place, chat in enumerate(chats):
            hit = serve(cache, chat)
            resumed.append(hit / len(chat))
            chats[place] = (chat + new_text(rng, 20))[-4000:]
            for _ in range(10):
                serve(cache, new_text(rng, 400))
    assert sum(resumed[-45:]) / 45 > 0.9


def test_a_prompt_that_many_begin_with_stays_whatever_follows_it() -> None:
    rng, cache = random.Random(1), cache_of(3000, 30)
    shared = new_text(rng, 512)
    for _ in range(100):
        hit = serve(cache, shared + new_text(rng, 900))
    assert hit == 512


def test_a_long_text_goes_piece_by_piece() -> None:
    rng, cache = random.Random(2), cache_of(4200, 12)
    text = new_text(rng, 4097)
    serve(cache, text)
    serve(cache, new_text(rng, 513))
    assert cache.resident(text) > 2000


def test_states_amid_a_text_stand_further_apart_the_deeper_they_are() -> None:
    rng, cache = random.Random(3), cache_of(8300, 16)
    text = new_text(rng, 8193)
    serve(cache, text)
    serve(cache, new_text(rng, 65))
    depths = sorted(point.depth for node in cache.tree for point in node.checkpoints if point.depth)
    assert all(cache.resident([*text[:length], 0]) >= 0.5 * length for length in range(130, 8000, 130)), depths


def test_what_is_forgotten_leaves_no_trace() -> None:
    rng, cache = random.Random(4), cache_of(3000, 10)
    for _ in range(200):
        serve(cache, new_text(rng, rng.randrange(100, 900)))
    policy = cache._store.policy.eviction
    assert isinstance(policy, returns.Returns)
    assert len(policy._texts) <= sum(1 for _ in cache.tree)
    assert not policy._turns
    cache.reset()
    assert not policy._texts
    assert not policy._spots
