"""Ends of texts, kept to the token: what lies between the last grid point of a text and where it ends.

    tokens      ...     2944 .. 2960 .. 2976 .. 2992 .. 3000
    checkpoint           ^ the tree's
    window               |=========== rows since then ====|   kept here, in a window slot that no sequence uses
    blocks               |  16  |  16  |  16  |    8      |   full ones are the tree's, the last one is kept here

Whoever comes back to such a text resumes where the two part, to the token, instead of at the grid point before: the
same prompt again computes one row, and the next turn of a chat nothing that was computed in the last one. It goes on
writing where the end stops, so it gets copies: of the window, and of the block that it fills up.

The first rows of a window are a window too, so an end serves wherever a text parts from it. Only a recurrence that
keeps its last state in place of rows (Mamba-1) has nothing but the end itself.

Windows are large and few, and lie beside the cache's memory; a partly filled block is counted in it, and yields before
a request has to. The end that nobody used for longest makes room for the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from milepost.cache.keys import TOKEN_BYTES, common_tokens
from milepost.cache.memory import Memory
from milepost.cache.tree import Checkpoint, Packed, Scope

Place = Checkpoint | Scope
"""Where ends begin: at a checkpoint, or, for the empty prefix, in a scope."""


@dataclass(slots=True, eq=False)
class End:
    """The rows of packed `tokens` from token `start` on, which follow `place`: in window `slot`, the last of them in
    `block` (None: they fill whole blocks, or the model has no KV). `readers`: sequences that will copy it."""

    place: Place
    start: int
    tokens: bytes
    slot: int
    block: int | None
    readers: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.tokens) // TOKEN_BYTES


class Ends:
    """At most `max_num` ends, by the place that they follow, and the `num_windows` slots of ends and sequences."""

    def __init__(self, memory: Memory, num_seqs: int, max_num: int, cuttable: bool) -> None:
        """`cuttable`: the first rows of a window are a window too."""
        self.num_windows, self.max_num, self.cuttable = num_seqs + max_num, max_num, cuttable
        self.free_windows = list(reversed(range(self.num_windows)))
        self._memory = memory
        self._ends: OrderedDict[End, None] = OrderedDict()
        self._at: dict[Place, list[End]] = {}

    def __iter__(self) -> Iterator[End]:
        return iter(self._ends)

    @property
    def num_idle_blocks(self) -> int:
        """Blocks that can be had."""
        return sum(end.block is not None and not end.readers for end in self._ends)

    def find(self, place: Place, start: int, packed: Packed, limit: int) -> tuple[End, int] | None:
        """The end after `place`, which is `start` tokens down the packed ones, that has most of these in common, and
        how far down they then are, at most `limit`; None if nobody can resume between."""
        rest, best = bytes(packed[start * TOKEN_BYTES : limit * TOKEN_BYTES]), None
        for end in self._at.get(place, ()):
            common = common_tokens(end.tokens, rest)
            whole = start + common == end.end
            if common and (whole or self.cuttable) and (best is None or start + common > best[1]):
                best = end, start + common
        return best

    def keep(self, end: End) -> bool:
        """Makes `end` findable, and its window slot and block its own; False if they are of no use: there is one that
        goes as far, or no room."""
        for other in list(self._at.get(end.place, ())):
            if other.tokens.startswith(end.tokens):
                if other.tokens == end.tokens or self.cuttable:
                    self.use(other)
                    return False
            elif end.tokens.startswith(other.tokens) and self.cuttable and not other.readers:
                self._drop(other)
        if len(self._ends) >= self.max_num and not self._drop_oldest():
            return False
        self._ends[end] = None
        self._at.setdefault(end.place, []).append(end)
        return True

    def use(self, end: End) -> None:
        """Somebody came back to it."""
        self._ends.move_to_end(end)

    def give_up_block(self) -> bool:
        """Drops the oldest end that has a block and no readers; False if there is none."""
        return self._drop_oldest(with_block=True)

    def clear(self) -> None:
        """Forgets all; nobody may be reading."""
        while self._drop_oldest():
            pass

    def _drop_oldest(self, with_block: bool = False) -> bool:
        idle = (end for end in self._ends if not end.readers and not (with_block and end.block is None))
        oldest = next(idle, None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def _drop(self, end: End) -> None:
        del self._ends[end]
        there = self._at[end.place]
        there.remove(end)
        if not there:
            del self._at[end.place]
        self.free_windows.append(end.slot)
        if end.block is not None:
            self._memory.free([end.block], [])
