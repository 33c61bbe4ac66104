"""What the cache promises to the scheduler. A sequence is `computed` here by moving `num_computed`, as a step does."""

from __future__ import annotations

import pytest

from milepost.cache.block_pool import IntegrityError
from milepost.cache.keys import pack_block
from milepost.cache.prefix_cache import PrefixCache
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams

TEXT = list(range(1000, 1200))


def sequence(tokens: list[int], *, salt: str = "", every_row: bool = False) -> Sequence:
    params = SamplingParams(prompt_logprobs=0 if every_row else None)
    return Sequence("request", list(tokens), len(tokens), params, cache_salt=salt)


def compute(cache: PrefixCache, seq: Sequence, num_tokens: int | None = None) -> None:
    """Rows up to `num_tokens` (None: all) get blocks, run, and are published."""
    num_tokens = len(seq.tokens) if num_tokens is None else num_tokens
    assert cache.grow(seq, num_tokens)
    seq.num_computed = num_tokens
    cache.publish(seq)


def serve(
    cache: PrefixCache, tokens: list[int], *, salt: str = "", every_row: bool = False, beside: tuple[Sequence, ...] = ()
) -> int:
    """A whole life of a sequence, beside others that run; returns the tokens it resumed."""
    seq = sequence(tokens, salt=salt, every_row=every_row)
    resumed = cache.admit(seq)
    compute(cache, seq)
    cache.check([seq, *beside])
    cache.release(seq)
    return resumed


def test_a_second_sequence_resumes_from_whole_blocks_and_shares_them() -> None:
    cache = PrefixCache(20)
    first, second = sequence(TEXT[:50]), sequence(TEXT[:40] + [7] * 10)
    assert cache.admit(first) == 0
    compute(cache, first)
    assert cache.admit(second) == 32
    assert (second.num_computed, second.num_cached_tokens) == (32, 32)
    assert second.block_table == first.block_table[:2]
    compute(cache, second)
    assert set(second.block_table[2:]).isdisjoint(first.block_table)
    assert cache.num_free_blocks == 20 - 4 - 2
    cache.check([first, second])


