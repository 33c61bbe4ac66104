"""What the cache promises to the scheduler of models with recurrent layers: states, and what is promised of memory."""

from __future__ import annotations

import pytest
from trees import compute, kv_cache, sequence, serve, state_cache

from milepost.cache.memory import IntegrityError
from milepost.cache.prefix_cache import PrefixCache

TEXT = list(range(1000, 2000))


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
