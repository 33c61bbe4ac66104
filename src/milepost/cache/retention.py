"""Which recurrent states are kept when they are made. Which of them get memory, and what must go later for want
of it: `policies/`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from milepost.errors import ConfigError
from milepost.request import Sequence
from milepost.specs import CHUNK

Kind = Literal["grid", "end", "boundary", "junction", "breakpoint"]
"""Why a checkpoint is kept; where two reasons hold, the last one counts.

grid        the interval reached it, nothing more
end         of a prompt (the same prompt, and what goes on from it, come back) or of an answer (the next turn)
boundary    where a message of a chat begins or ends: prompts part there if anywhere
junction    where a sequence left a known prefix for the first time: the next to leave there resumes from it
breakpoint  where the client says that prompts part
"""

_ORDER: tuple[Kind, ...] = get_args(Kind)


def stronger(one: Kind, other: Kind) -> Kind:
    """Of two reasons to keep a checkpoint, the one that counts."""
    return max(one, other, key=_ORDER.index)


def floor_to_grid(num_tokens: int) -> int:
    return num_tokens // CHUNK * CHUNK


@dataclass(frozen=True)
class Retention:
    """`interval` None (dense): every grid point; N: each N tokens; 0: none but the special ones, which are kept anyway.

    Special points of a sequence, all floored to the grid: its prompt's end, and the last place from which the same
    prompt can be resumed (one row must be computed, so that is a grid point lower where the prompt ends on the grid);
    its message boundaries and breakpoints; its junction, where the KV that it matched ended, if it had to resume lower.
    The end of the answer is known only when it is there: the cache keeps that one when it takes the sequence's memory
    back.
    """

    interval: int | None = None

    def __post_init__(self) -> None:
        if self.interval is not None and (self.interval < 0 or self.interval % CHUNK):
            nearest = max(CHUNK, round(self.interval / CHUNK) * CHUNK)
            raise ConfigError(
                f"the retention interval must be a multiple of {CHUNK}, got {self.interval}", f"use {nearest}"
            )

    def kind(self, seq: Sequence, junction: int, depth: int) -> Kind | None:
        """Why the state of `seq` after `depth` tokens, a grid point, is kept; None: it is not."""
        return self.kinds(seq, junction, range(depth, depth + CHUNK, CHUNK)).get(depth)

    def kinds(self, seq: Sequence, junction: int, points: range) -> dict[int, Kind]:
        """The same for grid points `points`, each step CHUNK; those that are not kept are not there."""
        if self.interval is None:
            found: dict[int, Kind] = dict.fromkeys(points, "grid")
        else:
            found = {point: "grid" for point in points if self.interval and point % self.interval == 0}
        reasons: tuple[tuple[Kind, Iterable[int]], ...] = (
            ("end", _prompt_ends(seq)),
            ("boundary", map(floor_to_grid, seq.boundaries)),
            ("junction", (junction,)),
            ("breakpoint", map(floor_to_grid, seq.breakpoints)),
        )
        for kind, places in reasons:
            found.update((place, kind) for place in places if place in points)
        return found

    def deepest(self, seq: Sequence, junction: int, limit: int) -> int:
        """The deepest grid point at or below `limit` tokens whose state `seq` keeps; 0 if there is none."""
        places = map(floor_to_grid, (*seq.boundaries, *seq.breakpoints))
        points = [0, junction, *_prompt_ends(seq), *places, *self._regular(limit)]
        return max(point for point in points if point <= limit)

    def _regular(self, limit: int) -> Iterator[int]:
        if self.interval != 0:
            interval = self.interval or CHUNK
            yield limit // interval * interval


def _prompt_ends(seq: Sequence) -> tuple[int, int]:
    return floor_to_grid(seq.num_prompt_tokens), floor_to_grid(seq.num_prompt_tokens - 1)
