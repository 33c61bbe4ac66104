"""Engines take turns, A B A B: what changes in the machine meanwhile meets all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.children import ChildError
from bench.measures import Measure

USUAL_SHARE = 0.9
"""A peer below this share of its usual rate was disturbed, and so were we."""


class Engine(Protocol):
    """Whoever can be asked: `bench.children.Child`."""

    @property
    def name(self) -> str: ...

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Values:
    """One engine's values of one measure. `problem`: why there are none."""

    engine: str
    values: tuple[float, ...] = ()
    problem: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median."""
        return (max(self.values) - min(self.values)) / self.median


@dataclass(frozen=True)
class Row:
    """All engines' values of one measure, ours first. `limit`: what the machine allows, in the measure's unit."""

    measure: Measure
    ours: Values
    peers: tuple[Values, ...]
    limit: float | None = None
    void: tuple[str, ...] = field(default=())
    """Peers that fell below their usual rate."""

    def ratios(self) -> dict[str, float]:
        """Peer -> how many times as fast as it we are; those without values are left out."""
        if not self.ours.values:
            return {}
        return {p.engine: self.measure.ratio(self.ours.median, p.median) for p in self.peers if p.values}

    def fastest(self) -> str | None:
        """The peer that is hardest to beat."""
        ratios = self.ratios()
        return min(ratios, key=ratios.__getitem__) if ratios else None


def take_turns(
    measure: Measure,
    children: Iterable[Engine],
    repeats: int,
    told: Callable[[str, float, Mapping[str, Any]], None] = lambda *_: None,
) -> list[Values]:
    """`repeats` rounds in which each engine is measured once. One that fails is left out of the rounds that follow."""
    children = list(children)
    found: dict[str, list[float]] = {child.name: [] for child in children}
    problems: dict[str, str] = {}
    for _ in range(min(repeats, measure.max_repeats)):
        for child in children:
            if child.name in problems:
                continue
            try:
                answer = child.ask(measure.op, **measure.arguments)
            except ChildError as error:
                problems[child.name] = str(error)
                continue
            if "error" in answer:
                problems[child.name] = str(answer["error"])
                continue
            found[child.name].append(measure.value(answer))
            told(child.name, found[child.name][-1], answer)
    return [
        Values(name, problem=problems[name]) if name in problems else Values(name, tuple(values))
        for name, values in found.items()
    ]


def fallen(measure: Measure, peers: Iterable[Values], usual: Mapping[str, float]) -> tuple[str, ...]:
    """The peers that are more than 10 % slower than usual. `usual`: peer -> the value it is known for."""
    return tuple(
        p.engine
        for p in peers
        if p.values and p.engine in usual and measure.ratio(p.median, usual[p.engine]) < USUAL_SHARE
    )
