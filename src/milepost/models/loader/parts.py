"""Which stored tensors each parameter is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

Spellings = Callable[[str], Iterable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Part:
    """A stored tensor is part `index` of `count` equal ones, one after the other in the memory of `parameter`."""

    parameter: str
    index: int = 0
    count: int = 1

    def fits(self, found: tuple[int, ...], whole: torch.Tensor) -> bool:
        """Whether a stored tensor of shape `found` is this part of `whole`; the only expert may come as a matrix."""
        return found == self.shape(whole) or (self.count == 1 == whole.shape[0] and found == whole.shape[1:])

    def shape(self, whole: torch.Tensor) -> tuple[int, ...]:
        """What the part of a parameter like `whole` must look like: a matrix, unless it is all of it."""
        if self.count == 1:
            return tuple(whole.shape)
        return math.prod(whole.shape[:-1]) // self.count, whole.shape[-1]


def find_parts(
    wanted: Iterable[str], present: Collection[str], spellings: Spellings
) -> tuple[dict[str, Part], list[str]]:
    """The parts of the `wanted` parameters by their stored names, and which of those are not `present`.

    A parameter is stored under its own name or, failing that, in the first of its `spellings` that is there; if none is
    whole, what is missing is told of the one that is there most, its own name first.
    """
    parts: dict[str, Part] = {}
    missing: list[str] = []
    for parameter in wanted:
        if parameter in present:
            parts[parameter] = Part(parameter)
            continue
        lacking = [parameter]
        most = 0
        for stored in spellings(parameter):
            absent = [name for name in stored if name not in present]
            if len(stored) - len(absent) > most or not absent:
                lacking, most = absent, len(stored) - len(absent)
            if not absent:
                parts |= {name: Part(parameter, i, len(stored)) for i, name in enumerate(stored)}
                break
        missing += lacking
    return parts, missing
