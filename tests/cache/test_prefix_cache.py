"""What the cache promises to the scheduler. A sequence is `computed` here by moving `num_computed`, as a step does."""

from __future__ import annotations

import pytest
from trees import compute, kv_cache, sequence, serve, state_cache

from milepost.cache.memory import IntegrityError
from milepost.cache.prefix_cache import PrefixCache
from milepost.request import Miss
from milepost.sampling_params import SamplingParams

TEXT = list(range(1000, 2000))


def test_a_second_sequence_resumes_from_whole_blocks_and_shares_them() -> None:
    cache = kv_cache(20)
    first, second = sequence(TEXT[:50]), sequence(TEXT[:40] + [7] * 10)
    assert cache.admit(first) == 0
    compute(cache, first)
    assert cache.admit(second) == 32
    assert (second.num_computed, second.num_cached_tokens) == (32, 32)
    assert second.block_table == first.block_table[:2]
    compute(cache, second)
    assert set(second.block_table[2:]).isdisjoint(first.block_table)
    assert cache.available_bytes == 20 - 4 - 2
    cache.check([first, second])


@pytest.mark.parametrize("num_tokens", range(1, 70))
def test_an_identical_prompt_leaves_at_least_one_token_to_compute(num_tokens: int) -> None:
    cache = kv_cache(8)
    resumed = [serve(cache, TEXT[:num_tokens]) for _ in range(3)]
    assert resumed == [0] + [(num_tokens - 1) // 16 * 16] * 2


def test_only_computed_full_blocks_are_found() -> None:
    cache = kv_cache(20)
    seq = sequence(TEXT[:64])
    cache.admit(seq)
    assert cache.grow(seq, 64)
    cache.publish(seq)
    assert serve(cache, TEXT[:64], beside=(seq,)) == 0


def test_a_prompt_read_in_pieces_is_found_piece_by_piece() -> None:
    cache = kv_cache(20)
    seq = sequence(TEXT[:64])
    cache.admit(seq)
    found = []
    for num_tokens in (15, 16, 31, 47, 48, 64):
        compute(cache, seq, num_tokens)
        other = sequence([*TEXT[:64], 7])
        found.append(cache.admit(other))
        cache.release(other)
    assert found == [0, 16, 16, 32, 48, 64]


def test_generated_tokens_are_found_too() -> None:
    cache = kv_cache(20)
    seq = sequence(TEXT[:20])
    cache.admit(seq)
    for token in TEXT[20:40]:
        compute(cache, seq)
        seq.tokens.append(token)
    cache.release(seq)
    assert serve(cache, TEXT[:40]) == 32


def test_grow_changes_nothing_when_memory_lacks() -> None:
    cache = kv_cache(4)
    seq = sequence(TEXT[:100])
    cache.admit(seq)
    assert cache.grow(seq, 48)
    table = list(seq.block_table)
    assert not cache.grow(seq, 65)
    assert (seq.block_table, cache.available_bytes) == (table, 1)
    assert cache.grow(seq, 40)
    assert seq.block_table == table
    assert cache.grow(seq, 64)
    assert cache.usage == 1.0


def test_grow_with_a_state_changes_nothing_when_memory_lacks() -> None:
    cache = state_cache(6, 2)
    seq = sequence(TEXT[:200])
    cache.admit(seq)
    assert cache.grow(seq, 60)
    before = list(seq.block_table), list(seq.grid_slots), cache.available_bytes
    assert not cache.grow(seq, 10 * 64)
    assert (seq.block_table, seq.grid_slots, cache.available_bytes) == before
    cache.check([seq])


def test_release_gives_all_back_and_the_prefix_stays_findable() -> None:
    cache = kv_cache(10)
    seq = sequence(TEXT[:40])
    cache.admit(seq)
    compute(cache, seq)
    cache.release(seq)
    assert (seq.block_table, seq.num_computed, cache.available_bytes, cache.usage) == ([], 0, 10, 0.0)
    assert cache.num_cached_tokens == 32
    assert cache.admit(seq) == 32


def test_released_twice_or_admitted_twice_is_an_error() -> None:
    cache = kv_cache(10)
    seq = sequence(TEXT[:40])
    cache.admit(seq)
    with pytest.raises(IntegrityError, match="admitted while"):
        cache.admit(seq)
    cache.release(seq)
    with pytest.raises(IntegrityError, match="holds nothing"):
        cache.release(seq)


def test_heads_outlive_tails() -> None:
    cache = kv_cache(8)
    serve(cache, TEXT[:128])
    for num_taken in range(1, 9):
        taker = sequence([7] * 16 * num_taken)
        cache.admit(taker)
        assert cache.grow(taker, 16 * num_taken)
        cache.check([taker])
        cache.release(taker)
        assert cache.num_cached_tokens == 128 - 16 * num_taken
        assert cache.resumable(sequence([*TEXT[:128], 7])) == 128 - 16 * num_taken


def test_the_prefix_used_least_recently_goes_first() -> None:
    cache = kv_cache(22)
    old, new = [1] * 161, [2] * 161
    for tokens in (old, new, new, old):
        serve(cache, tokens)
    serve(cache, [3] * 100)
    assert cache.resumable(sequence(old)) == 160
    assert cache.resumable(sequence(new)) == 160 - 16 * 5


def test_scopes_do_not_share() -> None:
    cache = kv_cache(20)
    assert [serve(cache, TEXT[:40], salt=salt) for salt in ("a", "b", "", "a", "b", "")] == [0, 0, 0, 32, 32, 32]


def test_a_sequence_that_needs_every_row_reads_nothing_and_fills_the_cache() -> None:
    cache = kv_cache(20)
    assert serve(cache, TEXT[:40], every_row=True) == 0
    assert serve(cache, TEXT[:40]) == 32
    assert serve(cache, TEXT[:40], every_row=True) == 0
    assert (cache.stats.queries, cache.stats.hits) == (40, 32)
    assert cache.stats.misses == {"reading disabled": 2}


def test_a_sequence_that_asks_not_to_read_fills_the_cache_and_counts_as_one_that_did_not_read() -> None:
    for cache in (kv_cache(40), state_cache(40, 10)):
        for resumed in (0, 64):
            unread = sequence(TEXT[:100])
            unread.params = SamplingParams(skip_reading_prefix_cache=True)
            assert (cache.admit(unread), unread.miss) == (0, Miss("reading disabled", 0))
            compute(cache, unread)
            cache.release(unread)
            assert serve(cache, [*TEXT[:70], *[7 + resumed] * 40]) == 64
        assert (cache.stats.queries, cache.stats.hits) == (220, 128)
        assert cache.stats.misses["reading disabled"] == 2


def test_a_preempted_sequence_that_does_not_read_counts_once() -> None:
    cache = kv_cache(20)
    seq = sequence(TEXT[:40], every_row=True)
    for _ in range(2):
        cache.admit(seq)
        compute(cache, seq)
        cache.release(seq)
        seq.num_preemptions += 1
    assert cache.stats.misses == {"reading disabled": 1}
    assert (cache.stats.preempted_queries, cache.stats.preempted_hits) == (0, 0)


def test_a_disabled_cache_shares_nothing() -> None:
    for cache in (kv_cache(20, enabled=False), PrefixCache(state_cache(20, 5).memory, num_seqs=2, enabled=False)):
        seq = sequence(TEXT[:100])
        assert [serve(cache, TEXT[:100]) for _ in range(2)] == [0, 0]
        cache.admit(seq)
        assert seq.miss == Miss("reading disabled", 0)
        assert (cache.num_cached_tokens, cache.num_checkpoints, cache.stats.queries) == (0, 0, 0)
        assert cache.stats.misses == {"reading disabled": 2}, "counted once their rows have run"


def test_of_equal_blocks_the_published_ones_stay_and_the_sequence_goes_on_with_them() -> None:
    cache = kv_cache(20)
    first, second = sequence(TEXT[:40]), sequence(TEXT[:60])
    cache.admit(first)
    cache.admit(second)
    compute(cache, first)
    compute(cache, second)
    assert second.block_table[:2] == first.block_table[:2]
    assert cache.available_bytes == 20 - 3 - 2
    cache.check([first, second])
    assert serve(cache, TEXT[:60], beside=(first, second)) == 48


def test_a_piece_may_end_anywhere() -> None:
    cache = kv_cache(4)
    assert [cache.piece_end(sequence(TEXT[:40]), 3, limit) for limit in (4, 17, 40)] == [4, 17, 40]


def test_queries_and_hits_are_tokens_and_count_once_rows_have_run() -> None:
    cache = kv_cache(20)
    serve(cache, TEXT[:40])
    given_back = sequence(TEXT[:40])
    cache.admit(given_back)
    cache.release(given_back)
    assert (cache.stats.queries, cache.stats.hits) == (40, 0)
    seq = sequence(TEXT[:50])
    cache.admit(seq)
    compute(cache, seq, 40)
    compute(cache, seq, 50)
    assert (cache.stats.queries, cache.stats.hits) == (90, 32)


def test_what_a_preempted_sequence_finds_counts_apart() -> None:
    cache = kv_cache(20)
    seq = sequence(TEXT[:40])
    cache.admit(seq)
    compute(cache, seq)
    cache.release(seq)
    seq.num_preemptions = 1
    assert cache.admit(seq) == 32
    compute(cache, seq)
    assert (cache.stats.queries, cache.stats.hits) == (40, 0)
    assert (cache.stats.preempted_queries, cache.stats.preempted_hits) == (40, 32)
    assert (seq.num_cached_tokens, seq.miss) == (0, Miss("no prefix", 0))


def test_whoever_is_turned_back_before_it_ran_leaves_no_trace_of_use() -> None:
    cache = state_cache(100, 20)
    serve(cache, TEXT[:300])
    (node,) = (node for node in cache._tree if node.length)
    before = [(point.kind, point.hits) for point in node.checkpoints]
    turned_back = sequence([*TEXT[:200], 7])
    cache.admit(turned_back)
    cache.release(turned_back)
    assert ([(point.kind, point.hits) for point in node.checkpoints], node.hits) == (before, 0)
    serve(cache, TEXT[:300])
    assert (node.checkpoints[-1].hits, node.hits) == (1, 1)


def test_evicted_blocks_are_counted() -> None:
    cache = kv_cache(4)
    serve(cache, TEXT[:64])
    serve(cache, [7] * 33)
    assert cache.stats.evicted_blocks == 3


def test_reset_forgets_everything_and_only_when_nothing_runs() -> None:
    cache = state_cache(20, 4)
    seq = sequence(TEXT[:140])
    cache.admit(seq)
    compute(cache, seq)
    assert not cache.reset()
    cache.release(seq)
    assert (cache.num_cached_tokens, cache.num_checkpoints) == (128, 2)
    assert cache.reset()
    assert (cache.num_cached_tokens, cache.num_checkpoints, cache.memory.used_bytes) == (0, 0, 0)
    cache.check([])
    assert serve(cache, TEXT[:140]) == 0
