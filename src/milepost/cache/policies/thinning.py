"""States thin out: KV and checkpoints in one order, by what is lost for each byte won and how likely somebody wants it
back.

    value = log2((1 + hits) * tokens / bytes) + time of last use / TAU + bonus

(after Cherkasova's GreedyDual-Size-Frequency, 1998). Time is counted in newly stored bytes, in units of the whole
budget (`Facts.now`). So a thing's value never changes by standing still; what comes later is worth more. At stake:

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

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2

from milepost.cache.memory import Memory
from milepost.cache.policies.least_value import LeastValue
from milepost.cache.policies.policy import LEVELS, Facts, Policy, StatesAhead, Take, Thing
from milepost.cache.retention import Kind
from milepost.cache.tree import Checkpoint, Node, Tree
from milepost.specs import BLOCK_SIZE, CHUNK

TAU = 2.0

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


@dataclass(frozen=True, slots=True)
class Stake:
    """What is lost and won if a thing goes: `tokens` to compute again if somebody wants it back, `num_bytes` free.
    `hits`: how often somebody came back."""

    tokens: int
    num_bytes: int
    last_use: float
    hits: int = 0
    bonus: float = 0.0

    @property
    def value(self) -> float:
        """Only the order matters."""
        return log2((1 + self.hits) * self.tokens / self.num_bytes) + self.last_use / TAU + self.bonus


def build(facts: Facts) -> Policy:
    memory = facts.memory
    return Policy(Spread(facts), LeastValue[Thing](facts.may_go, lambda thing: stake_of(thing, memory).value))


class Spread:
    """Which states of a step get a slot: a client's breakpoints first, then other special ones, then the grid; of each
    sort those that divide by the largest powers of two, so that any that fit are spread evenly. None at the cost of
    what is worth more."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def plan(self, ahead: StatesAhead, take: Take) -> None:
        taken = sorted([ahead.base, *ahead.planned])
        for level in LEVELS:
            wanted = [(point, kind) for point, kind in ahead.kinds.items() if kind in level]
            for point, kind in sorted(wanted, key=lambda one: (-(one[0] & -one[0]), one[0])):
                gap = point - taken[bisect_left(taken, point) - 1]
                bonus = kind_bonus(kind, is_leaf=False)
                stake = Stake(gap, self._facts.memory.checkpoint_bytes, self._facts.now(), bonus=bonus)
                if not take(point, stake.value):
                    break
                insort(taken, point)


def stake_of(thing: Thing, memory: Memory) -> Stake:
    """Of a thing that may go."""
    if isinstance(thing, Node):
        return _tail(thing, memory)
    bonus = kind_bonus(thing.kind, thing.is_leaf)
    return Stake(_tokens(thing), memory.checkpoint_bytes, thing.last_use, _hits(thing), bonus)


def _tokens(checkpoint: Checkpoint) -> int:
    """Between its neighbours half as many, if that is less. Looks no further than its node: where texts part somebody
    came back. It rises unannounced, when a neighbour goes, and never falls so."""
    gap, node = Tree.gap(checkpoint), checkpoint.node
    if checkpoint.kind != "grid" or node is None or node.checkpoints[-1] is checkpoint:
        return gap
    after = node.checkpoints[bisect_right(node.checkpoints, checkpoint.depth, key=lambda other: other.depth)]
    return min(gap, (gap + after.depth - checkpoint.depth) // 2)


def kind_bonus(kind: Kind, is_leaf: bool) -> float:
    """For how much likelier than elsewhere somebody comes back to such a checkpoint."""
    if kind == "grid":
        return 0.0
    return LEAF_BONUS if is_leaf else _INSIDE_BONUS[kind]


def _tail(node: Node, memory: Memory) -> Stake:
    if not memory.checkpoint_bytes:
        return Stake(
            BLOCK_SIZE, memory.block_bytes, node.last_use, node.hits, PARTING_BONUS if node.end <= CHUNK else 0.0
        )
    if node.is_stranded:
        return Stake(BLOCK_SIZE, memory.block_bytes, node.last_use, bonus=STRANDED_BONUS)
    last = node.checkpoints[-1]
    gap, last_use = Tree.gap(last), max(last.last_use, node.last_use)
    return Stake(gap, memory.prefix_bytes(gap), last_use, _hits(last), kind_bonus(last.kind, last.is_leaf))


def _hits(checkpoint: Checkpoint) -> int:
    """How often somebody came back there; to the last state of a text, how often to the text that it goes on from."""
    if checkpoint.node is None or not checkpoint.is_leaf:
        return checkpoint.hits
    return max(checkpoint.hits, checkpoint.node.hits)
