"""Who comes back, and where: KV and states in one order, by the tokens that a byte is likely to save per time kept.

    value = (chance that somebody comes back) * (tokens that are computed again otherwise) / (time * bytes)

The chance is learnt while serving (`pauses.py`), by how long the thing has been left alone and by what it is:

    a text's end   where the same prompt or the next turn comes back; apart by how often that has happened already. With
                   its last block goes the state there, and what leads to it from the state before is lost too: tokens
                   and bytes are those of both.
    a place        where texts have parted before, or a client says that they will; apart by how often.
    the rest       a state amid a text serves who parts there for the first time. That is rare, a small share of the
                   returns to the end, and as likely in each doubling of the depth; what it saves is counted as a share
                   of what is shared. So spacing grows with depth, and early states, where instructions end, stay
                   longest. Message boundaries count a few times as much.

In short memory a long text has to go piece by piece: what is needed is often less than all of it. That needs states to
break it at, and these cost. So those of the rest that are so far apart that they pay, `gap * zone >= SPACING * length *
(bytes of a state) / (bytes of a token)`, stand with the end of their text; closer ones only have the value above.

A text that nobody ever comes back to is soon known for one of its kind, and leaves when memory is needed, whatever came
before it; one that people come back to after minutes stays through those minutes, if anything can.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from milepost.cache.policies.least_value import LeastValue
from milepost.cache.policies.pauses import Pause, Pauses
from milepost.cache.policies.policy import LEVELS, Facts, Policy, StatesAhead, Take, Thing
from milepost.cache.retention import Kind, floor_to_grid
from milepost.cache.tree import Checkpoint, Node, Tree, ancestors
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE, CHUNK

INSIDE_TOKENS = 20.0
"""What a state amid a text saves at each return to the text's end, if nothing else is kept: of a hundred who come back
one parts inside, and shares some 2,000 tokens."""
PARTING_AGE = 1.0
"""Budgets: those who part inside do not hurry, so a text that was just read is worth no more for them."""
SPACING = 1.5

_OFTENER: Mapping[Kind, float] = {"grid": 1.0, "end": 4.0, "boundary": 4.0, "junction": 4.0, "breakpoint": 16.0}
"""Than a mere grid point, before anybody has parted there."""

TURNS, USES = 6, 6
"""Classes: by how often a text was come back to, and by the doublings of how often texts parted at a place."""

RANK_EVERY = 0.01
"""Budgets of new bytes after which all values are looked at again: they fall with age."""


@dataclass(slots=True, eq=False)
class Text:
    """A text's end: in a node, after `depth` tokens of its prompt; `turn`: how often it was come back to before."""

    depth: int
    turn: int
    pause: Pause


@dataclass(slots=True, eq=False)
class Spot:
    """A place where texts part, `uses` times so far."""

    uses: int
    pause: Pause


def build(facts: Facts) -> Policy:
    policy = Returns(facts)
    return Policy(policy, policy, policy)


