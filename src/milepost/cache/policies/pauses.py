"""How long people stay away: learnt from who came back, to tell who still will.

Time is counted in newly stored bytes, in budgets (`Facts.now`), since that is what keeping something costs. A pause is
cut into steps, two for each doubling. For each step the table counts the pauses that lasted until there, and those that
ended in it because somebody came back: hence the chance of a return before the step is over. A pause that eviction cuts
short counts for the steps before, and says nothing of those after.

What keeping a thing is worth at some age is then the best bargain ahead of it (Gittins' index of 1979): over all ages
at which one might let it go, the largest ratio of the chance that somebody comes back until then to the time that it is
kept meanwhile. So a text that is left alone for as long as people usually take to type is worth more than one that was
left just now, and one that nobody came back to for longer than that is worth little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

SHORTEST = 2.0**-12
PER_DOUBLING = 2
NUM_STEPS = 37
"""Of a pause: the first ends at `SHORTEST`, the last begins at 45 budgets."""

PRIOR, PRIOR_CHANCE = 4, 0.05
"""Before anything is known: as if of so many pauses this share had ended in each step."""
PRIOR_OF_CLASS = 8
"""A class is taken to be like all of its kind, as if it had had so many pauses like theirs."""

MAX_PAUSES = 1 << 14
"""That are watched at a time. When as many have been counted, older ones count half."""
REVIEW_EVERY = 64
"""Pauses between two looks at what was learnt."""

_STARTS = (0.0, *(SHORTEST * 2 ** (step / PER_DOUBLING) for step in range(NUM_STEPS)))


@dataclass(slots=True, eq=False)
class Pause:
    """It began at `start`; `over` when somebody came back, or nobody can be seen to any more."""

    group: int
    start: float
    over: bool = False


class Pauses:
    """Pauses in classes of one kind, numbered from 0."""

    def __init__(self, num_classes: int) -> None:
        self._lasted = [[0.0] * NUM_STEPS for _ in range(num_classes)]
        self._ended = [[0.0] * NUM_STEPS for _ in range(num_classes)]
        self._watched: deque[Pause] = deque()
        self._first = 0
        self._reached = [0] * NUM_STEPS
        """Of all pauses, by number from the first ever, how many have been counted at each step."""
        self._num_new = REVIEW_EVERY
        self._num_counted = 0
        self._worth = [[0.0] * (NUM_STEPS + 1) for _ in range(num_classes)]
        self.review(0.0)

    def begin(self, group: int, now: float) -> Pause:
        pause = Pause(group, now)
        self._watched.append(pause)
        self._num_new += 1
        return pause

    def came_back(self, pause: Pause, now: float) -> None:
        if not pause.over:
            self._count(now)
            self._ended[pause.group][_step(now - pause.start)] += 1
            pause.over = True

    def cut_short(self, pause: Pause, now: float) -> None:
        """Whether somebody would have come back can be seen no longer."""
        if not pause.over:
            self._count(now)
            pause.over = True

    def worth(self, group: int, age: float) -> float:
        """The chance of a return for each budget of time, after a pause of `age`."""
        worth = self._worth[group]
        if age < SHORTEST:
            share = age / SHORTEST
            return worth[0] * (1 - share) + worth[1] * share
        place = 1 + PER_DOUBLING * log2(age / SHORTEST)
        step = int(place)
        if step >= NUM_STEPS:
            return worth[NUM_STEPS]
        return worth[step] * (worth[step + 1] / worth[step]) ** (place - step)

    def review(self, now: float) -> bool:
        """Learns from what came and went meanwhile, if it was enough to matter."""
        if self._num_new < REVIEW_EVERY:
            return False
        self._count(now)
        self._num_counted += self._num_new
        self._num_new = 0
        if self._num_counted > MAX_PAUSES:
            self._num_counted //= 2
            for row in (*self._lasted, *self._ended):
                row[:] = [count / 2 for count in row]
        chances = [
            (PRIOR * PRIOR_CHANCE + sum(ended)) / (PRIOR + sum(lasted))
            for lasted, ended in zip(zip(*self._lasted, strict=True), zip(*self._ended, strict=True), strict=True)
        ]
        for group, (lasted, ended) in enumerate(zip(self._lasted, self._ended, strict=True)):
            own = [
                min((PRIOR_OF_CLASS * chance + back) / (PRIOR_OF_CLASS + count), 1.0)
                for chance, back, count in zip(chances, ended, lasted, strict=True)
            ]
            self._worth[group] = _worth(own)
        return True

    def _count(self, now: float) -> None:
        """Counts the pauses that have reached a further step. They do so in the order in which they began."""
        watched, first = self._watched, self._first
        for step, start in enumerate(_STARTS[:NUM_STEPS]):
            reached = max(self._reached[step] - first, 0)
            while reached < len(watched) and watched[reached].start <= now - start:
                pause = watched[reached]
                if not pause.over:
                    self._lasted[pause.group][step] += 1
                reached += 1
            self._reached[step] = first + reached
        while watched and (len(watched) > MAX_PAUSES or self._reached[-1] > self._first):
            watched.popleft()
            self._first += 1


def _step(age: float) -> int:
    if age < SHORTEST:
        return 0
    return min(1 + int(PER_DOUBLING * log2(age / SHORTEST)), NUM_STEPS - 1)


def _worth(chances: Sequence[float]) -> list[float]:
    """By step, and for all ages after the last."""
    worth = []
    for first in range(NUM_STEPS):
        here, back, kept, best = 1.0, 0.0, 0.0, 0.0
        for step in range(first, NUM_STEPS):
            back += here * chances[step]
            kept += here * (_STARTS[step + 1] - _STARTS[step]) * (1 - chances[step] / 2)
            here *= 1 - chances[step]
            best = max(best, back / kept)
        worth.append(max(best, 1e-12))
    return [*worth, worth[-1] / 2]
