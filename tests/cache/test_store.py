"""How room is made: least worth first, no more than is needed, and all that the books say can be had."""

from __future__ import annotations

import random

import pytest
from trees import compute, sequence, serve, state_cache

from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.tree import Checkpoint, Node
from milepost.request import Sequence

TEXT = list(range(1000, 3000))


def depths(cache: PrefixCache) -> list[int]:
    return sorted(point.depth for node in cache._tree for point in node.checkpoints)


def test_states_thin_out_evenly_and_the_end_stays() -> None:
    cache = state_cache(40, 10, state_bytes=160)
    serve(cache, TEXT[:640])
    assert depths(cache) == list(range(64, 641, 64))
    for num_slots, kept in ((5, [128, 256, 384, 512, 640]), (2, [256, 512, 640]), (1, [256, 640]), (1, [640])):
        assert cache._store.take(0, num_slots) is not None
        assert depths(cache) == kept
    assert cache.stats.checkpoints_thinned == 9


def test_a_tail_goes_down_to_what_is_needed_and_takes_its_states_along() -> None:
    cache = state_cache(41, 5, state_bytes=1)
    serve(cache, TEXT[:641])
    assert depths(cache) == [128, 256, 384, 512, 640]
    assert cache._store.take(3, 0) is not None  # one byte is free
    assert (cache.num_cached_tokens, depths(cache)) == (640, [256, 512, 640])
    assert cache._store.take(5, 0) is not None
    assert (cache.num_cached_tokens, depths(cache)) == (640 - 16 * 3, [])
    assert (cache.stats.checkpoints_thinned, cache.stats.checkpoints_stranded, cache.stats.evicted_blocks) == (4, 1, 3)


def test_a_bound_protects_what_is_worth_more() -> None:
    cache = state_cache(40, 2, state_bytes=10)
    serve(cache, TEXT[:600])
    before = cache.num_cached_tokens, depths(cache)
    assert cache._store.take(39, 0, below=-100.0) is None
    assert (cache.num_cached_tokens, depths(cache)) == before


def test_what_is_used_continued_or_gone_may_not_go() -> None:
    cache = state_cache(40, 10)
    store = cache._store

    def things() -> tuple[Node, Checkpoint]:
        node = next(node for node in cache.tree if node.start == 0 and node.length)
        return node, node.checkpoints[-1]

    serve(cache, TEXT[:128])
    node, point = things()
    assert (store.may_go(node), store.may_go(point)) == (True, True)
    seq = sequence(TEXT[:200])
    cache.admit(seq)
    assert (store.may_go(node), store.may_go(point)) == (False, False)
    cache.release(seq)
    assert (store.may_go(node), store.may_go(point)) == (True, True)
    serve(cache, [*TEXT[:128], *[7] * 64])
    serve(cache, [*TEXT[:128], *[8] * 64])
    node, point = things()
    assert (store.may_go(node), store.may_go(point)) == (False, True)
    store.tree.drop(point)
    assert not store.may_go(point)


def test_without_kv_tails_do_not_go_by_themselves() -> None:
    cache = state_cache(0, 20, block_bytes=0)
    serve(cache, TEXT[:128])
    found = [(cache._store.may_go(node), *map(cache._store.may_go, node.checkpoints)) for node in cache.tree]
    assert found == [(False,), (False, True, True)]


@pytest.mark.parametrize("sizes", [(1, 10), (16, 7), (0, 10), (1, 0)])
@pytest.mark.parametrize("seed", range(5))
def test_all_that_is_said_to_be_available_can_be_had_and_no_more(sizes: tuple[int, int], seed: int) -> None:
    rng = random.Random(seed)
    cache = state_cache(120, 8 if sizes[1] else 0, block_bytes=sizes[0], state_bytes=sizes[1])
    running: list[Sequence] = []
    for _ in range(150):
        if len(running) < 8 and rng.random() < 0.5:
            start = rng.choice([0, 0, 500])
            seq = sequence([*TEXT[start : start + rng.randrange(150)], *(rng.randrange(9) for _ in range(90))])
            cache.admit(seq)
            running.append(seq)
        for seq in list(running):
            end = min(len(seq.tokens), seq.num_computed + rng.randint(1, 100))
            if end > seq.num_computed and rng.random() < 0.5 and _grows_as_promised(cache, seq, end):
                compute(cache, seq, end)
            elif rng.random() < 0.3:
                cache.release(seq)
                running.remove(seq)
        cache.check(running)
    assert cache.stats.hits > 0


def _grows_as_promised(cache: PrefixCache, seq: Sequence, end: int) -> bool:
    memory = cache.memory
    blocks = max(0, -(-end // 16) - len(seq.block_table))
    slots = int(memory.checkpoint_bytes > 0 and end // 64 > seq.num_computed // 64)
    fits = blocks * memory.block_bytes + slots * memory.checkpoint_bytes <= cache.available_bytes
    assert cache.grow(seq, end) == fits
    return fits
