"""The walk finds books that were falsified by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from trees import compute, sequence, state_cache

from milepost.cache.memory import IntegrityError
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.tree import Checkpoint, Node
from milepost.request import Sequence


def running_pair() -> tuple[PrefixCache, Sequence, Sequence]:
    """Two sequences of 200 tokens that share 128; one known text is kept besides."""
    cache = state_cache(60, 20)
    gone, first, second = (sequence([*range(128), *[token] * 72]) for token in (1, 2, 3))
    for seq in (gone, first, second):
        cache.admit(seq)
        compute(cache, seq)
    assert cache.grow(first, 260)
    cache.keep_states(first)
    cache.release(gone)
    return cache, first, second


def test_right_books_balance() -> None:
    cache, first, second = running_pair()
    assert first.block_table[:8] == second.block_table[:8]
    cache.check([first, second])


def node_of(cache: PrefixCache, seq: Sequence) -> Node:
    hold = cache._holdings[seq].hold
    assert hold is not None
    return hold.node


def upper(cache: PrefixCache, seq: Sequence) -> Node:
    node = node_of(cache, seq).parent
    assert node is not None
    return node


def state_of(cache: PrefixCache, seq: Sequence) -> Checkpoint:
    state = cache._holdings[seq].state
    assert state is not None
    return state


def idle(cache: PrefixCache) -> Node:
    """The tail that nobody holds."""
    return next(node for node in cache._tree if node.length and not node.held)


Falsify = Callable[[PrefixCache, Sequence, Sequence], object]

FALSIFICATIONS: dict[str, Falsify] = {
    "a table lost a shared block": lambda cache, a, b: a.block_table.pop(0),
    "a table lost its own block": lambda cache, a, b: a.block_table.pop(),
    "a table holds a stranger's block": lambda cache, a, b: a.block_table.__setitem__(-1, b.block_table[-1]),
    "a table names no block": lambda cache, a, b: a.block_table.append(999),
    "a block in use is free": lambda cache, a, b: cache.memory.blocks.warm.append(a.block_table[1]),
    "a block in use has no owner": lambda cache, a, b: cache.memory.blocks.take(1),
    "a free block is listed twice": lambda cache, a, b: cache.memory.blocks.warm.append(cache.memory.blocks.cold[0]),
    "a block is marked free": lambda cache, a, b: cache.memory.blocks._in_use.__setitem__(a.block_table[0], 0),
    "a block that is free is in no list": lambda cache, a, b: cache.memory.blocks.warm.pop(),
    "the number in use is wrong": lambda cache, a, b: setattr(cache.memory.slots, "num_used", 1),
    "rows are said to be computed that have no block": lambda cache, a, b: setattr(b, "num_computed", 400),
    "rows of a shared block are not computed": lambda cache, a, b: setattr(a, "num_computed", 31),
    "rows of a shared block are not sound": lambda cache, a, b: setattr(a, "num_sound", 100),
    "a shared block holds other tokens": lambda cache, a, b: a.tokens.__setitem__(20, 9),
    "a state is another's": lambda cache, a, b: setattr(a, "state_slot", b.state_slot),
    "a state is missing": lambda cache, a, b: setattr(a, "state_slot", 0),
    "a state is of another depth": lambda cache, a, b: setattr(state_of(cache, a), "depth", 128),
    "a state is off the grid": lambda cache, a, b: setattr(state_of(cache, a), "depth", 190),
    "a state is in another node": lambda cache, a, b: setattr(state_of(cache, a), "node", node_of(cache, b)),
    "a state is pinned too often": lambda cache, a, b: cache._tree.pin(state_of(cache, a)),
    "a state is not pinned": lambda cache, a, b: cache._tree.unpin(state_of(cache, a)),
    "a planned slot is planned twice": lambda cache, a, b: cache._holdings[a].planned.__setitem__(320, b.state_slot),
    "a past state is planned": lambda cache, a, b: cache._holdings[a].planned.__setitem__(
        64, cache._holdings[a].planned.pop(256)
    ),
    "a window is held twice": lambda cache, a, b: setattr(a, "window_slot", b.window_slot),
    "a window is held and free": lambda cache, a, b: cache._states and cache._states.free_windows.append(a.window_slot),
    "a node lost a block": lambda cache, a, b: node_of(cache, a).blocks.pop(),
    "a node starts elsewhere": lambda cache, a, b: setattr(node_of(cache, a), "start", 112),
    "a node is filed under another's tokens": lambda cache, a, b: upper(cache, a).children.__setitem__(
        node_of(cache, a).key, node_of(cache, b)
    ),
    "a node counts a hold too many": lambda cache, a, b: setattr(upper(cache, a), "below", 3),
    "a node counts held tokens that are not": lambda cache, a, b: setattr(idle(cache), "held", 16),
    "a node lost a hold": lambda cache, a, b: node_of(cache, a).ends.clear(),
    "a node is in another scope": lambda cache, a, b: setattr(node_of(cache, a), "scope", "other"),
    "an empty root is kept": lambda cache, a, b: cache._tree.root("nobody"),
    "the sum of tokens is wrong": lambda cache, a, b: setattr(cache._tree, "num_tokens", 16),
    "the sum of held tokens is wrong": lambda cache, a, b: setattr(cache._tree, "num_held", 16),
    "the number of checkpoints is wrong": lambda cache, a, b: setattr(cache._tree, "num_checkpoints", 1),
    "the number of pinned ones is wrong": lambda cache, a, b: setattr(cache._tree, "num_pinned", 0),
    "checkpoints are out of order": lambda cache, a, b: upper(cache, a).checkpoints.reverse(),
    "what could go is not offered": lambda cache, a, b: cache._store.policy.eviction.withdraw(idle(cache)),
    "more is in use than the limit": lambda cache, a, b: setattr(cache.memory, "limit_bytes", 20),
    "more is resident than the limit": lambda cache, a, b: setattr(
        cache.memory, "limit_bytes", cache.memory.resident_bytes - 1
    ),
}


@pytest.mark.parametrize("name", FALSIFICATIONS)
def test_false_books_do_not(name: str) -> None:
    cache, first, second = running_pair()
    FALSIFICATIONS[name](cache, first, second)
    with pytest.raises(IntegrityError):
        cache.check([first, second])


def test_a_sequence_left_out_or_unknown_is_noticed() -> None:
    cache, first, second = running_pair()
    with pytest.raises(IntegrityError, match="not those expected"):
        cache.check([first])
    cache.release(second)
    with pytest.raises(IntegrityError, match="not those expected"):
        cache.check([first, second])
