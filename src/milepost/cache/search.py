"""What is known of some tokens, and how far down it can be resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from milepost.cache.ends import End
from milepost.cache.store import Store
from milepost.cache.tree import Checkpoint, Node, Packed, Scope
from milepost.specs import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a sequence's tokens: the first `matched`, up to a place in `node`, of which `resumed` need not
    be computed. They are resumed at `checkpoint`, or further down in `end`; there `block`, in `block_node` if it is
    the tree's, holds the rows since the last block boundary."""

    node: Node | None = None
    matched: int = 0
    resumed: int = 0
    checkpoint: Checkpoint | None = None
    end: End | None = None
    block: int | None = None
    block_node: Node | None = None


class Search:
    """In two steps: where there are states, which is on the grid, and behind them, where texts have ended."""

    def __init__(self, store: Store) -> None:
        self._tree, self._ends, self._memory = store.tree, store.ends, store.memory

    def at_states(self, scope: Scope, packed: Packed, limit: int) -> Found:
        """The longest known prefix of the first `limit` packed tokens, and the deepest checkpoint in it; without states
        all of it can be resumed."""
        node, matched = self._tree.match(scope, packed, limit)
        if not self._memory.checkpoint_bytes:
            return Found(node, matched, matched)
        checkpoint = self._tree.deepest(node, matched)
        return Found(node, matched, checkpoint.depth if checkpoint else 0, checkpoint)

    def behind(self, found: Found, scope: Scope, packed: Packed, limit: int) -> Found:
        """The same, further down where a text that has ended goes on from `found.checkpoint` with the same tokens."""
        best = self._ends.find(found.checkpoint or scope, found.resumed, packed, limit)
        if best is None:
            return found
        end, resumed = best
        whole = resumed // BLOCK_SIZE * BLOCK_SIZE
        if not self._memory.block_bytes:
            return replace(found, resumed=resumed, end=end)
        if found.matched < whole:
            return found
        if resumed == whole:
            return replace(found, resumed=resumed, end=end)
        if end.block is not None and whole == end.end // BLOCK_SIZE * BLOCK_SIZE:
            return replace(found, resumed=resumed, end=end, block=end.block)
        node = found.node
        known = None if node is None else self._tree.block_like(node, found.matched, packed, resumed)
        if known is not None:
            return replace(found, resumed=resumed, end=end, block=known[1], block_node=known[0])
        return replace(found, resumed=whole, end=end) if whole > found.resumed and self._ends.cuttable else found
