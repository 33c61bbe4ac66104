"""What a policy decides, and what it may know.

The cache keeps the books; a policy says which states are worth a slot when they can be made (`Admission`), what goes
when memory is short (`Eviction`), and may learn from who comes back (`Watch`). Which states are candidates at all is
the retention's (`retention.py`): a policy only takes from those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Protocol

from milepost.cache.memory import Memory
from milepost.cache.retention import Kind
from milepost.cache.tree import Checkpoint, Node
from milepost.request import Sequence

Thing = Node | Checkpoint
"""What eviction gives up: the tail of a node that nothing continues, or a checkpoint. A tail takes the checkpoints
in it along; a checkpoint that goes alone leaves its KV."""

Take = Callable[[int, float], bool]
"""A slot for the state after so many tokens, at the cost of things worth less than a value; False: those do not do, and
nothing was given up in vain but what was worth less."""


class Eviction(Protocol):
    """Says which thing that nobody uses goes next. It owns `thing.entry`, 0 while it does not list the thing."""

    def offer(self, thing: Thing) -> None:
        """`thing` may go from now on, or is worth less than before; often it is in use, which `Facts.may_go` tells.
        Whoever uses it again, and whatever makes it worth more, is not announced."""

    def next(self, below: float = inf) -> Thing | None:
        """The thing of least value, if that is less than `below`; it is no longer listed. Of a tail as much goes as is
        needed, and what is left of it is offered again."""

    def withdraw(self, thing: Thing) -> None:
        """`thing` is gone."""

    def clear(self) -> None:
        """Everything is gone."""


@dataclass(frozen=True, slots=True)
class StatesAhead:
    """The states that `seq` writes in its next step: all could be kept, at the cost of a slot each.

    kinds    by grid point, in tokens: why the retention wants it; those that have a slot already are not here
    planned  grid points that have one: the last of the step always does
    base     depth of the last checkpoint before the step's first row, 0 if there is none
    node     where the shared prefix of `seq` ends, after `depth` tokens
    """

    seq: Sequence
    kinds: Mapping[int, Kind]
    planned: tuple[int, ...]
    base: int
    node: Node
    depth: int


LEVELS: tuple[tuple[Kind, ...], ...] = (("breakpoint",), ("junction", "boundary", "end"), ("grid",))
"""Kinds of states by importance: a client's word first, then places where texts part or end, then the grid."""


class Admission(Protocol):
    def plan(self, ahead: StatesAhead, take: Take) -> None:
        """Takes slots for the points of `ahead.kinds` that are worth them, the most important first."""


class Watch(Protocol):
    """Told who comes and goes. Times: `seq.arrival_time`, in seconds."""

    def came(self, seq: Sequence, node: Node | None, matched: int, resumed: int) -> None:
        """The first rows of `seq` have run. It matched so many tokens, up to a place in `node`, and resumed so many.
        Not told when it comes back after a preemption."""

    def left(self, seq: Sequence, node: Node, depth: int) -> None:
        """`seq` gives its memory back, at its end or preempted. Its first `depth` tokens are known, up to a place in
        `node`, and may be evicted from now on."""


@dataclass(frozen=True)
class Policy:
    """Its parts; one object may be all of them."""

    admission: Admission
    eviction: Eviction
    watch: Watch | None = None


@dataclass(frozen=True)
class Facts:
    """What a policy is built on.

    memory  sizes: `limit_bytes` of all, `block_bytes` of the KV of BLOCK_SIZE tokens, `checkpoint_bytes` (0 of either:
            the model has none)
    now     the clock by which `last_use` of nodes and checkpoints is set: newly stored bytes of KV (of checkpoints,
            where there is no KV), in budgets. No two readings are equal
    may_go  whether eviction may have a thing: nobody uses it, nothing continues it, and it is not gone
    """

    memory: Memory
    now: Callable[[], float]
    may_go: Callable[[Thing], bool]


Build = Callable[[Facts], Policy]
"""A policy for one cache."""