@pytest.mark.parametrize("num_tokens", range(1, 70))
def test_an_identical_prompt_leaves_at_least_one_token_to_compute(num_tokens: int) -> None:
    cache = PrefixCache(8)
    resumed = [serve(cache, TEXT[:num_tokens]) for _ in range(3)]
    assert resumed == [0] + [(num_tokens - 1) // 16 * 16] * 2


def test_only_computed_full_blocks_are_found() -> None:
    cache = PrefixCache(20)
    seq = sequence(TEXT[:64])
    cache.admit(seq)
    assert cache.grow(seq, 64)
    cache.publish(seq)
    assert serve(cache, TEXT[:64], beside=(seq,)) == 0


def test_a_prompt_read_in_pieces_is_found_piece_by_piece() -> None:
    cache = PrefixCache(20)
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
    cache = PrefixCache(20)
    seq = sequence(TEXT[:20])
    cache.admit(seq)
    for token in TEXT[20:40]:
        compute(cache, seq)
        seq.tokens.append(token)
    cache.release(seq)
    assert serve(cache, TEXT[:40]) == 32


def test_what_continues_a_shared_prefix_is_found_too() -> None:
    cache = PrefixCache(20)
    assert [serve(cache, TEXT[:num_tokens]) for num_tokens in (33, 81, 81)] == [0, 32, 80]


def test_grow_changes_nothing_when_blocks_lack() -> None:
    cache = PrefixCache(4)
    seq = sequence(TEXT[:100])
    cache.admit(seq)
    assert cache.grow(seq, 48)
    table = list(seq.block_table)
    assert not cache.grow(seq, 65)
    assert (seq.block_table, cache.num_free_blocks) == (table, 1)
    assert cache.grow(seq, 40)
    assert seq.block_table == table
    assert cache.grow(seq, 64)
    assert cache.usage == 1.0


def test_release_gives_all_back_and_the_prefix_stays_findable() -> None:
    cache = PrefixCache(10)
    seq = sequence(TEXT[:40])
    cache.admit(seq)
    compute(cache, seq)
    cache.release(seq)
    assert (seq.block_table, seq.num_computed, cache.num_free_blocks, cache.usage) == ([], 0, 10, 0.0)
    assert cache.num_cached_blocks == 2
    assert cache.admit(seq) == 32


def test_released_twice_or_admitted_twice_is_an_error() -> None:
    cache = PrefixCache(10)
    seq = sequence(TEXT[:40])
    cache.admit(seq)
    with pytest.raises(IntegrityError, match="admitted while"):
        cache.admit(seq)
    cache.release(seq)
    with pytest.raises(IntegrityError, match="holds nothing"):
        cache.release(seq)


def test_heads_outlive_tails() -> None:
    cache = PrefixCache(8)
    serve(cache, TEXT[:128])
    for num_taken in range(1, 9):
        taker = sequence([7] * 16 * num_taken)
        cache.admit(taker)
        assert cache.grow(taker, 16 * num_taken)
        cache.check([taker])
        cache.release(taker)
        assert cache.num_cached_blocks == 8 - num_taken
        probe = sequence([*TEXT[:128], 7])
        assert cache.admit(probe) == 128 - 16 * num_taken
        cache.release(probe)


def test_the_prefix_used_least_recently_goes_first() -> None:
    cache = PrefixCache(6)
    old, new = [1] * 33, [2] * 33
    for tokens in (old, new, old):
        serve(cache, tokens)
    serve(cache, [3] * 64)
    assert serve(cache, old) == 32
    assert serve(cache, new) == 0


def test_salts_do_not_share() -> None:
    cache = PrefixCache(20)
    assert [serve(cache, TEXT[:40], salt=salt) for salt in ("a", "b", "", "a", "b", "")] == [0, 0, 0, 32, 32, 32]


def test_a_sequence_that_needs_every_row_reads_nothing_and_fills_the_cache() -> None:
    cache = PrefixCache(20)
    assert serve(cache, TEXT[:40], every_row=True) == 0
    assert serve(cache, TEXT[:40]) == 32
    assert serve(cache, TEXT[:40], every_row=True) == 0
    assert (cache.stats.queries, cache.stats.hits) == (40, 32)


def test_a_disabled_cache_shares_nothing() -> None:
    cache = PrefixCache(20, enabled=False)
    assert [serve(cache, TEXT[:40]) for _ in range(2)] == [0, 0]
    assert cache.num_cached_blocks == 0
    assert (cache.stats.queries, cache.num_free_blocks) == (0, 20)


def test_of_two_equal_blocks_the_published_one_stays_and_the_other_is_private() -> None:
    cache = PrefixCache(20)
    first, second = sequence(TEXT[:40]), sequence(TEXT[:60])
    cache.admit(first)
    cache.admit(second)
    compute(cache, first)
    compute(cache, second)
    cache.check([first, second])
    third = sequence(TEXT[:60])
    assert cache.admit(third) == 48
    assert third.block_table == [*first.block_table[:2], second.block_table[2]]
    cache.check([first, second, third])


def test_a_chain_that_began_in_anothers_blocks_outlives_their_eviction() -> None:
    cache = PrefixCache(7)
    first, second = sequence(TEXT[:32]), sequence(TEXT[:48])
    cache.admit(first)
    cache.admit(second)
    compute(cache, first)
    compute(cache, second, 47)
    cache.release(first)
    taker = sequence([7] * 64)
    cache.admit(taker)
    assert cache.grow(taker, 64)  # takes all that is free, the first one's blocks too
    compute(cache, second, 48)
    cache.check([second, taker])
    cache.release(second)
    assert cache.admit(sequence([*TEXT[:48], 7])) == 48


def test_a_head_computed_twice_outlives_the_tail_of_either() -> None:
    cache = PrefixCache(8)
    first, second = sequence(TEXT[:16]), sequence(TEXT[:64])
    cache.admit(first)
    cache.admit(second)
    compute(cache, first)
    compute(cache, second)
    cache.release(first)
    cache.release(second)
    taker = sequence([7] * 16 * 6)  # 4 empty blocks and the 2 that were released first
    cache.admit(taker)
    assert cache.grow(taker, 96)
    assert cache.admit(sequence([*TEXT[:64], 7])) == 32


def test_colliding_hashes_are_a_miss() -> None:
    cache = PrefixCache(20, hash_function=lambda data: b"collision")
    first = sequence(TEXT[:17])
    cache.admit(first)
    compute(cache, first)
    assert serve(cache, TEXT[50:100], beside=(first,)) == 0
    assert serve(cache, TEXT[:17], salt="other", beside=(first,)) == 0
    assert serve(cache, TEXT[:17], beside=(first,)) == 16


def test_a_block_is_not_found_after_a_stranger_that_took_its_parents_key() -> None:
    """[a, b] is published, a is evicted, and c, which collides with it, takes its key: [c, b] must not find b."""
    a, b, c = [1] * 16, [2] * 16, [3] * 16
    packed_b = pack_block(b, 0)
    cache = PrefixCache(4, hash_function=lambda data: b"of b" if data.endswith(packed_b) else b"of a and c")
    first, other = sequence(a), sequence(a + b)
    cache.admit(first)
    cache.admit(other)
    compute(cache, first)
    compute(cache, other)  # its b continues the a of the first one
    cache.release(first)
    serve(cache, [7] * 32, beside=(other,))  # needs the block of that a
    assert serve(cache, c, beside=(other,)) == 0
    probe = sequence([*c, *b, 7])
    assert cache.admit(probe) == 16


def test_queries_and_hits_are_tokens_and_count_once_rows_have_run() -> None:
    cache = PrefixCache(20)
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
    cache = PrefixCache(20)
    seq = sequence(TEXT[:40])
    cache.admit(seq)
    compute(cache, seq)
    cache.release(seq)
    seq.num_preemptions = 1
    assert cache.admit(seq) == 32
    compute(cache, seq)
    assert (cache.stats.queries, cache.stats.hits) == (40, 0)
    assert (cache.stats.preempted_queries, cache.stats.preempted_hits) == (40, 32)
    assert seq.num_cached_tokens == 0


def test_evicted_blocks_are_counted() -> None:
    cache = PrefixCache(4)
    serve(cache, TEXT[:64])
    serve(cache, [7] * 33)
    assert cache.stats.evicted_blocks == 3


def test_reset_forgets_everything_and_only_when_nothing_runs() -> None:
    cache = PrefixCache(20)
    seq = sequence(TEXT[:40])
    cache.admit(seq)
    compute(cache, seq)
    assert not cache.reset()
    cache.release(seq)
    assert cache.num_cached_blocks == 2
    assert cache.reset()
    assert (cache.num_cached_blocks, cache.num_free_blocks) == (0, 20)
    cache.check([])
    assert serve(cache, TEXT[:40]) == 0


def test_a_piece_of_kv_may_end_anywhere() -> None:
    cache = PrefixCache(4)
    assert [cache.piece_end(sequence(TEXT[:40]), 3, limit) for limit in (4, 17, 40)] == [4, 17, 40]
