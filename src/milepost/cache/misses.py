"""Why a sequence did not find more."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from milepost.cache.keys import BLOCK_BYTES, TOKEN_BYTES, common_tokens
from milepost.cache.retention import floor_to_grid
from milepost.cache.tree import Node, Packed, Scope
from milepost.request import Miss
from milepost.specs import BLOCK_SIZE, CHUNK

MAX_REMEMBERED = 4096
MAX_UNSOUND = 16
MAX_CHILDREN = 64
"""Continuations compared to say where a text parted; where there are more, the answer may be a few tokens low."""


class Forgotten:
    """Remembers where known prefixes were cut off: scope, place and the first block that went. Bounded, and for
    explanations only: a block that stood at the same place in another text can be taken for it."""

    def __init__(self) -> None:
        self._marks: OrderedDict[int, None] = OrderedDict()

    def add(self, scope: Scope, depth: int, block: bytes) -> None:
        self._marks[hash((scope, depth, block))] = None
        if len(self._marks) > MAX_REMEMBERED:
            self._marks.popitem(last=False)

    def has(self, scope: Scope, depth: int, block: bytes) -> bool:
        return hash((scope, depth, block)) in self._marks

    def clear(self) -> None:
        self._marks.clear()


class Unsound:
    """Remembers prefixes whose last row was not finite: whoever begins like one meets that row too. Bounded."""

    def __init__(self) -> None:
        self._marks: OrderedDict[tuple[Scope, int, int], None] = OrderedDict()

    def add(self, scope: Scope, packed: Packed, row: int) -> None:
        """`row`: the first that is not finite, of packed tokens that reach it."""
        self._marks[scope, row, _prefix_hash(packed, row)] = None
        if len(self._marks) > MAX_UNSOUND:
            self._marks.popitem(last=False)

    def first_row(self, scope: Scope, packed: Packed, matched: int) -> int | None:
        """The first row at or after `matched` of which these tokens are known to make something not finite."""
        reach = len(packed) // TOKEN_BYTES
        rows = sorted(row for where, row, _ in self._marks if where == scope and matched <= row < reach)
        return next((row for row in rows if (scope, row, _prefix_hash(packed, row)) in self._marks), None)

    def clear(self) -> None:
        self._marks.clear()


def _prefix_hash(packed: Packed, row: int) -> int:
    """Of the tokens that row `row` depends on: its own and those before."""
    return hash(bytes(packed[: (row + 1) * TOKEN_BYTES]))


@dataclass(frozen=True, slots=True)
class Lookup:
    """What was known of packed tokens in a scope: the first `matched`, up to a place in `node`; `resumed` of them were
    resumed."""

    scope: Scope
    packed: Packed
    node: Node | None
    matched: int
    resumed: int


def explain(found: Lookup, *, states: bool, forgotten: Forgotten, unsound: Unsound) -> Miss | None:
    """Why it was not more. `states`: only grid points can be resumed."""
    packed, matched = found.packed, found.matched
    reach = len(packed) // TOKEN_BYTES - 1
    if reach < (CHUNK if states else BLOCK_SIZE) and not found.resumed:
        return Miss("too short", 0)
    if states and found.resumed < floor_to_grid(matched):
        return Miss("state thinned", found.resumed)
    if max(matched, found.resumed) >= reach // BLOCK_SIZE * BLOCK_SIZE:
        return None
    start = matched * TOKEN_BYTES
    if forgotten.has(found.scope, matched, bytes(packed[start : start + BLOCK_BYTES])):
        return Miss("evicted", matched)
    row = unsound.first_row(found.scope, packed, matched)
    if row is not None:
        return Miss("not finite", row)
    other = None if found.node is None else _other_text(found.node, matched, packed)
    if other is None:
        return None if matched else Miss("no prefix", 0)
    return Miss("diverged", other) if other else Miss("no prefix", 0)


def _other_text(node: Node, depth: int, packed: Packed) -> int | None:
    """Where the packed tokens part from what is known to follow `depth` in `node`; None if nothing is."""
    rest = packed[depth * TOKEN_BYTES : depth * TOKEN_BYTES + BLOCK_BYTES]
    if depth < node.end:
        start = (depth - node.start) * TOKEN_BYTES
        return depth + common_tokens(node.tokens[start : start + BLOCK_BYTES], rest)
    if not node.children:
        return None
    known = [key for key, _ in zip(node.children, range(MAX_CHILDREN), strict=False)]
    return depth + max(common_tokens(key, rest) for key in known)
