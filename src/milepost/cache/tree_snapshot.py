"""The tree of known prefixes at a moment, in numbers: no tokens, and no more than one can look at."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Kind
from milepost.cache.tree import Checkpoint, Node, Scope

MAX_NODES = 200
MAX_CHECKPOINTS = 32
"""Listed of one node."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A recurrent state after `position` tokens. `users`: sequences that go on from it now, and pins."""

    position: int
    kind: Kind
    hits: int
    users: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """Tokens `[start, end)` of one or more known prefixes.

    node         its number here; `parent`: of the node that it continues (None: it starts a prefix)
    scope        the number of the scope: prefixes of two scopes share nothing
    users        sequences that hold all or part of it now
    pinned       how many pinned prefixes reach into it
    num_bytes    of its keys and values and its checkpoints
    checkpoints  by position, at most `MAX_CHECKPOINTS`: those of a special kind first, then the deepest
    """

    node: int
    parent: int | None
    scope: int
    start: int
    end: int
    users: int
    pinned: int
    hits: int
    num_bytes: int
    num_checkpoints: int
    checkpoints: tuple[CheckpointView, ...]


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The nodes with the most bytes in and below them, each after its parent; `num_left_out`: how many are not here."""

    nodes: tuple[NodeView, ...]
    num_nodes: int
    num_scopes: int

    @property
    def num_left_out(self) -> int:
        return self.num_nodes - len(self.nodes)


def tree_snapshot(cache: PrefixCache, scope: Scope | None = None, max_nodes: int = MAX_NODES) -> TreeSnapshot:
    """Of one scope, or of all. Looks at every node there: for whoever asks, not for each step. Whoever calls it owns
    the cache."""
    names = tuple(cache.tree.roots) if scope is None else (scope,) if scope in cache.tree.roots else ()
    scopes = {name: number for number, name in enumerate(names)}
    nodes = [node for node in cache.tree.of_scopes(*names) if node.parent is not None]
    sizes = {id(node): _num_bytes(cache, node) for node in nodes}
    below = dict(sizes)
    for node in reversed(nodes):  # children before their parents
        if id(node.parent) in below:
            below[id(node.parent)] += below[id(node)]
    # A parent weighs at least what its children do, and stands before them: so whatever is chosen hangs together.
    chosen = sorted(range(len(nodes)), key=lambda place: -below[id(nodes[place])])[:max_nodes]
    numbers = {id(nodes[place]): number for number, place in enumerate(sorted(chosen))}
    pinned = cache.pins.reach()
    views = [
        _view(node, numbers, scopes[node.scope], pinned[id(node)], sizes[id(node)])
        for node in nodes
        if id(node) in numbers
    ]
    return TreeSnapshot(tuple(views), len(nodes), len(scopes))


def _view(node: Node, numbers: dict[int, int], scope: int, pinned: int, num_bytes: int) -> NodeView:
    return NodeView(
        node=numbers[id(node)],
        parent=numbers.get(id(node.parent)),
        scope=scope,
        start=node.start,
        end=node.end,
        users=node.below + len(node.ends) - pinned,
        pinned=pinned,
        hits=node.hits,
        num_bytes=num_bytes,
        num_checkpoints=len(node.checkpoints),
        checkpoints=tuple(CheckpointView(c.depth, c.kind, c.hits, c.pins) for c in _listed(node)),
    )


def _listed(node: Node) -> list[Checkpoint]:
    by_importance = sorted(node.checkpoints, key=lambda checkpoint: (checkpoint.kind == "grid", -checkpoint.depth))
    return sorted(by_importance[:MAX_CHECKPOINTS], key=lambda checkpoint: checkpoint.depth)


def _num_bytes(cache: PrefixCache, node: Node) -> int:
    return len(node.blocks) * cache.memory.block_bytes + len(node.checkpoints) * cache.memory.checkpoint_bytes