class Returns:
    """See `Admission`, `Eviction`, `Watch`."""

    def __init__(self, facts: Facts) -> None:
        self._facts, self._memory = facts, facts.memory
        self._texts: dict[Node, Text] = {}
        self._spots: dict[Checkpoint, Spot] = {}
        self._turns: dict[Sequence, int] = {}
        self._ends, self._places = Pauses(TURNS), Pauses(USES)
        self._order = LeastValue[Thing](facts.may_go, self._value)
        self._ranked = 0.0
        self._now = 0.0
        """Stands still while things are compared."""
        self._num_changes = 0

    # Eviction

    def offer(self, thing: Thing) -> None:
        self._num_changes += 1
        self._now = self._facts.now()
        self._order.offer(thing)

    def next(self, below: float = inf) -> Thing | None:
        self._now = now = self._facts.now()
        if now - self._ranked > RANK_EVERY and self._num_changes > self._order.num_listed:
            self._ends.review(now)
            self._places.review(now)
            self._order.look_again()
            self._ranked, self._num_changes = now, 0
        return self._order.next(below)

    def withdraw(self, thing: Thing) -> None:
        self._num_changes += 1
        if isinstance(thing, Node):
            if (text := self._texts.pop(thing, None)) is not None:
                self._ends.cut_short(text.pause, self._facts.now())
        elif (spot := self._spots.pop(thing, None)) is not None:
            self._places.cut_short(spot.pause, self._facts.now())
        self._order.withdraw(thing)

    def clear(self) -> None:
        self._texts.clear()
        self._spots.clear()
        self._order.clear()

    # Watch

    def came(self, seq: Sequence, node: Node | None, matched: int, resumed: int) -> None:
        if node is None:
            return
        now, turn = self._facts.now(), 0
        for part in (node, *ancestors(node)):
            text = self._texts.get(part)
            if text is not None and min(text.depth, part.end) <= matched:
                self._ends.came_back(text.pause, now)
                turn = max(turn, min(text.turn + 1, TURNS - 1))
                del self._texts[part]
        self._turns[seq] = turn
        if matched < node.end or node.children:
            self._part(node, matched, turn > 0, now)

    def left(self, seq: Sequence, node: Node, depth: int) -> None:
        turn = self._turns.pop(seq, 0)
        if depth < node.end or node.children:
            return
        now = self._facts.now()
        if (before := self._texts.get(node)) is not None:
            self._ends.cut_short(before.pause, now)
        self._texts[node] = Text(
            floor_to_grid(min(depth, seq.num_prompt_tokens - 1)), turn, self._ends.begin(turn, now)
        )

    def _part(self, node: Node, matched: int, returned: bool, now: float) -> None:
        """Somebody leaves a known text after `matched` tokens, amid it or where others go on; or `returned` to the end
        of a prompt, amid what is known of its answer."""
        checkpoint = Tree.deepest(node, matched)
        if checkpoint is None or checkpoint.depth < floor_to_grid(matched):
            return
        spot = self._spots.get(checkpoint)
        if spot is None and returned:
            return
        if spot is not None:
            self._places.came_back(spot.pause, now)
        uses = 1 if spot is None else spot.uses + 1
        self._spots[checkpoint] = Spot(uses, self._places.begin(_doublings(uses), now))

    # Admission

    def plan(self, ahead: StatesAhead, take: Take) -> None:
        """A client's breakpoints first, then other special ones, then the grid; of each sort those whose largest
        power of two is the largest share of them: 2^n, 3 * 2^n, 5 * 2^n. So any that fit are spread over all depths."""
        taken = sorted([ahead.base, *ahead.planned])
        turn = self._turns.get(ahead.seq, 0)
        at_place = self._places.worth(0, 0.0)
        for level in LEVELS:
            wanted = [(point, kind) for point, kind in ahead.kinds.items() if kind in level]
            for point, kind in sorted(wanted, key=lambda one: (-(one[0] & -one[0]) / one[0], one[0])):
                place = bisect_left(taken, point)
                gap = point - taken[place - 1]
                zone = (taken[place] if place < len(taken) else ahead.seq.num_tokens) - point
                worth = self._amid(kind, point, gap, zone, ahead.seq.num_tokens, turn, 0.0)
                if kind in ("junction", "breakpoint"):
                    worth += at_place * gap
                if take(point, worth / self._memory.checkpoint_bytes):
                    insort(taken, point)

    # Values

    def _value(self, thing: Thing) -> float:
        if isinstance(thing, Node):
            return self._of_tail(thing)
        node = thing.node
        if node is None:
            return 0.0
        gap = Tree.gap(thing)
        worth = self._at_place(thing) * gap
        if thing.is_leaf:
            worth += self._at_end(node, thing.last_use) * gap
        else:
            text = self._texts.get(node)
            turn, age = 0 if text is None else text.turn, self._now - node.last_use
            place = bisect_right(node.checkpoints, thing.depth, key=lambda other: other.depth)
            after = node.checkpoints[place].depth if place < len(node.checkpoints) else node.end
            zone = max(after - thing.depth, CHUNK)
            worth += self._amid(thing.kind, thing.depth, gap, zone, node.end, turn, age)
        return worth / self._memory.checkpoint_bytes

    def _of_tail(self, node: Node) -> float:
        block_bytes, state_bytes = self._memory.block_bytes, self._memory.checkpoint_bytes
        if not state_bytes:
            chance = self._at_end(node, 0.0)
            if node.hits:
                chance = max(chance, self._places.worth(_doublings(node.hits), self._now - node.last_use))
            return chance * BLOCK_SIZE / block_bytes
        if node.is_stranded:
            return 0.0  # nobody can resume there
        last = node.checkpoints[-1]
        gap = Tree.gap(last)
        chance = self._at_end(node, last.last_use) + self._at_place(last)
        return chance * gap / self._memory.prefix_bytes(gap)

    def _at_end(self, node: Node, last_use: float) -> float:
        text = self._texts.get(node)
        age = self._now - max(node.last_use, last_use)
        return self._ends.worth(0 if text is None else text.turn, age)

    def _at_place(self, checkpoint: Checkpoint) -> float:
        spot = self._spots.get(checkpoint)
        if spot is not None:
            return self._places.worth(_doublings(spot.uses), self._now - spot.pause.start)
        if checkpoint.kind not in ("junction", "breakpoint"):
            return 0.0
        return self._places.worth(0, self._now - checkpoint.last_use)

    def _amid(self, kind: Kind, depth: int, gap: int, zone: int, length: int, turn: int, age: float) -> float:
        """Tokens that a state amid a text is likely to save, for each budget of time. `zone`: those up to the next."""
        tokens = INSIDE_TOKENS * _OFTENER[kind] * (gap / depth) * (zone / depth)
        worth = tokens * self._ends.worth(turn, max(age, PARTING_AGE))
        state_bytes, token_bytes = self._memory.checkpoint_bytes, self._memory.block_bytes / BLOCK_SIZE
        if token_bytes and gap * zone >= SPACING * length * state_bytes / token_bytes:
            worth += self._ends.worth(turn, age) * gap * state_bytes / (state_bytes + gap * token_bytes)
        return worth


def _doublings(uses: int) -> int:
    return min(uses.bit_length() - 1, USES - 1)
