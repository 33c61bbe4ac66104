"""What is at stake when a checkpoint or the tail of a text goes: the facts that `eviction.py` makes an order of.

    a checkpoint   tokens: those back to the checkpoint before it on its path. When it goes, its neighbour stands for
                   more and is worth more: spacing widens with age and with pressure, gradually. A mere grid point
                   serves only those who part before the next checkpoint, and where that is near it counts as little:
                   otherwise it would outlive the message boundary just behind it.
    a tail         the last block of a text that nothing continues. In a model with states the checkpoint at its end
                   goes with it, and what leads there from the checkpoint before is lost too: its tokens and bytes are
                   those of both. A tail behind its last checkpoint is worth next to nothing: nobody can resume there,
                   it only tells where texts part.

The last checkpoint of a text, where the same prompt or the next turn comes back, has the largest bonus: 8, as if it
were 256 times as likely as any one place inside. So a conversation's end does not yield to another's spare checkpoints,
however small they are beside its KV, before those are as far apart as conversations are long. Places where texts part
(junctions, message boundaries) have a small one, those that a client named a larger one; hits tell the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from milepost.cache.eviction import Stake
from milepost.cache.retention import Kind
from milepost.cache.tree import Checkpoint, Node, Tree
from milepost.specs import BLOCK_SIZE, CHUNK

LEAF_BONUS = 8.0
PARTING_BONUS = 2.0
BREAKPOINT_BONUS = 4.0
STRANDED_BONUS = -4.0

_INSIDE_BONUS: Mapping[Kind, float] = {
    "grid": 0.0,
    "end": 0.0,
    "boundary": PARTING_BONUS,
    "junction": PARTING_BONUS,
    "breakpoint": BREAKPOINT_BONUS,
}

Thing = Node | Checkpoint
"""What eviction gives up: the tail of a node that nothing continues, or a checkpoint."""


def stake_of(thing: Thing, tree: Tree, block_bytes: int, checkpoint_bytes: int) -> Stake | None:
    """What `thing` is worth; None: it cannot go, or it is gone."""
    if isinstance(thing, Node):
        idle = block_bytes and not thing.children and thing.held < thing.length
        return _tail(thing, tree, block_bytes, checkpoint_bytes) if idle else None
    if thing.node is None or thing.pins:
        return None
    return Stake(
        _tokens(thing, tree), checkpoint_bytes, thing.last_use, _hits(thing), kind_bonus(thing.kind, thing.is_leaf)
    )


def _tokens(checkpoint: Checkpoint, tree: Tree) -> int:
    """Between its neighbours half as many, if that is less. Looks no further than its node: where texts part somebody
    came back. It rises unannounced, when a neighbour goes, and never falls so."""
    gap, node = tree.gap(checkpoint), checkpoint.node
    if checkpoint.kind != "grid" or node is None or node.checkpoints[-1] is checkpoint:
        return gap
    after = node.checkpoints[bisect_right(node.checkpoints, checkpoint.depth, key=lambda other: other.depth)]
    return min(gap, (gap + after.depth - checkpoint.depth) // 2)


def kind_bonus(kind: Kind, is_leaf: bool) -> float:
    """For how much likelier than elsewhere somebody comes back to such a checkpoint."""
    if kind == "grid":
        return 0.0
    return LEAF_BONUS if is_leaf else _INSIDE_BONUS[kind]


def _tail(node: Node, tree: Tree, block_bytes: int, checkpoint_bytes: int) -> Stake:
    if not checkpoint_bytes:
        return Stake(BLOCK_SIZE, block_bytes, node.last_use, node.hits, PARTING_BONUS if node.end <= CHUNK else 0.0)
    if not node.checkpoints or node.deepest_checkpoint < node.end:
        return Stake(BLOCK_SIZE, block_bytes, node.last_use, bonus=STRANDED_BONUS)
    last = node.checkpoints[-1]
    gap, last_use = tree.gap(last), max(last.last_use, node.last_use)
    num_bytes = checkpoint_bytes + gap // BLOCK_SIZE * block_bytes
    return Stake(gap, num_bytes, last_use, _hits(last), kind_bonus(last.kind, last.is_leaf))


def _hits(checkpoint: Checkpoint) -> int:
    """How often somebody came back there; to the last state of a text, how often to the text that it goes on from."""
    if checkpoint.node is None or not checkpoint.is_leaf:
        return checkpoint.hits
    return max(checkpoint.hits, checkpoint.node.hits)
