"""What is at stake when a checkpoint or the tail of a text goes: the facts that `eviction.py` makes an order of.

    a checkpoint   tokens: those back to the checkpoint before it on its path. When it goes, its neighbour stands for
                   more and is worth more: spacing widens with age and with pressure, gradually.
    a tail         the last block of a text that nothing continues. In a model with states the checkpoint at its end
                   goes with it, and what leads there from the checkpoint before is lost too: its tokens and bytes are
                   those of both. A tail behind its last checkpoint is worth next to nothing: nobody can resume there,
                   it only tells where texts part.

The last checkpoint of a text, where the same prompt or the next turn comes back, has the largest bonus: 8, as if it
were 256 times as likely as any one place inside. So a conversation's end does not yield to another's spare checkpoints,
however small they are beside its KV, before those are as far apart as conversations are long. Places where texts part
have a small one; hits tell the rest.
"""

from __future__ import annotations

from milepost.cache.eviction import Stake
from milepost.cache.retention import Kind
from milepost.cache.tree import Checkpoint, Node, Tree
from milepost.specs import BLOCK_SIZE, CHUNK

LEAF_BONUS = 8.0
PARTING_BONUS = 2.0
STRANDED_BONUS = -4.0

Thing = Node | Checkpoint
"""What eviction gives up: the tail of a node that nothing continues, or a checkpoint."""


def stake_of(thing: Thing, tree: Tree, block_bytes: int, checkpoint_bytes: int) -> Stake | None:
    """What `thing` is worth; None: it cannot go, or it is gone."""
    if isinstance(thing, Node):
        idle = block_bytes and not thing.children and thing.held < thing.length
        return _tail(thing, tree, block_bytes, checkpoint_bytes) if idle else None
    if thing.node is None or thing.pins:
        return None
    return Stake(tree.gap(thing), checkpoint_bytes, thing.last_use, _hits(thing), kind_bonus(thing.kind, thing.is_leaf))


def kind_bonus(kind: Kind, is_leaf: bool) -> float:
    """For how much likelier than elsewhere somebody comes back to such a checkpoint."""
    if kind == "grid":
        return 0.0
    return LEAF_BONUS if is_leaf else 0.0 if kind == "end" else PARTING_BONUS


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
