"""What a client of a cache with memory in plenty can foretell: it remembers all that it has sent and got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

BLOCK, CHUNK = 16, 64


@dataclass(frozen=True)
class Found:
    """The report to expect."""

    matched: int
    reason: str | None
    position: int | None


class KnownTexts:
    """The texts whose rows were computed, by scope; those of requests under way or left may be known in part."""

    def __init__(self, unit: int, has_kv: bool) -> None:
        self._unit, self._grain = unit, BLOCK if has_kv else CHUNK
        self._known: dict[str, list[list[int]]] = defaultdict(list)
        self._under_way: dict[str, dict[object, Callable[[], list[int]]]] = defaultdict(dict)

    def begin(self, scope: str, talk: object, text: Callable[[], list[int]]) -> list[list[int]]:
        """`talk` has begun, and its text so far is `text()`; returns what is surely known before it."""
        self._under_way[scope][talk] = text
        return list(self._known[scope])

    def end(self, scope: str, talk: object, texts: Iterable[list[int]]) -> None:
        """All rows of `texts` were computed in `talk`."""
        del self._under_way[scope][talk]
        self._known[scope] += texts

    def perhaps(self, scope: str, talk: object) -> list[list[int]]:
        """All that may be known to `talk` by now."""
        return self._known[scope] + [text() for other, text in self._under_way[scope].items() if other is not talk]

    def found(self, prompt: list[int], texts: list[list[int]]) -> Found:
        """What a cache that has these texts and forgets nothing tells about `prompt`."""
        reach = len(prompt) - 1
        known = [text[: len(text) // self._grain * self._grain] for text in texts]
        common = max((_common(prompt, text) for text in known), default=0)
        matched = min(common, reach) // BLOCK * BLOCK
        if reach < self._unit:
            return Found(matched, "too short", 0)
        if matched == reach // BLOCK * BLOCK:
            return Found(matched, None, None)
        goes_on = any(len(text) > matched and _common(prompt, text) >= matched for text in known)
        if goes_on and common:
            return Found(matched, "diverged", common)
        return Found(matched, None, None) if matched else Found(matched, "no prefix", 0)


def _common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
