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


# States


def test_a_sequence_resumes_at_the_deepest_state_below_the_match() -> None:
    cache = state_cache(100, 20)
    serve(cache, TEXT[:200])
    seq = sequence([*TEXT[:150], *[7] * 20])
    assert cache.admit(seq) == 128
    assert (seq.num_matched_tokens, seq.num_cached_tokens, len(seq.block_table)) == (144, 128, 8)
    assert seq.state_slot > 0
    cache.check([seq])


def test_the_rows_of_a_gap_have_blocks_of_their_own_until_they_are_published() -> None:
    cache = state_cache(100, 20, interval=0)
    first, second = sequence(TEXT[:200]), sequence([*TEXT[:180], *[7] * 20])
    cache.admit(first)
    compute(cache, first)
    cache.admit(second)
    assert second.num_matched_tokens == 176
    assert cache.grow(second, 200)
    assert set(second.block_table).isdisjoint(first.block_table)
    second.num_computed = 200
    cache.publish(second)
    assert second.block_table[:11] == first.block_table[:11]
    cache.check([first, second])


def test_where_a_sequence_leaves_known_text_its_state_is_kept() -> None:
    cache = state_cache(100, 20, interval=0)
    serve(cache, TEXT[:400])
    serve(cache, [*TEXT[:210], *[7] * 100])
    seq = sequence([*TEXT[:205], *[8] * 100])
    assert cache.admit(seq) == 192
    compute(cache, seq)
    assert cache.stats.resumed_from == {"junction": 1}


def test_the_last_state_of_a_step_is_always_written_and_others_as_they_are_wanted() -> None:
    cache = state_cache(100, 20, interval=128)
    seq = sequence(TEXT[:300])
    cache.admit(seq)
    assert cache.grow(seq, 200)
    assert [slot > 0 for slot in seq.grid_slots] == [False, False, True]
    cache.keep_states(seq)
    assert [slot > 0 for slot in seq.grid_slots] == [False, True, True]
    assert cache.grow(seq, 270)  # the step was made longer before it ran
    assert [slot > 0 for slot in seq.grid_slots] == [False, True, False, True]
    cache.check([seq])
    written = seq.grid_slots[3]
    seq.num_computed = 270
    cache.publish(seq)
    assert (seq.state_slot, seq.grid_slots, cache.num_checkpoints) == (written, [], 2)
    cache.check([seq])


def test_a_state_that_nobody_wants_is_the_sequences_own_and_is_given_back() -> None:
    cache = state_cache(100, 20, interval=0)
    seq = sequence(TEXT[:500])
    cache.admit(seq)
    for end in (64, 128, 200, 300):
        compute(cache, seq, end)
        assert (cache.num_checkpoints, cache.memory.slots.num_used) == (0, 1)
    cache.release(seq)
    assert (cache.num_checkpoints, cache.memory.slots.num_used) == (1, 1)
    assert serve(cache, TEXT[:500]) == 256


def test_where_the_tree_has_an_equal_state_the_sequence_goes_on_with_it() -> None:
    cache = state_cache(100, 20)
    first, second = sequence(TEXT[:100]), sequence(TEXT[:130])
    for seq in (first, second):
        cache.admit(seq)
    for seq in (first, second):
        compute(cache, seq, 70)
    assert first.state_slot == second.state_slot
    assert cache.memory.slots.num_used == 1
    cache.check([first, second])


def test_a_release_before_the_step_ran_gives_back_what_was_planned() -> None:
    cache = state_cache(100, 20)
    seq = sequence(TEXT[:300])
    for _ in range(3):
        cache.admit(seq)
        assert cache.grow(seq, 300)
        cache.keep_states(seq)
        cache.release(seq)
        assert (cache.memory.used_bytes, seq.grid_slots, seq.state_slot) == (0, [], 0)
        cache.check([])


def test_rows_that_are_not_sound_are_not_published() -> None:
    for num_sound, found in ((0, 0), (63, 0), (64, 64), (100, 64), (128, 128), (150, 128)):
        cache = state_cache(100, 20)
        seq = sequence(TEXT[:200])
        cache.admit(seq)
        compute(cache, seq, 60)
        seq.num_sound = num_sound
        if num_sound >= 60:
            compute(cache, seq)
            cache.check([seq])
            cache.release(seq)
            assert serve(cache, TEXT[:200]) == found


def test_no_more_sequences_than_windows() -> None:
    cache = PrefixCache(state_cache(20, 4).memory, num_seqs=1)
    cache.admit(sequence(TEXT[:10]))
    with pytest.raises(IntegrityError, match="finds no window"):
        cache.admit(sequence(TEXT[:20]))


def test_without_kv_the_block_table_names_block_0() -> None:
    cache = state_cache(0, 9, block_bytes=0)
    serve(cache, TEXT[:200])
    seq = sequence([*TEXT[:150], 7])
    assert cache.admit(seq) == 128
    compute(cache, seq)
    assert seq.block_table == [0] * 10
    assert cache.memory.blocks.num_used == 0


def test_without_kv_a_text_is_forgotten_with_its_last_state() -> None:
    cache = state_cache(0, 3, block_bytes=0)
    for start in range(0, 900, 90):
        serve(cache, TEXT[start : start + 80])
    assert cache.num_checkpoints <= 3
    assert cache.num_cached_tokens == 64 * cache.num_checkpoints
    cache.check([])


def test_kept_states_take_only_what_costs_nobody_more() -> None:
    """Memory is full of a text that was used since; the states between a new one's ends are worth less."""
    cache = state_cache(64, 3, state_bytes=16)
    serve(cache, TEXT[:640])
    before = cache.stats.evicted_blocks
    seq = sequence([7] * 300)
    cache.admit(seq)
    assert cache.grow(seq, 300)
    evicted = cache.stats.evicted_blocks
    cache.keep_states(seq)
    assert cache.stats.evicted_blocks == evicted >= before
    cache.check([seq])


@pytest.mark.parametrize("num_tokens", [1, 30, 47, 48, 49, 63, 64, 100, 111, 112, 113, 300])
@pytest.mark.parametrize("piece", [1, 16, 64, 300])
def test_bytes_to_come_are_what_a_sequence_takes_at_most(num_tokens: int, piece: int) -> None:
    cache = state_cache(400, 30, interval=0)
    seq = sequence(TEXT[:num_tokens])
    cache.admit(seq)
    promised = cache.bytes_to_come(seq)
    most = 0
    for end in [*range(piece, num_tokens, piece), num_tokens]:
        assert cache.grow(seq, end)
        most = max(most, cache.memory.used_bytes)
        assert most + cache.bytes_to_come(seq) >= cache.memory.used_bytes
        seq.num_computed = end
        cache.publish(seq)
    assert promised - 11 <= most <= promised  # one block, and a state if that reaches the grid, are for what comes


def test_what_others_can_resume_after_a_sequence_is_promised() -> None:
    cache = state_cache(100, 20, interval=128)
    seq = sequence(TEXT[:300], breakpoints=(70,))
    cache.admit(seq)
    assert [cache.promised(seq, n) for n in (63, 100, 128, 200, 260, 300)] == [0, 64, 128, 128, 256, 256]
    seq.num_sound = 200
    assert cache.promised(seq, 300) == 128
    attention = kv_cache(100)
    attention.admit(seq := sequence(TEXT[:100]))
    assert attention.promised(seq, 70) == 64
