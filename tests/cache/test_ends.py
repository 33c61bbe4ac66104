"""Resuming to the token, where a text has ended."""

from __future__ import annotations

import pytest
from trees import compute, sequence

from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.request import Sequence

TEXT = list(range(1000, 2000))
BLOCK, STATE = 16, 64


def cache_with_ends(
    num_ends: int = 4, cuttable: bool = True, block: int = BLOCK, limit: int = 100 * BLOCK + 20 * STATE
) -> PrefixCache:
    return PrefixCache(Memory(limit, block, STATE), num_seqs=2, num_ends=num_ends, cuttable=cuttable)


def leave(cache: PrefixCache, tokens: list[int], answer: int = 0) -> Sequence:
    """Serves a prompt of `tokens`, all but the last `answer` of them, a row at a time from there."""
    seq = sequence(tokens[: len(tokens) - answer])
    cache.admit(seq)
    compute(cache, seq)
    for token in tokens[len(tokens) - answer :]:
        seq.tokens.append(token)
        compute(cache, seq)
    cache.release(seq)
    cache.check([])
    return seq


def resumed(cache: PrefixCache, tokens: list[int]) -> int:
    """How far down they resume, with nothing computed after it."""
    seq = sequence(tokens)
    place = cache.admit(seq)
    cache.check([seq])
    cache.release(seq)
    cache.check([])
    return place


def test_the_same_prompt_again_computes_one_row() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:200])
    assert resumed(cache, TEXT[:200]) == 199


def test_the_next_turn_computes_nothing_again() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:230], answer=10)
    assert resumed(cache, [*TEXT[:230], *[7] * 30]) == 230


def test_a_text_that_parts_from_an_end_resumes_where_it_parts() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:230])
    for place in (193, 200, 208, 229):
        assert resumed(cache, [*TEXT[:place], *[7] * 30]) == place


def test_without_room_for_ends_it_is_the_grid_point() -> None:
    cache = cache_with_ends(num_ends=0)
    leave(cache, TEXT[:230])
    assert resumed(cache, TEXT[:230]) == 192


def test_a_window_that_cannot_be_cut_serves_at_its_end_alone() -> None:
    cache = cache_with_ends(cuttable=False)
    leave(cache, TEXT[:230])
    assert resumed(cache, TEXT[:230]) == 192
    assert resumed(cache, [*TEXT[:229], *[7] * 30]) == 192
    assert resumed(cache, [*TEXT[:230], *[7] * 30]) == 230


def test_short_prompts_resume_from_the_empty_prefix_of_their_own_scope() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:40])
    assert resumed(cache, TEXT[:40]) == 39
    other = sequence(TEXT[:40])
    other.cache_salt = "other"
    assert cache.admit(other) == 0


def test_a_scope_that_knows_no_whole_block() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:7])
    assert resumed(cache, TEXT[:9]) == 7


def test_a_prompt_that_ends_on_the_grid_has_no_rows_behind_it() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:128])
    assert (resumed(cache, TEXT[:128]), resumed(cache, TEXT[:129])) == (64, 128)


def test_the_end_of_a_prompt_stays_when_its_answer_goes_on_for_long() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:400], answer=180)
    assert resumed(cache, TEXT[:220]) == 219
    assert resumed(cache, [*TEXT[:400], 7]) == 400


def test_a_prompt_that_was_read_beyond_its_end_in_one_piece_leaves_none_there() -> None:
    """The window has been written over."""
    cache = cache_with_ends()
    seq = sequence(TEXT[:250])
    cache.admit(seq)
    seq.tokens += TEXT[250:270]  # as after a preemption
    compute(cache, seq)
    cache.release(seq)
    assert resumed(cache, TEXT[:250]) == 192


def test_what_is_copied_is_named_until_the_rows_have_run() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:230])
    seq = sequence([*TEXT[:210], *[7] * 30])
    cache.admit(seq)
    assert seq.copies is not None
    assert seq.copies.window_slot != seq.window_slot
    assert seq.copies.block not in (None, *seq.block_table)
    assert len(seq.block_table) == 13
    compute(cache, seq)
    assert seq.copies is None
    cache.check([seq])


def test_without_keys_and_values_windows_alone_are_copied() -> None:
    cache = cache_with_ends(block=0, limit=20 * STATE)
    leave(cache, TEXT[:230])
    seq = sequence(TEXT[:230])
    assert cache.admit(seq) == 229
    assert seq.copies is not None
    assert seq.copies.block is None
    cache.check([seq])


def test_the_end_that_nobody_used_for_longest_goes() -> None:
    cache = cache_with_ends(num_ends=2)
    texts = [[n, *TEXT[:99]] for n in range(3)]
    leave(cache, texts[0])
    leave(cache, texts[1])
    assert resumed(cache, texts[0]) == 99
    leave(cache, texts[2])
    assert [resumed(cache, text) for text in texts] == [99, 64, 99]


def test_an_end_that_goes_further_takes_the_place_of_a_shorter_one() -> None:
    cache = cache_with_ends(num_ends=2)
    for length in (70, 80, 90, 75):
        leave(cache, TEXT[:length])
    leave(cache, [5, *TEXT[:99]])
    assert resumed(cache, TEXT[:90]) == 89
    assert resumed(cache, [5, *TEXT[:99]]) == 99


def test_with_its_checkpoint_an_end_is_lost() -> None:
    cache = cache_with_ends()
    leave(cache, TEXT[:230])
    cache._store._give_up(next(node for node in cache.tree if node.checkpoints).checkpoints[-1], STATE)
    assert resumed(cache, TEXT[:230]) == 128


def test_a_block_of_an_end_yields_before_a_request_has_to() -> None:
    cache = cache_with_ends(limit=8 * BLOCK + 2 * STATE)
    leave(cache, TEXT[:40])
    seq = sequence([7] * 100)
    cache.admit(seq)
    assert cache.grow(seq, 120)
    cache.check([seq])


def test_nothing_is_copied_where_one_block_more_would_not_fit() -> None:
    cache = cache_with_ends(limit=14 * BLOCK + 3 * STATE)
    leave(cache, TEXT[:200])
    assert resumed(cache, TEXT[:200]) < 199


@pytest.mark.parametrize("aborted", [False, True])
def test_of_a_step_that_never_ended_no_end_is_kept(aborted: bool) -> None:
    cache = cache_with_ends()
    seq = sequence(TEXT[:230])
    cache.admit(seq)
    compute(cache, seq)
    if aborted:
        seq.tokens += TEXT[230:300]
        assert cache.grow(seq, 300)  # its rows may have run, and have begun another window
    cache.release(seq)
    assert resumed(cache, [*TEXT[:230], 7]) == (192 if aborted else 230)


def test_rows_that_are_not_finite_are_in_no_end() -> None:
    cache = cache_with_ends()
    seq = sequence(TEXT[:230])
    cache.admit(seq)
    assert cache.grow(seq, 230)
    seq.num_computed, seq.num_sound = 230, 210
    cache.publish(seq)
    cache.release(seq)
    assert resumed(cache, TEXT[:205]) == 192
