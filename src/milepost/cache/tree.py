"""Known prefixes as a tree of runs of blocks, with the checkpoints along them and who holds what."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from milepost.cache.keys import BLOCK_BYTES, TOKEN_BYTES, common_blocks
from milepost.cache.memory import IntegrityError
from milepost.cache.retention import Kind
from milepost.specs import BLOCK_SIZE

Scope = str | bytes
"""Who may share: prefixes of different scopes have nothing in common, not even the root."""

Packed = bytes | bytearray


@dataclass(slots=True, eq=False)
class Checkpoint:
    """The recurrent state after the first `depth` tokens of the path to `node`, in `slot`. `pins`: sequences that start
    from it now, and prefixes that are pinned with it; `hits`: that have done so. `node` is None once it is gone."""

    node: Node | None
    depth: int
    slot: int
    kind: Kind
    last_use: float
    in_answer: bool = False
    hits: int = 0
    pins: int = 0
    entry: int = 0

    @property
    def is_leaf(self) -> bool:
        """Whether nothing is known to go on from a later state."""
        return self.node is not None and self.node.checkpoints[-1] is self and not self.node.children


@dataclass(slots=True, eq=False)
class Hold:
    """The claim of a sequence, or of a pinned prefix, on the first `depth` tokens of the path to `node`, which contains
    that place."""

    node: Node
    depth: int


@dataclass(slots=True, eq=False)
class Node:
    """Tokens `[start, end)` of one or more prefixes, whole blocks; `blocks` are empty for models without KV. The root
    of a scope has none of either.

    children     what continues it, by the first block's packed tokens
    checkpoints  by depth, each in (start, end]
    ends         the holds that end in it; `below`: how many end further down; `held`: tokens that one or more hold
    hits         how many sequences have found all of it
    """

    parent: Node | None
    scope: Scope
    start: int
    tokens: bytearray = field(default_factory=bytearray)
    blocks: list[int] = field(default_factory=list)
    last_use: float = 0.0
    children: dict[bytes, Node] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    ends: set[Hold] = field(default_factory=set)
    below: int = 0
    held: int = 0
    hits: int = 0
    entry: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens) // TOKEN_BYTES

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def key(self) -> bytes:
        return bytes(self.tokens[:BLOCK_BYTES])

    @property
    def deepest_checkpoint(self) -> int:
        """Depth of its last checkpoint; its start if it has none."""
        return self.checkpoints[-1].depth if self.checkpoints else self.start

    @property
    def is_stranded(self) -> bool:
        """Whether it goes on behind its last checkpoint, so that nobody can resume at its end."""
        return not self.checkpoints or self.deepest_checkpoint < self.end


class Listener(Protocol):
    """Is told what may go now or is worth less than before, and what is gone."""

    def offer(self, thing: Node | Checkpoint) -> None: ...

    def withdraw(self, thing: Node | Checkpoint) -> None: ...


class Tree:
    """A tree for each scope. Ranges are compared and moved, so the work is in the number of segments, not of blocks.

        root --- [0, 480) --+-- [480, 2000)         two conversations that part after 480 tokens,
                            +-- [480, 1120) ...     the second still growing: extended in place

    Depths are counted in tokens. Nodes are split at block boundaries, where sequences part; a hold may end anywhere in
    a node, and what lies behind all holds can be trimmed. Nothing is freed here: what is dropped is handed back.
    """

    def __init__(self, listener: Listener) -> None:
        self.roots: dict[Scope, Node] = {}
        self.num_tokens = self.num_held = 0
        self.num_checkpoints = self.num_pinned = 0
        self._listener = listener

    def root(self, scope: Scope) -> Node:
        if scope not in self.roots:
            self.roots[scope] = Node(None, scope, 0)
        return self.roots[scope]

    def match(self, scope: Scope, packed: Packed, limit: int) -> tuple[Node | None, int]:
        """The longest known prefix of the packed tokens, at most `limit` tokens: the node it ends in (None: of that
        scope nothing is known) and its length, whole blocks."""
        node, depth = self.roots.get(scope), 0
        while node is not None and limit - depth >= BLOCK_SIZE:
            node, equal = self._follow(node, depth, packed, limit)
            if not equal:
                break
            depth += equal
        return node, depth

    @staticmethod
    def deepest(node: Node | None, depth: int) -> Checkpoint | None:
        """The deepest checkpoint at or below `depth` on the path to `node`."""
        while node is not None:
            place = bisect_right(node.checkpoints, depth, key=_depth)
            if place:
                return node.checkpoints[place - 1]
            node = node.parent
        return None

    def checkpoint_at(self, node: Node, depth: int) -> Checkpoint | None:
        """The one at exactly `depth`, which is on the path to `node`."""
        found = self.deepest(containing(node, depth), depth)
        return found if found is not None and found.depth == depth else None

    @staticmethod
    def gap(checkpoint: Checkpoint) -> int:
        """Tokens between it and the checkpoint before it on its path, or the start."""
        before = Tree.deepest(checkpoint.node, checkpoint.depth - 1)
        return checkpoint.depth - (before.depth if before else 0)

    def block_like(self, node: Node, depth: int, packed: Packed, place: int) -> tuple[Node, int] | None:
        """A known block that begins with the packed tokens from the last block boundary up to `place`, and the node
        that holds it; None if there is none. `depth` packed tokens, at least to that boundary, are known: the path to
        `node`."""
        start = place // BLOCK_SIZE * BLOCK_SIZE
        if start < depth:
            node = containing(node, start + 1)
        elif start == node.end:
            head = bytes(packed[start * TOKEN_BYTES : place * TOKEN_BYTES])
            child = next((child for key, child in node.children.items() if key.startswith(head)), None)
            return None if child is None else (child, child.blocks[0])
        inside = start - node.start
        known = node.tokens[inside * TOKEN_BYTES : (place - node.start) * TOKEN_BYTES]
        if known != packed[start * TOKEN_BYTES : place * TOKEN_BYTES]:
            return None
        return node, node.blocks[inside // BLOCK_SIZE]

    # Holds

    def hold(self, node: Node, depth: int) -> Hold:
        hold = Hold(node, depth)
        node.ends.add(hold)
        self._count_held(node)
        for above in ancestors(node):
            above.below += 1
            self._count_held(above)
        return hold

    def move(self, hold: Hold, node: Node, depth: int) -> None:
        """Lengthens `hold` to `depth` in `node`, which is its own or further down."""
        old = hold.node
        old.ends.discard(hold)
        hold.node, hold.depth = node, depth
        node.ends.add(hold)
        self._count_held(node)
        for above in ancestors(node) if node is not old else ():
            above.below += 1
            self._count_held(above)
            if above is old:
                break

    def let_go(self, hold: Hold, now: float) -> None:
        """Ends `hold`; its path counts as used at `now`."""
        node = hold.node
        touch(node, now)
        node.ends.remove(hold)
        self._count_held(node)
        for above in ancestors(node):
            above.below -= 1
            self._count_held(above)
        self._forget_root(node)

    def pin(self, checkpoint: Checkpoint) -> None:
        checkpoint.pins += 1
        self.num_pinned += checkpoint.pins == 1

    def unpin(self, checkpoint: Checkpoint) -> None:
        checkpoint.pins -= 1
        if not checkpoint.pins:
            self.num_pinned -= 1
            self._listener.offer(checkpoint)

    # Growth

    def publish(self, hold: Hold, packed: Packed, end: int, table: list[int], now: float) -> list[int]:
        """Makes tokens `[hold.depth, end)` of a sequence known, whole blocks, and lengthens its hold to `end`.

        `table` are its blocks from token 0 on ([] without KV). Where equal tokens are known already, their blocks stay
        and take the place of the sequence's own in `table`; these are returned.
        """
        node, depth = hold.node, hold.depth
        replaced: list[int] = []
        while depth < end:
            node, equal = self._follow(node, depth, packed, end)
            if not equal:
                break
            if table:
                place, known = depth // BLOCK_SIZE, (depth - node.start) // BLOCK_SIZE
                count = equal // BLOCK_SIZE
                replaced += table[place : place + count]
                table[place : place + count] = node.blocks[known : known + count]
            depth += equal
        if depth < end:
            node = self._add(node, depth, packed[depth * TOKEN_BYTES : end * TOKEN_BYTES], now)
            if table:
                node.blocks += table[depth // BLOCK_SIZE : end // BLOCK_SIZE]
            self.num_tokens += end - depth
        self.move(hold, node, end)
        return replaced

    def add_checkpoint(self, node: Node, depth: int, slot: int, kind: Kind, now: float) -> Checkpoint:
        """A new one at `depth` on the path to `node`, where there is none."""
        node = containing(node, depth)
        place = bisect_left(node.checkpoints, depth, key=_depth)
        checkpoint = Checkpoint(node, depth, slot, kind, now)
        node.checkpoints.insert(place, checkpoint)
        self.num_checkpoints += 1
        before = self.deepest(node, depth - 1)
        less_worth = [] if before is None else [before]  # it is no leaf any more
        less_worth += _following(node, place + 1)  # they stand for fewer tokens
        for other in (*less_worth, checkpoint):
            self._listener.offer(other)
        return checkpoint

    def split(self, node: Node, depth: int) -> Node:
        """Parts `node` at `depth`; returns the new upper part. The lower one keeps its identity."""
        if node.parent is None or not node.start < depth < node.end:
            raise IntegrityError(f"a node of tokens {node.start} to {node.end} is split at {depth}")
        length = depth - node.start
        upper = Node(node.parent, node.scope, node.start, last_use=node.last_use, hits=node.hits)
        upper.tokens, upper.blocks = node.tokens[: length * TOKEN_BYTES], node.blocks[: length // BLOCK_SIZE]
        node.parent.children[node.key] = upper
        del node.tokens[: length * TOKEN_BYTES], node.blocks[: length // BLOCK_SIZE]
        upper.children[node.key] = node
        place = bisect_right(node.checkpoints, depth, key=_depth)
        upper.checkpoints = node.checkpoints[:place]
        del node.checkpoints[:place]
        for checkpoint in upper.checkpoints:
            checkpoint.node = upper
        upper.ends = {hold for hold in node.ends if hold.depth <= depth}
        node.ends -= upper.ends
        for hold in upper.ends:
            hold.node = upper
        upper.below = node.below + len(node.ends)
        upper.held, node.held = min(node.held, length), max(node.held - length, 0)
        node.parent, node.start = upper, depth
        return upper

    # Loss

    def trim(self, node: Node, end: int) -> tuple[list[int], list[Checkpoint]]:
        """Forgets what `node`, which has no children, holds from token `end` on; returns the blocks and checkpoints
        that go with it. With its last token the node itself goes."""
        if node.children or end < node.start + node.held:
            raise IntegrityError(f"tokens {node.start} to {node.end} are trimmed to {end} and still in use")
        key, kept = node.key, end - node.start
        blocks, gone = node.blocks[kept // BLOCK_SIZE :], [c for c in node.checkpoints if c.depth > end]
        self.num_tokens -= node.length - kept
        del node.tokens[kept * TOKEN_BYTES :], node.blocks[kept // BLOCK_SIZE :]
        for checkpoint in gone:
            self.drop(checkpoint)
        if not kept and node.parent is not None:
            self._listener.withdraw(node)
            del node.parent.children[key]
            self._forget_root(node.parent)
            if not node.parent.children:
                self._listener.offer(node.parent)
        return blocks, gone

    def drop(self, checkpoint: Checkpoint) -> None:
        """`checkpoint`, which nobody starts from, is gone."""
        if checkpoint.node is None or checkpoint.pins:
            raise IntegrityError(f"the checkpoint in slot {checkpoint.slot} is dropped and is in use, or gone")
        checkpoint.node.checkpoints.remove(checkpoint)
        checkpoint.node = None
        self.num_checkpoints -= 1
        self._listener.withdraw(checkpoint)

    def clear(self) -> None:
        self.roots.clear()
        self.num_tokens = self.num_held = self.num_checkpoints = self.num_pinned = 0

    def __iter__(self) -> Iterator[Node]:
        """All nodes, roots too, each before what continues it."""
        return self.of_scopes(*self.roots)

    def of_scopes(self, *scopes: Scope) -> Iterator[Node]:
        """The same of some scopes, known or not."""
        stack = [self.roots[scope] for scope in scopes if scope in self.roots]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def _follow(self, node: Node, depth: int, packed: Packed, limit: int) -> tuple[Node, int]:
        """From `depth` in `node`: the node where the tokens go on, and how many are equal there (0: none)."""
        if depth == node.end:
            start = depth * TOKEN_BYTES
            child = node.children.get(bytes(packed[start : start + BLOCK_BYTES]))
            if child is None:
                return node, 0
            return child, common_blocks(child.tokens, packed, depth, min(child.length, limit - depth))
        rest = node.tokens[(depth - node.start) * TOKEN_BYTES :]
        return node, common_blocks(rest, packed, depth, min(len(rest) // TOKEN_BYTES, limit - depth))

    def _add(self, node: Node, depth: int, tokens: Packed, now: float) -> Node:
        """The node that holds new `tokens` after `depth` in `node`: the same, lengthened, where nothing parts there."""
        if depth < node.end:
            node = self.split(node, depth)
        if node.parent is None or node.children:
            child = Node(node, node.scope, depth)
            node.children[bytes(tokens[:BLOCK_BYTES])] = child
            for checkpoint in node.checkpoints[-1:]:
                self._listener.offer(checkpoint)
            node = child
        node.tokens += tokens
        node.last_use = now
        return node

    def _count_held(self, node: Node) -> None:
        deepest = node.end if node.below else max((hold.depth for hold in node.ends), default=node.start)
        held = deepest - node.start
        self.num_held += held - node.held
        node.held = held
        if held < node.length and not node.children:
            self._listener.offer(node)

    def _forget_root(self, node: Node) -> None:
        if node.parent is None and not node.children and not node.ends:
            self.roots.pop(node.scope, None)


def ancestors(node: Node) -> Iterator[Node]:
    """Those above `node`, its parent first."""
    while node.parent is not None:
        node = node.parent
        yield node


def containing(node: Node, depth: int) -> Node:
    """The node on the path to `node` that holds token `depth - 1`; the root for 0."""
    while node.start >= depth and node.parent is not None:
        node = node.parent
    return node


def touch(node: Node, now: float) -> None:
    """The path to `node` is used."""
    for part in (node, *ancestors(node)):
        part.last_use = now


def count_hit(node: Node, found: int) -> None:
    """Somebody came back to the first `found` tokens of the path to `node`."""
    for part in (node, *ancestors(node)):
        part.hits += found >= part.end


def _depth(checkpoint: Checkpoint) -> int:
    return checkpoint.depth


def _following(node: Node, place: int) -> Iterator[Checkpoint]:
    """The next checkpoint on every path from `node.checkpoints[place]` on."""
    if place < len(node.checkpoints):
        yield node.checkpoints[place]
        return
    stack = list(node.children.values())
    while stack:
        below = stack.pop()
        if below.checkpoints:
            yield below.checkpoints[0]
        else:
            stack += below.children.values()
